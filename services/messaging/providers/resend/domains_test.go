package resend_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/resend"
	"waitlist.internal/services/messaging/providers/resendtest"
)

// zone holds the TXT records that name servers answer with. It implements domains.Texts.
type zone map[string]string

func (z zone) Texts(_ context.Context, name string) ([]string, error) {
	if z == nil {
		return nil, domains.ErrNoAnswer
	}
	return []string{z[name]}, nil
}

func published(c domains.Claim) zone {
	z := zone{}
	for _, r := range c.Records {
		if r.Type == "TXT" {
			z[r.Name] = r.Value
		}
	}
	return z
}

func TestDomainsAreProvenThroughTheAPI(t *testing.T) {
	s, p := start(t)
	d := resend.Domains{Provider: p}
	first, err := d.Begin(t.Context(), "news.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if !first.Registered || first.ExternalID == "" || first.Key != nil || s.Domains()["news.example.com"].ID != first.ExternalID {
		t.Fatalf("%+v", first)
	}
	got := ""
	for _, r := range first.Records {
		got += r.Type + " " + r.Name + "\n"
		if r.Value == "" || r.Purpose == "" || r.TTL <= 0 || r.Proof != (r.Name == "_waitlist.news.example.com") {
			t.Errorf("%+v", r)
		}
	}
	if got != "TXT _waitlist.news.example.com\nMX send.news.example.com\nTXT send.news.example.com\nTXT "+
		"resend._domainkey.news.example.com\n" || first.Records[1].Value != "10 feedback-smtp.us-east-1.amazonses.com" {
		t.Errorf("%s%+v", got, first.Records)
	}
	// Another account claims the same domain and gets another proof.
	second, err := d.Begin(t.Context(), "news.example.com")
	if err != nil || second.Registered || second.ExternalID != first.ExternalID || second.Records[0].Value == first.Records[0].Value {
		t.Fatalf("%+v, %v", second, err)
	}
	for _, tc := range []struct {
		name   string
		texts  zone
		status string
		claim  domains.Claim
		want   bool
	}{
		{"neither", zone{}, "not_started", first, false},
		{"ours alone", published(first), "pending", first, false},
		{"theirs alone", zone{}, "verified", first, false},
		{"both", published(first), "verified", first, true},
		{"another's proof", published(first), "verified", second, false},
		{"lost at Resend", published(first), "failed", first, false},
	} {
		s.SetStatus("news.example.com", tc.status)
		d.Texts = tc.texts
		if proven, err := d.Proven(t.Context(), domains.Domain{Name: "news.example.com", Claim: tc.claim}); proven != tc.want || err != nil {
			t.Errorf("%s: %v, %v", tc.name, proven, err)
		}
	}
	// Resend checks the records on request.
	s.SetStatus("news.example.com", "not_started")
	d.Texts = published(first)
	if _, err := d.Proven(t.Context(), domains.Domain{Claim: first}); err != nil || s.Domains()["news.example.com"].Status != "pending" {
		t.Errorf("%v, %+v", err, s.Domains())
	}
	d.Texts = zone(nil)
	if _, err := d.Proven(t.Context(), domains.Domain{Claim: first}); err == nil || apierr.Is(err, apierr.ExternalServiceError) {
		t.Errorf("without an answer: %v", err)
	}
	d.Texts = published(first)
	for range 2 {
		if err := d.Release(t.Context(), first.ExternalID); err != nil || len(s.Domains()) != 0 {
			t.Errorf("%v, %v", err, s.Domains())
		}
	}
	if proven, err := d.Proven(t.Context(), domains.Domain{Claim: first}); proven || err != nil {
		t.Errorf("a domain that Resend forgot: %v, %v", proven, err)
	}
}

