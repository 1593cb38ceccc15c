package resend_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	stdmail "net/mail"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/providertest"
	"waitlist.internal/services/messaging/providers/resend"
	"waitlist.internal/services/messaging/providers/resendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "re_test_key"

func start(t *testing.T) (*resendtest.Server, *resend.Provider) {
	t.Helper()
	s := &resendtest.Server{APIKey: key}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	p, err := resend.New(resend.Config{APIKey: key, BaseURL: h.URL, From: providertest.From})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, p
}

func mail(id, to string) mails.Mail {
	return mails.Mail{ID: id, To: to, Subject: "s", Text: "text", Date: time.Now()}
}

func TestProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Fixture {
		t.Helper()
		s, p := start(t)
		return providertest.Fixture{
			Provider: p, Once: true, Secrets: []string{key},
			Fail: func(f providertest.Failure) bool {
				failures := map[providertest.Failure]resendtest.Failure{
					providertest.Refuse:      {Status: http.StatusUnprocessableEntity, Name: "validation_error"},
					providertest.Busy:        {Status: http.StatusTooManyRequests, Name: "rate_limit_exceeded"},
					providertest.Credentials: {Status: http.StatusForbidden, Name: "invalid_api_key"},
					providertest.Lost:        {Status: http.StatusBadGateway, Name: "application_error", After: true},
				}
				s.Fail = nil
				if failure, ok := failures[f]; ok {
					s.Fail = func(*http.Request) *resendtest.Failure { return &failure }
				}
				return true
			},
			Received: func() []providertest.Received {
				var out []providertest.Received
				for _, e := range s.Emails() {
					from, err := stdmail.ParseAddress(e.From)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, providertest.Received{From: *from, To: e.To, Subject: e.Subject, Text: e.Text, HTML: e.HTML, Header: e.Headers})
				}
				return out
			},
		}
	})
}

func TestAnswers(t *testing.T) {
	s, p := start(t)
	for _, tc := range []struct {
		status int
		name   string
		want   string
	}{
		{400, "validation_error", "refused"},
		{422, "validation_error", "refused"},
		{422, "invalid_from_address", "doubtful"},
		{422, "invalid_access", "doubtful"},
		{403, "validation_error", "doubtful"}, // the sender's domain is not verified
		{451, "security_error", "doubtful"},
		{401, "missing_api_key", "away"},
		{401, "restricted_api_key", "away"},
		{403, "invalid_api_key", "away"},
		{403, "restricted_api_key", "away"},
		{404, "not_found", "away"},
		{405, "method_not_allowed", "away"},
		{408, "", "away"},
		{409, "concurrent_idempotent_requests", "deferred"},
		{409, "invalid_idempotent_request", "taken"},
		{429, "rate_limit_exceeded", "away"},
		{429, "daily_quota_exceeded", "away"},
		{500, "application_error", "away"},
		{503, "", "away"},
		{302, "", "away"},
		{400, "o'hara@example.com is no name", "refused"},
	} {
		s.Fail = func(*http.Request) *resendtest.Failure { return &resendtest.Failure{Status: tc.status, Name: tc.name} }
		err := p.Send(t.Context(), mail("id", "o'hara@example.com"))
		got := "away"
		if _, ok := errors.AsType[*mails.RefusedError](err); ok {
			got = "refused"
		} else if _, ok := errors.AsType[*mails.DeferredError](err); ok {
			got = "deferred"
		} else if _, ok := errors.AsType[*mails.DoubtfulError](err); ok {
			got = "doubtful"
		} else if err == nil {
			got = "taken"
		}
		if got != tc.want {
			t.Errorf("%d %s: %s (%v), want %s", tc.status, tc.name, got, err, tc.want)
		}
		if err != nil && (strings.Contains(err.Error(), "@") || strings.Contains(err.Error(), key) ||
			!strings.Contains(err.Error(), "resend answered")) {
			t.Errorf("%d %s: %v", tc.status, tc.name, err)
		}
	}
}

// A batch that is too large is sent mail by mail, each mail once.
func TestBatchesThatAreTooLarge(t *testing.T) {
	s, p := start(t)
	s.BodyLimit = 2000
	var batch []mails.Mail
	for _, to := range []string{"a@example.org", "b@example.org", "no@example.org", "c@example.org"} {
		m := mail("mail-"+to, to)
		m.Text = strings.Repeat("x", 800)
		batch = append(batch, m)
	}
	s.Refuse = func(to string) bool { return to == "no@example.org" }
	for range 2 {
		errs := p.SendBatch(t.Context(), "blast:0", batch)
		for i, err := range errs {
			if _, refused := errors.AsType[*mails.RefusedError](err); refused != (i == 2) || err != nil != (i == 2) {
				t.Errorf("mail %d: %v", i, err)
			}
		}
		if n := len(s.Emails()); n != 3 {
			t.Errorf("%d mails", n)
		}
	}
}

func TestRefusalsWithinABatch(t *testing.T) {
	s, p := start(t)
	s.Refuse = func(to string) bool { return to == "no@example.org" }
	errs := p.SendBatch(t.Context(), "blast:0", []mails.Mail{
		mail("1", "nobody"), mail("2", "a@example.org"),
		mail("3", "no@example.org"), mail("4", "b@example.org"),
	})
	for i, err := range errs {
		_, refused := errors.AsType[*mails.RefusedError](err)
		if bad := i == 0 || i == 2; refused != bad || err != nil != bad {
			t.Errorf("mail %d: %v", i, err)
		}
		if err != nil && strings.Contains(err.Error(), "@") {
			t.Error(err)
		}
	}
	if n := len(s.Emails()); n != 2 || s.Calls() != 1 || s.Emails()[0].Key != "blast:0" {
		t.Errorf("%d mails in %d calls", n, s.Calls())
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	s, _ := start(t)
	target := httptest.NewServer(s)
	defer target.Close()
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		h := httptest.NewServer(http.RedirectHandler(target.URL+"/emails", status))
		defer h.Close()
		p, err := resend.New(resend.Config{APIKey: key, BaseURL: h.URL, From: providertest.From})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		if err := p.Send(t.Context(), mail("1", "a@example.org")); err == nil || s.Calls() != 0 {
			t.Errorf("%d: %v, %d calls", status, err, s.Calls())
		}
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for _, cfg := range []resend.Config{{}, {APIKey: key, BaseURL: "api.resend.com"}, {APIKey: key, BaseURL: "ftp://api.resend.com"}} {
		if _, err := resend.New(cfg); err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
