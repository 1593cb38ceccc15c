package pages_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/e2e"
)

// TestLinks opens links of mails, as a scanner does, and then presses the buttons. TestEveryURL opens all.
func TestLinks(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const owner, ada, bob = "owner@example.com", "o'hara+x%y@example.com", "bob@example.com"
	key := s.owner()
	id := s.waitlist(key, object{"require_email_verification": true, "notify_referrer": true})
	token := s.api(http.MethodPost, "/public/waitlists/"+id+"/signups", "", object{"email": ada})["referral_token"]
	s.api(http.MethodPost, "/public/waitlists/"+id+"/signups", "", object{"email": bob, "referred_by_token": token})
	s.api(http.MethodPost, "/waitlists/"+id+"/blasts", key, object{"subject": "News", "text_body": "Hello."})
	s.api(http.MethodPost, "/team/invite", key, object{"email": "guest@example.com"})
	s.api(http.MethodPost, "/auth/forgot-password", "", object{"email": owner})

	var all []*url.URL
	links := map[string]*url.URL{} // one by path
	collect := func(to string, n int) {
		for _, mail := range s.server.AwaitMails(t, to, n) {
			for _, link := range mail.Links() {
				if strings.HasPrefix(link.String(), s.server.URL+"/v1/") {
					t.Errorf("%q leads to the API: %s", mail.Subject, link)
				}
				all, links[link.Path] = append(all, link), link
			}
		}
	}
	collect(owner, 2)
	collect(ada, 3) // verification, referral, blast
	collect(bob, 2)
	collect("guest@example.com", 1)
	for _, path := range []string{"/verify-email", "/forgot-password", "/reset-password", "/login", "/verify", "/unsubscribe"} {
		if links[path] == nil {
			t.Errorf("no mail leads to %s", path)
		}
	}
	for _, link := range all {
		for _, method := range []string{http.MethodHead, http.MethodGet} {
			a := s.send(method, link.String(), "", "", http.NoBody)
			if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") ||
				a.header.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("%s %s: %d %v\n%s", method, link, a.status, a.header, a.body)
			}
		}
	}
	for _, email := range []string{ada, bob} {
		if row := s.signup(key, id, email); row["email_verified"] != false || row["email_opt_out"] != false {
			t.Errorf("opening the links changed the signup: %v", row)
		}
	}

	press := func(link *url.URL, more url.Values) (int, string) {
		form := link.Query()
		maps.Copy(form, more)
		return s.post(link.Path, form)
	}
	mine := func(subject string) *url.URL {
		for _, mail := range s.server.AwaitMails(t, ada, 3) {
			if strings.HasPrefix(mail.Subject, subject) {
				return mail.Links()[0]
			}
		}
		t.Fatalf("no mail %q", subject)
		return nil
	}
	verify, unsubscribe := mine("Confirm"), mine("News")
	status, page := press(verify, nil)
	s.wants(status, page, 200, "Your address is confirmed.")
	status, page = press(verify, url.Values{"token": {"forged"}})
	s.wants(status, page, 400, "not valid or has expired", "Request ")
	status, page = press(unsubscribe, nil)
	s.wants(status, page, 200, "You will get no more mails", "Delete my data")
	if row := s.signup(key, id, ada); row["email_verified"] != true || row["email_opt_out"] != true {
		t.Errorf("the buttons did not do it: %v", row)
	}
	gone := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(page)
	status, page = s.post("/delete-my-data", url.Values{"waitlist": {id}, "email": {ada}, "token": {gone[1]}})
	s.wants(status, page, 200, "Your data has been deleted")
	if row := s.signup(key, id, ada); row != nil {
		t.Errorf("still there: %v", row)
	}

	status, page = press(links["/verify-email"], url.Values{"password": {"wrong horse"}})
	s.wants(status, page, 401, "The address or the password is wrong.")
	status, page = press(links["/verify-email"], url.Values{"password": {password}})
	s.wants(status, page, 200, "Your address is confirmed.")
	status, page = press(links["/reset-password"], url.Values{"password": {"short"}})
	s.wants(status, page, 400, `id="password-error"`)
	status, page = press(links["/reset-password"], url.Values{"password": {"another horse battery"}})
	s.wants(status, page, 200, "Your password is set.")
	status, page = s.post("/login", url.Values{"email": {owner}, "password": {password}})
	s.wants(status, page, 401, "The address or the password is wrong.", `value="owner@example.com"`)
	status, page = s.post("/login", url.Values{"email": {owner}, "password": {"another horse battery"}})
	s.wants(status, page, 200, owner, "pro", "Kites", "/w/"+id)
	status, page = s.post("/forgot-password", url.Values{"email": {"nobody@example.com"}})
	s.wants(status, page, 200, "a mail is on its way")
	for _, path := range []string{"/billing", "/billing/success", "/billing/canceled", "/"} {
		status, page = s.get(path)
		s.wants(status, page, 200, "<h1>")
	}
}