func TestWhereTheAPIFails(t *testing.T) {
	s, p := start(t)
	d := resend.Domains{Provider: p}
	first, err := d.Begin(t.Context(), "news.example.com")
	if err != nil {
		t.Fatal(err)
	}
	d.Texts = published(first)
	for _, status := range []int{429, 500, 401, 404} {
		s.Fail = func(*http.Request) *resendtest.Failure { return &resendtest.Failure{Status: status, Name: "x"} }
		_, begun := d.Begin(t.Context(), "other.example.com")
		_, proven := d.Proven(t.Context(), domains.Domain{Claim: first})
		for what, err := range map[string]error{"begin": begun, "proven": proven, "release": d.Release(t.Context(), first.ExternalID)} {
			if !apierr.Is(err, apierr.ExternalServiceError) {
				t.Errorf("%d at %s: %v", status, what, err)
			}
		}
	}
	s.Fail = func(r *http.Request) *resendtest.Failure {
		if r.Method == http.MethodPost {
			return &resendtest.Failure{Status: 422, Name: "validation_error"}
		}
		return nil
	}
	if _, err := d.Begin(t.Context(), "invalid.example.com"); !apierr.Is(err, apierr.ValidationError) {
		t.Error(err)
	}
}

// suppressed implements resend.Suppressor.
type suppressed struct {
	mu    sync.Mutex
	taken map[string]string
}

func (s *suppressed) Suppress(_ context.Context, id string, reason mails.SuppressionReason, emails []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[id] = string(reason) + " " + strings.Join(emails, ",")
	return nil
}

const secondSecret = "whsec_YW5vdGhlciBzZWNyZXQsIGZvciBhIHJvdGF0aW9uLi4="

func intake(t testing.TB) (*suppressed, *resend.Notifications) {
	t.Helper()
	store := &suppressed{taken: map[string]string{}}
	n, err := resend.NewNotifications([]string{resendtest.Secret, secondSecret}, store)
	if err != nil {
		t.Fatal(err)
	}
	return store, n
}

func notified(t testing.TB, secret, id, event, bounce string, at time.Time, to ...string) (http.Header, []byte) {
	t.Helper()
	r, err := resendtest.Notification("http://localhost/", secret, id, event, bounce, at, to...)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, r.ContentLength)
	if _, err := r.Body.Read(b); err != nil {
		t.Fatal(err)
	}
	return r.Header, b
}

func TestBouncesAndComplaintsSuppress(t *testing.T) {
	store, n := intake(t)
	for id, tc := range map[string]struct {
		secret, event, bounce string
		to                    []string
		want                  string
	}{
		"hard": {
			resendtest.Secret, "email.bounced", "Permanent",
			[]string{"A@Example.org", "Bob <b@example.org>"},
			"bounce a@example.org,b@example.org",
		},
		"complaint":  {secondSecret, "email.complained", "", []string{"c@example.org"}, "complaint c@example.org"},
		"soft":       {resendtest.Secret, "email.bounced", "Transient", []string{"d@example.org"}, ""},
		"unknown":    {resendtest.Secret, "email.bounced", "Undetermined", []string{"d@example.org"}, ""},
		"delivered":  {resendtest.Secret, "email.delivered", "", []string{"d@example.org"}, ""},
		"no address": {resendtest.Secret, "email.complained", "", []string{"nobody", "a@b"}, ""},
		"nobody":     {resendtest.Secret, "email.complained", "", nil, ""},
	} {
		header, raw := notified(t, tc.secret, id, tc.event, tc.bounce, time.Now(), tc.to...)
		if err := n.Take(t.Context(), header, raw); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		if store.taken[id] != tc.want {
			t.Errorf("%s: %q, want %q", id, store.taken[id], tc.want)
		}
	}
}

