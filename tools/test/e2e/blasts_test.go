package e2e

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/services/messaging/providers/resendtest"
)

// newBlast returns a request for a blast with a text body.
func newBlast(waitlist string, more Obj) Request {
	body := Obj{"subject": "News", "text_body": "Hello"}
	for k, v := range more {
		if v == absent {
			delete(body, k)
		} else {
			body[k] = v
		}
	}
	return Post("/waitlists/"+waitlist+"/blasts", body)
}

// blastState is an entry of the list of blasts.
type blastState struct {
	ID         string `json:"blast_id"`
	Subject    string `json:"subject"`
	SentAt     string `json:"sent_at"`
	Recipients int    `json:"recipient_count"`
	Failed     int    `json:"failed_count"`
	Status     string `json:"status"`
}

// blasts returns a waitlist's blasts, newest first.
func (o *owner) blasts(t testing.TB, waitlist string) []blastState {
	t.Helper()
	var list struct {
		Blasts []blastState `json:"blasts"`
	}
	o.Do(t, Get("/waitlists/"+waitlist+"/blasts").As(o.token)).Want(http.StatusOK).Decode(&list)
	return list.Blasts
}

// awaitBlast waits until the newest blast is sent, and returns it.
func (o *owner) awaitBlast(t testing.TB, waitlist string) blastState {
	t.Helper()
	var got blastState
	Await(t, mailTimeout, "the blast is sent", func() bool {
		got = o.blasts(t, waitlist)[0]
		return got.Status == "sent"
	})
	return got
}

// unsubscribeLinks returns the two unsubscribe links that a mail must have: the footer's page, and the API's address for
// one-click unsubscription (RFC 8058).
func unsubscribeLinks(t testing.TB, m Mail, d *deployment, waitlist string) (page, click *url.URL) {
	t.Helper()
	if got := m.Header.Get("List-Unsubscribe-Post"); got != "List-Unsubscribe=One-Click" {
		t.Errorf("List-Unsubscribe-Post %q", got)
	}
	header := m.Header.Get("List-Unsubscribe")
	click, err := url.Parse(strings.Trim(header, "<>"))
	if err != nil || click.Query().Get("email") != m.To || click.Query().Get("token") == "" ||
		"<"+d.server.URL+basePath+"/public/waitlists/"+waitlist+"/unsubscribe" != strings.SplitN(header, "?", 2)[0] {
		t.Fatalf("List-Unsubscribe %q: %v", header, err)
	}
	for _, u := range m.Links() {
		if u.Path == "/unsubscribe" {
			page = u
		}
	}
	if page == nil || !strings.HasPrefix(page.String(), d.server.URL+"/") || page.Query().Get("waitlist") != waitlist ||
		page.Query().Get("email") != m.To || page.Query().Get("token") == "" {
		t.Fatalf("the footer's link is %v in %q", page, m.Text+m.HTML)
	}
	for media, body := range map[string]string{"text": m.Text, "HTML": html.UnescapeString(m.HTML)} {
		if body != "" && !strings.Contains(body, page.String()) {
			t.Errorf("no unsubscribe link in the %s: %s", media, body)
		}
	}
	return page, click
}

// noUnsubscribe requires that a transactional mail has no unsubscribe link.
func noUnsubscribe(t testing.TB, m Mail) {
	t.Helper()
	if m.Header.Get("List-Unsubscribe") != "" || m.Header.Get("List-Unsubscribe-Post") != "" ||
		strings.Contains(strings.ToLower(m.Text+m.HTML), "unsubscribe") {
		t.Errorf("%q offers to unsubscribe: %s", m.Subject, m.Raw)
	}
}

// click returns the request that a mail client sends for a one-click unsubscription.
func click(u *url.URL) Request {
	return Post(strings.TrimPrefix(u.EscapedPath(), basePath)+"?"+u.RawQuery, nil).
		Raw([]byte("List-Unsubscribe=One-Click")).With("Content-Type", "application/x-www-form-urlencoded")
}

// optOut returns the request that the footer's page sends.
func optOut(page *url.URL) Request {
	q := page.Query()
	return Post("/public/waitlists/"+q.Get("waitlist")+"/unsubscribe", Obj{"email": q.Get("email"), "token": q.Get("token")})
}

// optOutByHand opts an address out without a mail.
func (d *deployment) optOutByHand(t testing.TB, c *Client, waitlist, email string) {
	t.Helper()
	c.Do(t, Post("/public/waitlists/"+waitlist+"/unsubscribe",
		Obj{"email": email, "token": d.unsubscribeToken(t, waitlist, email)})).Want(http.StatusOK)
}