// TestForm fills in a form with every field, wrongly and rightly.
func TestForm(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	key := s.owner()
	id := s.waitlist(key, object{
		"headline": "A <b>kite</b>", "subheadline": "It flies.", "hero_image_url": "https://pictures.example.com/kite.jpg?x='y",
		"name_field": "required", "phone_field": "required", "require_consent": true, "referral_boost": 7,
		"consent_text": "I read the [terms](https://example.com/terms) & [mail](mailto:a@example.com).",
		"custom_questions": []object{
			{"id": "size", "label": "Size?", "type": "dropdown", "required": true, "options": []string{"S", "L & XL"}},
			{"id": "why", "label": "Why?", "type": "text"},
			{"id": "beta", "label": "Beta?", "type": "checkbox"},
		},
	})
	shown := s.send(http.MethodGet, "/w/"+id+"?ref=abc&utm_source=%22%3Enews&lang=de", "", "", http.NoBody)
	s.wants(shown.status, shown.body, 200, `lang="de"`, "A &lt;b&gt;kite&lt;/b&gt;", `name="utm_source" value="&#34;&gt;news"`,
		`name="ref" value="abc"`, `href="https://example.com/terms"`, `href="mailto:a@example.com"`, "E-Mail-Adresse", "L &amp; XL")
	policy := shown.header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "img-src 'self' https://pictures.example.com;") || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("policy %s", policy)
	}

	status, page := s.post("/w/"+id, url.Values{"email": {"ann"}, "q.why": {"Because"}, "utm_source": {"news"}})
	s.wants(status, page, 400, "Please correct", `value="ann"`, `value="Because"`, `name="utm_source" value="news"`)
	for _, field := range []string{"email", "first_name", "last_name", "phone", "consent", "q.size"} {
		if !strings.Contains(page, `id="`+field+`-error"`) || !strings.Contains(page, field+`-error">`) {
			t.Errorf("no error beside %s", field)
		}
	}
	right := url.Values{
		"email": {"ann@example.com"}, "first_name": {"Ann"}, "last_name": {"Lee"}, "phone": {"+49 30 123456"}, "consent": {"1"},
		"q.size": {"L & XL"}, "q.beta": {"1"}, "utm_source": {"news"}, "timezone": {"Europe/Berlin"}, "elapsed_ms": {"4000"},
	}
	status, page = s.post("/w/"+id, right)
	s.wants(status, page, 200, "You are on the list", "moves you up by 7", `data-value="position">1<`, ">of 1<")
	row := s.signup(key, id, "ann@example.com")
	if row["device_type"] != "mobile" || row["phone"] != "+49 30 123456" || fmt.Sprint(row["utm"]) == "map[]" ||
		fmt.Sprint(row["custom_answers"]) != "map[beta:true size:L & XL]" {
		t.Errorf("stored: %v", row)
	}
	if !strings.Contains(page, ref(id, row["referral_token"])) {
		t.Errorf("no link to share\n%s", page)
	}
	right.Set("website", "http://spam.example.com")
	right.Set("email", "bot@example.com")
	status, page = s.post("/w/"+id, right)
	s.wants(status, page, 200, "You are on the list")
	if s.signup(key, id, "bot@example.com") != nil {
		t.Error("the honeypot caught nothing")
	}

	status, page = s.post("/w/"+id+"/status", url.Values{"email": {"ann@example.com"}, "token": {row["referral_token"].(string)}})
	s.wants(status, page, 200, `data-value="position">1<`, ref(id, row["referral_token"]))
	status, page = s.post("/w/"+id+"/status", url.Values{"email": {"nobody@example.com"}})
	s.wants(status, page, 404, `id="email-error"`)
	status, page = s.get("/w/" + id + "/leaderboard")
	s.wants(status, page, 200, "Be the first")

	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{"allowed_email_domains": []string{"example.org"}}})
	right.Del("website")
	status, page = s.post("/w/"+id, right)
	s.wants(status, page, 403, `id="email-error"`, "cannot sign up here")
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{
		"allowed_email_domains": nil, "redirect_url": "https://example.com/thanks?a=b&c", "hide_position": true,
	}})
	status, page = s.post("/w/"+id, right)
	s.wants(status, page, 200, `href="https://example.com/thanks?a=b&amp;c" data-redirect`)
	if strings.Contains(page, "data-value") {
		t.Error("a hidden place is shown")
	}
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{"status": "closed"}})
	status, page = s.post("/w/"+id, right)
	s.wants(status, page, 403, "This waitlist is closed")
	s.awaits("/w/"+id, 200, "This waitlist is closed")
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"name": "Balloons", "settings": object{"status": "open", "headline": ""}})
	s.awaits("/w/"+id, 200, "<h1>Balloons</h1>")
	s.api(http.MethodDelete, "/waitlists/"+id, key, nil)
	s.awaits("/w/"+id, 404, "There is no such page")
	for _, path := range []string{"/w/" + id, "/w/nonsense", "/nothing", "/verify", "/reset-password"} {
		status, page = s.get(path)
		s.wants(status, page, 404, "<h1>There is no such page</h1>")
	}
}