func TestForgedNotificationsAreRefused(t *testing.T) {
	store, n := intake(t)
	header, raw := notified(t, resendtest.Secret, "id", "email.complained", "", time.Now(), "a@example.org")
	refused := func(what string, header http.Header, raw []byte) {
		t.Helper()
		if err := n.Take(t.Context(), header, raw); !apierr.Is(err, apierr.InvalidToken) || len(store.taken) != 0 {
			t.Errorf("%s: %v, %v", what, err, store.taken)
		}
	}
	for i := range raw {
		changed := append([]byte(nil), raw...)
		changed[i] ^= 1
		refused("another body", header, changed)
	}
	refused("no body", header, nil)
	for _, name := range []string{"Svix-Id", "Svix-Timestamp", "Svix-Signature"} {
		value := header.Get(name)
		for i := range value {
			h := header.Clone()
			b := []byte(value)
			b[i] ^= 1
			h.Set(name, string(b))
			if name == "Svix-Signature" && i < len("v1") {
				continue // the scheme's name; there is only one scheme
			}
			refused("another "+name, h, raw)
		}
		h := header.Clone()
		h.Del(name)
		refused("no "+name, h, raw)
	}
	for _, at := range []time.Duration{-6 * time.Minute, 6 * time.Minute, -24 * time.Hour} {
		h, raw := notified(t, resendtest.Secret, "id", "email.complained", "", time.Now().Add(at), "a@example.org")
		refused("at "+at.String(), h, raw)
	}
	h, other := notified(t, "whsec_bm90IG91cnMgYXQgYWxsLCBidXQgbG9uZyBlbm91Z2g=", "id", "email.complained", "", time.Now(), "a@example.org")
	refused("another secret", h, other)
	h, long := notified(t, resendtest.Secret, strings.Repeat("x", 257), "email.complained", "", time.Now(), "a@example.org")
	refused("a long id", h, long)
	if err := n.Take(t.Context(), header, raw); err != nil || len(store.taken) != 1 {
		t.Errorf("the true one: %v", err)
	}
	for _, body := range []string{"", "null", "[]", `{"type":5}`, `{"type":"email.bounced","data":[]}`} {
		h := header.Clone()
		h.Set("Svix-Signature", resendtest.Sign(resendtest.Secret, "id", header.Get("Svix-Timestamp"), []byte(body)))
		if err := n.Take(t.Context(), h, []byte(body)); body != "null" && err == nil || len(store.taken) != 1 {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestSecretsAreChecked(t *testing.T) {
	for _, secrets := range [][]string{
		nil,
		{""},
		{"whsec_"},
		{"whsec_c2hvcnQ="},
		{"whsec_no base64, but long enough"},
		{resendtest.Secret, "whsec_"},
	} {
		if _, err := resend.NewNotifications(secrets, nil); err == nil {
			t.Errorf("%q", secrets)
		}
	}
}

// FuzzTake looks for an unsigned body or header that is accepted.
func FuzzTake(f *testing.F) {
	now := time.Now()
	header, raw := notified(f, resendtest.Secret, "id", "email.complained", "", now, "a@example.org")
	f.Add("id", header.Get("Svix-Timestamp"), header.Get("Svix-Signature"), raw, false)
	f.Add("id", header.Get("Svix-Timestamp"), "w"+header.Get("Svix-Signature")[1:], raw, false)
	f.Add("id", header.Get("Svix-Timestamp"), "v1,", raw, true)
	f.Add("", "-9223372036854775808", "v1,x v1a,y z", []byte(`{"type":"email.bounced","data":{"to":["<>"]}}`), true)
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte, sign bool) {
		store, n := intake(t)
		if sign {
			timestamp = header.Get("Svix-Timestamp")
			signature = resendtest.Sign(resendtest.Secret, id, timestamp, body)
		}
		h := http.Header{"Svix-Id": {id}, "Svix-Timestamp": {timestamp}, "Svix-Signature": {signature}}
		err := n.Take(t.Context(), h, body)
		// The scheme's name before the comma does not matter: there is only one scheme.
		signed := func(secret string) bool {
			return strings.Contains(signature, strings.TrimPrefix(resendtest.Sign(secret, id, timestamp, body), "v1"))
		}
		ours := signed(resendtest.Secret) || signed(secondSecret)
		if !ours && !apierr.Is(err, apierr.InvalidToken) {
			t.Fatalf("unsigned, and %v", err)
		}
		if len(store.taken) > 0 && (!json.Valid(body) || err != nil) {
			t.Fatalf("%q suppressed %v, %v", body, store.taken, err)
		}
	})
}