// inBoxes counts the mails to each address.
func inBoxes(t testing.TB, box mailbox, people ...string) []int {
	t.Helper()
	var out []int
	for _, p := range people {
		mails, err := box.Mails(p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, len(mails))
	}
	return out
}

func testBlasts(t *testing.T, d *deployment) {
	t.Run("mails", func(t *testing.T) { testBlastMails(t, d) })
	t.Run("answers", func(t *testing.T) { testBlastAnswers(t, d) })
	t.Run("fields", func(t *testing.T) { testBlastFields(t, d) })
	t.Run("batches", func(t *testing.T) { testBlastBatches(t, d) })
	t.Run("idempotency", func(t *testing.T) { testBlastIdempotency(t, d) })
	t.Run("bodies", func(t *testing.T) {
		o := d.owner(t)
		testBodies(t, o.Client, Post("/waitlists/"+o.waitlist(t, nil)+"/blasts", nil).As(o.token),
			`{"subject":"x","text_body":"x"%s}`, http.StatusOK)
	})
	t.Run("plans", func(t *testing.T) { testBlastPlans(t, d) })
}

// testBlastMails checks who gets which mail, and the unsubscribe links.
func testBlastMails(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"position_offset": 7})
	ada, bob, out := address("o'hara+x%y"), address("bob"), address("out")
	removed, gone, imported := address("removed"), address("gone"), address("imported")
	for _, p := range []string{ada, bob, out, removed, gone} {
		o.join(t, id, p, Obj{"first_name": "Ada"})
	}
	o.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": []any{Obj{"email": imported}}}).As(o.token)).Want(http.StatusOK)
	d.optOutByHand(t, o.Client, id, out)
	o.Do(t, Delete("/waitlists/"+id+"/signups/"+removed).As(o.token)).Want(http.StatusNoContent)
	token := o.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": gone, "token": d.unsubscribeToken(t, id, gone)})).
		Want(http.StatusOK).Str("delete_token")
	o.Do(t, Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": gone, "token": token})).Want(http.StatusOK)

	everyone := []string{ada, bob, imported, out, removed, gone}
	subject := "Hello {{first_name}} =?utf-8?q?x?= " + emoji
	text := "Hi {{first_name}},\n\n.\n  it's on — " + strings.Repeat("long ", 300) + "\n"
	markup := "<p>Hi {{first_name}} &amp; all</p>\n<script>1</script>"
	r := o.Do(t, newBlast(id, Obj{"subject": subject, "text_body": text, "html_body": markup}).As(o.token)).Want(http.StatusOK)
	r.WantJSON("status", "sent").WantJSON("recipient_count", 3).WantJSON("failed_count", 0)
	if got, want := inBoxes(t, d.server, everyone...), []int{1, 1, 1, 0, 0, 0}; !slices.Equal(got, want) {
		t.Fatalf("mails %v, want %v", got, want)
	}
	tokens := map[string]bool{}
	var page, one *url.URL
	for _, p := range everyone[:3] {
		m := d.server.AwaitMails(t, p, 1)[0]
		if m.Subject != subject {
			t.Errorf("subject %q", m.Subject)
		}
		if !strings.HasPrefix(m.Text, text) || !strings.HasPrefix(m.HTML, markup) {
			t.Errorf("the bodies were changed: %q, %q", m.Text, m.HTML)
		}
		if strings.Count(m.Text, "/unsubscribe?") != 1 || strings.Count(m.HTML, "/unsubscribe?") != 1 {
			t.Errorf("footers: %q, %q", m.Text, m.HTML)
		}
		if m.From != "no-reply@localhost" {
			t.Errorf("from %s", m.From)
		}
		page, one = unsubscribeLinks(t, m, d, id)
		tokens[page.Query().Get("token")] = true
		if p == ada {
			golden(t, "blast", d, m, map[string]string{id: "<waitlist>", ada: "<ada>", text: "<text>\n", markup: "<html>\n"})
			// A GET must not unsubscribe.
			o.Do(t, Get(strings.TrimPrefix(one.Path, basePath)+"?"+one.RawQuery)).WantError(http.StatusNotFound, "NOT_FOUND")
			o.Do(t, click(one)).Want(http.StatusOK).WantJSON("success", true)
			o.Do(t, click(one)).Want(http.StatusOK)
		}
	}
	if len(tokens) != 3 {
		t.Errorf("%d tokens for three people", len(tokens))
	}
	// The last recipient, who was imported, unsubscribes by the page and then deletes their data.
	erase := o.Do(t, optOut(page)).Want(http.StatusOK).Str("delete_token")
	o.Do(t, Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": imported, "token": erase})).Want(http.StatusOK)
	o.status(t, id, imported).WantError(http.StatusNotFound, "NOT_FOUND")

	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("status", "sent").WantJSON("recipient_count", 1)
	if got, want := inBoxes(t, d.server, everyone...), []int{1, 2, 1, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("mails %v, want %v", got, want)
	}
	t.Run("text alone", func(t *testing.T) {
		m := d.server.AwaitMails(t, bob, 2)[1]
		if m.HTML != "" || !strings.HasPrefix(m.Text, "Hello") {
			t.Errorf("%q, %q", m.Text, m.HTML)
		}
		unsubscribeLinks(t, m, d, id)
	})
	t.Run("HTML alone", func(t *testing.T) {
		o.Do(t, newBlast(id, Obj{"text_body": absent, "html_body": "<!DOCTYPE html><html><body><p>Hi</p></body></html>"}).
			As(o.token)).Want(http.StatusOK)
		m := d.server.AwaitMails(t, bob, 3)[2]
		if !strings.HasPrefix(m.Text, "Hi\n") || !strings.Contains(m.HTML, "<body><p>Hi</p>") {
			t.Errorf("%q, %q", m.Text, m.HTML)
		}
		unsubscribeLinks(t, m, d, id)
	})
}

// testBlastAnswers checks blasts to empty lists, the list of blasts, and who may see it.
func testBlastAnswers(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	if got := o.blasts(t, id); len(got) != 0 {
		t.Fatalf("blasts %v", got)
	}
	start := time.Now()
	first := o.Do(t, newBlast(id, Obj{"subject": "First"}).Key(o.key)).Want(http.StatusOK).
		WantJSON("recipient_count", 0).WantJSON("failed_count", 0).WantJSON("status", "sent").Str("blast_id")
	o.join(t, id, address("ada"))
	second := o.Do(t, newBlast(id, Obj{"subject": "Second"}).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 1).
		WantJSON("status", "sent").Str("blast_id")
	got := o.blasts(t, id)
	if len(got) != 2 || got[0].ID != second || got[1].ID != first {
		t.Fatalf("blasts %+v", got)
	}
	for i, want := range []blastState{{second, "Second", got[0].SentAt, 1, 0, "sent"}, {first, "First", got[1].SentAt, 0, 0, "sent"}} {
		if got[i] != want {
			t.Errorf("%+v, want %+v", got[i], want)
		}
		at, err := time.Parse(time.RFC3339, got[i].SentAt)
		if err != nil || at.Before(start.Add(-2*time.Second)) || at.After(time.Now().Add(2*time.Second)) {
			t.Errorf("sent_at is %s: %v", got[i].SentAt, err)
		}
	}
	if got[0].SentAt < got[1].SentAt {
		t.Errorf("the second was sent at %s, the first at %s", got[0].SentAt, got[1].SentAt)
	}
	o.Do(t, Get("/waitlists/"+id+"/blasts").Key(o.key)).Want(http.StatusOK)
	o.Do(t, NewRequest(http.MethodHead, "/waitlists/"+id+"/blasts", nil).As(o.token)).Want(http.StatusOK)
	if other := o.waitlist(t, nil); len(o.blasts(t, other)) != 0 {
		t.Error("the list shows another waitlist's blasts")
	}

	stranger, viewer := d.owner(t), d.owner(t)
	d.verify(t, viewer)
	o.Do(t, invite(viewer.email, "viewer").As(o.token)).Want(http.StatusCreated)
	viewer.Do(t, newBlast(id, nil).As(viewer.token)).WantError(http.StatusForbidden, "FORBIDDEN")
	if got := viewer.blasts(t, id); len(got) != 2 {
		t.Errorf("a viewer sees %+v", got)
	}
	for _, r := range []Request{newBlast(id, nil), Get("/waitlists/" + id + "/blasts")} {
		stranger.Do(t, r.As(stranger.token)).WantError(http.StatusForbidden, "FORBIDDEN")
		o.Do(t, r).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	}
	for _, none := range []string{unknownID, "nope", "%00"} {
		for _, r := range []Request{newBlast(none, nil), Get("/waitlists/" + none + "/blasts")} {
			o.Do(t, r.As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		}
	}
	o.Do(t, Get("/waitlists/"+id+"/blasts/"+first).As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	o.Do(t, Delete("/waitlists/"+id).As(o.token)).Want(http.StatusNoContent)
	for _, r := range []Request{newBlast(id, nil), Get("/waitlists/" + id + "/blasts")} {
		o.Do(t, r.As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
	}
}

func testBlastFields(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	const most = 512 << 10
	for field, v := range map[string]struct{ good, bad []any }{
		"subject": {
			[]any{"x", strings.Repeat("x", 998), strings.Repeat(emoji, 998), "{{nope}} {{"},
			[]any{absent, nil, "", strings.Repeat("x", 999), "a\nb", "a\rb", "a\r\nBcc: eve@example.com", 5, true, []any{}, "a\x00b"},
		},
		"html_body": {[]any{nil, "x", strings.Repeat("x", most)}, []any{strings.Repeat("x", most+1), 5, []any{}, Obj{}, "a\x00b"}},
		"text_body": {[]any{"x", strings.Repeat("é", most/2)}, []any{strings.Repeat("é", most/2+1), 5, false, "a\x00b"}},
	} {
		t.Run(field, func(t *testing.T) {
			for _, good := range v.good {
				o.Do(t, newBlast(id, Obj{field: good}).As(o.token)).Want(http.StatusOK)
			}
			had := len(o.blasts(t, id))
			for _, bad := range v.bad {
				o.Do(t, newBlast(id, Obj{field: bad}).As(o.token).Invalid()).Invalid(field)
			}
			if got := len(o.blasts(t, id)); got != had {
				t.Errorf("rejected requests created %d blasts", got-had)
			}
		})
	}
	for _, none := range []Obj{{"text_body": absent}, {"text_body": nil}, {"text_body": ""}, {"text_body": "", "html_body": ""}} {
		o.Do(t, newBlast(id, none).As(o.token).Invalid()).Invalid("html_body")
	}
	o.Do(t, Post("/waitlists/"+id+"/blasts", Obj{}).As(o.token).Invalid()).Invalid("subject", "html_body")
	o.Do(t, newBlast(id, Obj{"text_body": strings.Repeat("x", most), "html_body": strings.Repeat("x", most)}).As(o.token)).
		WantError(http.StatusBadRequest, "INVALID_BODY")
}

// testBlastBatches checks that more people than fit in one batch get one mail each.
func testBlastBatches(t *testing.T, d *deployment) {
	const people = 250
	o := d.owner(t)
	id := o.waitlist(t, nil)
	rows := make([]any, people)
	emails := make([]string, people)
	for i := range rows {
		emails[i] = address(fmt.Sprint("p", i))
		rows[i] = Obj{"email": emails[i]}
	}
	o.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": rows}).As(o.token)).Want(http.StatusOK).WantJSON("imported", people)
	r := o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK)
	if r.Took > 6*time.Second {
		t.Errorf("answered after %s", r.Took)
	}
	if got := o.awaitBlast(t, id); got.Recipients != people || got.Failed != 0 {
		t.Errorf("%+v", got)
	}
	for i, n := range d.server.count(t, emails) {
		if n != 1 {
			t.Errorf("%d mails to %s", n, emails[i])
		}
	}
}

// count returns the number of mails to each address.
func (s *Server) count(t testing.TB, emails []string) []int {
	t.Helper()
	all, err := s.mails(func(Mail) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]int{}
	for _, m := range all {
		by[m.To]++
	}
	out := make([]int, len(emails))
	for i, e := range emails {
		out[i] = by[e]
	}
	return out
}

func testBlastIdempotency(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	send := func(key string, more Obj) Request { return newBlast(id, more).As(o.token).With("Idempotency-Key", key) }
	first := o.Do(t, send("k1", nil)).Want(http.StatusOK).WantJSON("status", "sent")
	if h := first.Header.Get("Idempotent-Replayed"); h != "" {
		t.Errorf("Idempotent-Replayed %q on the first answer", h)
	}
	again := o.Do(t, send("k1", nil)).Want(http.StatusOK)
	if again.Header.Get("Idempotent-Replayed") != "true" || string(again.Body) != string(first.Body) {
		t.Errorf("replay %q %s, want %s", again.Header.Get("Idempotent-Replayed"), again.Body, first.Body)
	}
	o.Do(t, send("k1", Obj{"subject": "Other"})).WantError(http.StatusConflict, "CONFLICT")
	o.Do(t, send("k2", Obj{"subject": ""}).Invalid()).Invalid("subject")
	o.Do(t, send(strings.Repeat("k", 256), nil).Invalid()).Invalid("Idempotency-Key")
	o.Do(t, send("ключ", nil).Invalid()).Invalid("Idempotency-Key")
	o.Do(t, send("k2", nil)).Want(http.StatusOK)
	other := d.owner(t)
	if r := other.Do(t, newBlast(other.waitlist(t, nil), nil).As(other.token).With("Idempotency-Key", "k1")).
		Want(http.StatusOK); r.Header.Get("Idempotent-Replayed") != "" {
		t.Error("an account got the stored answer of another account's key")
	}
	var mu sync.Mutex
	ids := map[string]bool{}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			r, err := o.Send(t.Context(), send("race", nil))
			if err != nil {
				t.Error(err)
				return
			}
			r.t = t
			switch {
			case r.Status == http.StatusOK:
				mu.Lock()
				defer mu.Unlock()
				ids[r.Str("blast_id")] = true
			case r.Status != http.StatusConflict || r.ErrorCode() != "CONFLICT":
				t.Errorf("%d %s", r.Status, r.Body)
			}
		})
	}
	wg.Wait()
	if n := len(o.blasts(t, id)); len(ids) != 1 || n != 3 {
		t.Errorf("%d different answers, %d blasts", len(ids), n)
	}
	d.server.AwaitMails(t, ada, 3)
	if got := inBoxes(t, d.server, ada); got[0] != 3 {
		t.Errorf("%d mails", got[0])
	}
	d.exec(t, "UPDATE messaging.idempotency_key SET created_at = created_at - interval '25 hours'")
	if r := o.Do(t, send("k1", Obj{"subject": "Other"})).Want(http.StatusOK); r.Header.Get("Idempotent-Replayed") != "" {
		t.Error("the answer was replayed after 25 hours")
	}
}