// TestViews counts one view for each form that is shown, and none for its answers. The last
// ones are not lost when the suite stops, and none of them touches the signups' limit.
func TestViews(t *testing.T) {
	t.Parallel()
	env := map[string]string{"POSTGRES_URL": testenv.Postgres(t)}
	dir := e2e.DataDir(t)
	s := startIn(t, dir, env)
	key := s.owner()
	id := s.waitlist(key, nil)
	closed := s.waitlist(key, object{"status": "closed"})
	for i := range 3 {
		s.get("/w/" + id)
		s.get("/w/" + closed)
		s.send(http.MethodHead, "/w/"+id, "", "", http.NoBody)
		s.post("/w/"+id, url.Values{"email": {fmt.Sprintf("p%d@example.com", i)}})
		s.post("/w/"+id, url.Values{"email": {"wrong"}})
	}
	views := func(s *site) (n float64) {
		days, _ := s.api(http.MethodGet, "/waitlists/"+id+"/analytics?range=7d", key, nil)["views_by_day"].(object)
		for _, v := range days {
			n += v.(float64)
		}
		return n
	}
	e2e.Await(t, patience, "three views", func() bool { return views(s) >= 3 })
	if n := views(s); n != 3 {
		t.Errorf("%v views", n)
	}
	const many = 200
	for range many {
		s.get("/w/" + id)
	}
	if err := s.server.Stop(); err != nil {
		t.Fatal(err)
	}
	again := startIn(t, dir, env)
	e2e.Await(t, patience, "the last views", func() bool { return views(again) >= 3+many })
	if n := views(again); n != 3+many {
		t.Errorf("%v views", n)
	}
}

// TestBusy asks a suite for more than its limit. Showing forms takes nothing from it.
func TestBusy(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]string{"RATE_LIMIT_RPS": "1", "RATE_LIMIT_BURST": "4"})
	key := s.owner()
	id := s.waitlist(key, nil)
	form := url.Values{"email": {"ann@example.com"}, "first_name": {"Ann"}}
	var page string
	for status := 0; status != http.StatusTooManyRequests; {
		a := s.send(http.MethodPost, "/w/"+id, "", "application/x-www-form-urlencoded", strings.NewReader(form.Encode()))
		page = a.body
		if status = a.status; status == http.StatusTooManyRequests && a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	s.wants(429, page, 429, "data-seconds=", "try again in", `value="ann@example.com"`)
	for range 20 {
		status, page := s.get("/w/" + id)
		s.wants(status, page, 200, "data-join")
	}
}

// TestSizes bounds what a visitor of the form, and of a site with the widget, has to load.
func TestSizes(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	id := s.waitlist(s.owner(), nil)
	_, page := s.get("/w/" + id)
	parts := map[string]string{"the form": page}
	for _, m := range regexp.MustCompile(`(?:href|src)="(/assets/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		a := s.send(http.MethodGet, m[1], "", "", http.NoBody)
		if a.status != http.StatusOK || !strings.Contains(a.header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", m[1], a.status, a.header)
		}
		parts[m[1]] = a.body
	}
	total := 0
	for name, body := range parts {
		n := compressed(t, body)
		t.Logf("%s: %d bytes compressed", name, n)
		total += n
	}
	if len(parts) != 4 || total > 20_000 {
		t.Errorf("%d parts with %d bytes", len(parts), total)
	}
	if blocking := strings.Count(page, `rel="stylesheet"`) + strings.Count(page, `<script src`); blocking != 1 {
		t.Errorf("%d requests block the page", blocking)
	}

	alias := s.send(http.MethodGet, "/widget.js", "", "", http.NoBody)
	widget := alias.body
	if n := compressed(t, widget); n > 8_000 {
		t.Errorf("the widget has %d bytes", n)
	} else {
		t.Logf("the widget: %d bytes compressed", n)
	}
	if alias.header.Get("Access-Control-Allow-Origin") != "*" {
		t.Error("other sites cannot load the widget with its integrity")
	}
	_, home := s.get("/")
	sum := sha512.Sum384([]byte(widget))
	if want := "sha384-" + base64.StdEncoding.EncodeToString(sum[:]); !strings.Contains(strings.ReplaceAll(home, "&#43;", "+"), want) {
		t.Errorf("the page says another integrity than %s", want)
	}
}

func compressed(t *testing.T, s string) int {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Len()
}