func testBlastPlans(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	both := func(code string) {
		t.Helper()
		for _, r := range []Request{newBlast(id, nil), Get("/waitlists/" + id + "/blasts")} {
			res := o.Do(t, r.As(o.token)).WantError(http.StatusForbidden, code)
			if code == "TIER_REQUIRED" && !strings.Contains(res.Str("error"), "Pro") {
				t.Errorf("%s: message %q does not name the plan", r, res.Str("error"))
			}
		}
	}
	d.setTier(t, o, "advanced", "active")
	both("TIER_REQUIRED")
	broken := Post("/waitlists/"+id+"/blasts", nil).Raw([]byte("{")).As(o.token).Invalid()
	o.Do(t, broken).WantError(http.StatusBadRequest, "INVALID_BODY")
	o.Do(t, newBlast(id, Obj{"subject": ""}).As(o.token).Invalid()).Invalid("subject")
	d.setTier(t, o, "pro", "inactive")
	both("FORBIDDEN")
	o.Do(t, broken).WantError(http.StatusForbidden, "FORBIDDEN")
	d.endTrial(t, o)
	both("TRIAL_EXPIRED")
	if got := inBoxes(t, d.server, ada); got[0] != 0 {
		t.Errorf("%d mails of rejected blasts", got[0])
	}
	d.setTier(t, o, "pro", "active")
	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 1)
}

// testBlastCap tests a deployment that limits the blasts of trials.
func (s *suite) testBlastCap(t *testing.T) {
	d := s.deploy(t, map[string]string{"BLAST_DAILY_CAP_TRIAL": "3", "RESEND_WEBHOOK_SECRETS": ""})
	o := d.owner(t)
	// Without a secret, notifications from the mail provider are not accepted.
	o.Do(t, notification(t, resendtest.Secret, "id", "email.bounced", "Permanent", time.Now(), o.email)).
		WantError(http.StatusNotFound, "NOT_FOUND")
	id := o.waitlist(t, nil)
	for range 3 {
		o.join(t, id, address("p"))
	}
	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 3).WantJSON("status", "sent")
	res := o.Do(t, newBlast(id, nil).As(o.token)).WantError(http.StatusTooManyRequests, "RATE_LIMITED")
	retryAfter(t, res, 24*60*60)
	if n := len(o.blasts(t, id)); n != 1 {
		t.Errorf("%d blasts", n)
	}
	o.Do(t, newBlast(id, Obj{"subject": ""}).As(o.token).Invalid()).Invalid("subject")
	d.setTier(t, o, "pro", "active")
	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("recipient_count", 3)
}
