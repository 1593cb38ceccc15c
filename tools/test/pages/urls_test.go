package pages_test

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/messaging/providers/twiliotest"
	"waitlist.internal/tools/test/e2e"
)

// TestEveryURL opens every URL of every mail and text message, of the banner, and of every page that these lead to.
func TestEveryURL(t *testing.T) {
	t.Parallel()
	texts := &twiliotest.Server{AccountSID: "AC0123456789abcdef0123456789abcdef", AuthToken: "secret"}
	phones := httptest.NewServer(texts)
	t.Cleanup(phones.Close)
	db := testenv.Postgres(t)
	s := start(t, map[string]string{
		"POSTGRES_URL": db, "SMS_PROVIDER": "twilio", "TWILIO_ACCOUNT_SID": texts.AccountSID, "TWILIO_AUTH_TOKEN": texts.AuthToken,
		"TWILIO_FROM": "+15005550006", "TWILIO_URL": phones.URL, "SMS_COUNTRIES": "DE", "SMS_TRIALS": "true",
	})
	conn, err := pgx.Connect(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	key := s.owner()
	// Notices go to verified addresses only.
	token := func(n int, path string) string {
		link, err := url.Parse(s.mailed("owner@example.com", n, path))
		if err != nil {
			t.Fatal(err)
		}
		return link.Query().Get("token")
	}
	s.api(http.MethodPost, "/auth/verify-email", key, object{"token": token(1, "/verify-email")})
	s.api(http.MethodPost, "/auth/forgot-password", "", object{"email": "owner@example.com"})
	s.api(http.MethodPost, "/auth/reset-password", "", object{"token": token(2, "/reset-password"), "password": password})
	if _, err := conn.Exec(t.Context(), `UPDATE account.account SET valid_until = now() + interval '23 hours',
		created_at = now() - interval '6 days'`); err != nil {
		t.Fatal(err)
	}
	templates := object{}
	for _, kind := range []string{"signup_confirmation", "referral_milestone", "offboarding"} {
		templates[kind] = s.api(http.MethodPost, "/templates", key, object{
			"template_type": kind, "subject_template": kind, "html_body_template": `<a href="{{referral_link}}">x</a> {{unsubscribe_url}}`,
		})["template_id"]
	}
	id := s.waitlist(key, object{
		"email_templates": templates, "referral_milestones": []int{1}, "require_email_verification": true,
		"notify_referrer": true, "sms_notify_referrer": true, "phone_field": "optional",
	})
	ann := s.api(http.MethodPost, "/public/waitlists/"+id+"/signups", "", object{"email": "ann@example.com", "phone": "+49 151 12345678"})
	s.api(http.MethodPost, "/public/waitlists/"+id+"/signups", "", object{
		"email": "bob@example.com", "referred_by_token": ann["referral_token"],
	})
	s.api(http.MethodPost, "/public/waitlists/"+id+"/link", "", object{"email": "ann@example.com"})
	s.api(http.MethodPost, "/waitlists/"+id+"/blasts", key, object{"subject": "News", "html_body": "{{unsubscribe_url}}"})
	s.api(http.MethodPost, "/team/invite", key, object{"email": "guest@example.com"})
	s.api(http.MethodPost, "/auth/change-password", key, object{"current_password": password, "password": password})
	session := s.api(http.MethodPost, "/auth/login", "", object{"email": "owner@example.com", "password": password})
	key = s.api(http.MethodPost, "/auth/regenerate-api-key", session["id_token"].(string), nil)["api_key"].(string)
	// What bob left is sent before the removal would cancel it.
	s.server.AwaitMails(t, "bob@example.com", 3)
	s.api(http.MethodDelete, "/waitlists/"+id+"/signups/bob@example.com", key, nil)
	s.allSent(conn)

	var urls []string
	for to, n := range map[string]int{"owner@example.com": 6, "ann@example.com": 6, "bob@example.com": 4, "guest@example.com": 1} {
		mails := s.server.AwaitMails(t, to, n)
		if len(mails) != n {
			t.Errorf("%d mails to %s, want %d", len(mails), to, n)
		}
		for _, mail := range mails {
			for _, link := range mail.Links() {
				urls = append(urls, link.String())
			}
		}
	}
	anywhere := regexp.MustCompile(`https?://[^\s"'<>]+`)
	for _, message := range texts.Messages() {
		urls = append(urls, anywhere.FindAllString(message.Body, -1)...)
	}
	banner, _, _ := strings.Cut(s.server.Log(), "Register, create")
	banner = strings.ReplaceAll(banner[strings.Index(banner, "The waitlist service"):], "<waitlist_id>", id)
	for _, u := range anywhere.FindAllString(banner, -1) {
		urls = append(urls, strings.TrimRight(u, ","))
	}
	for _, path := range []string{
		"/", "/w/" + id, "/w/" + id + "/status", "/w/" + id + "/leaderboard", "/billing", "/billing/success", "/billing/canceled",
	} {
		urls = append(urls, s.server.URL+path)
	}
	s.crawl(urls)
	// The header of mails that people can opt out of is for mail programs, which POST.
	for _, mail := range s.server.AwaitMails(t, "ann@example.com", 6) {
		if to := strings.Trim(mail.Header.Get("List-Unsubscribe"), "<>"); to != "" {
			a := s.send(http.MethodPost, to, "", "application/x-www-form-urlencoded", strings.NewReader("List-Unsubscribe=One-Click"))
			if a.status != http.StatusOK {
				t.Errorf("%s: %d %s", to, a.status, a.body)
			}
		}
	}
}

// allSent waits until there has been a mail or a text message of each built-in text and template, and none is queued.
func (s *site) allSent(conn *pgx.Conn) {
	s.Helper()
	files, err := os.ReadDir("../../../services/messaging/mails/texts")
	if err != nil {
		s.Fatal(err)
	}
	want := []string{"signup_confirmation", "referral_milestone", "offboarding"}
	for _, f := range files {
		if kind, ok := strings.CutSuffix(f.Name(), ".txt"); ok && kind != "footer" {
			want = append(want, kind)
		}
	}
	slices.Sort(want)
	var sent []string
	e2e.Await(s, 2*patience, strings.Join(want, ", "), func() bool {
		rows, err := conn.Query(s.Context(), "SELECT DISTINCT kind FROM messaging.sent_mail WHERE state = 'sent' ORDER BY kind")
		if err != nil {
			s.Fatal(err)
		}
		if sent, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			s.Fatal(err)
		}
		return slices.Equal(sent, want)
	})
}

// crawl opens URLs of this site and what their pages lead to. The API's own, which the banner
// names, is for programs.
func (s *site) crawl(urls []string) {
	s.Helper()
	link := regexp.MustCompile(`(?:href|src)="([^"#]+)`)
	// The inbox's address holds a key, which its links need as a cookie. A redirect is no page.
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.Fatal(err)
	}
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	seen := map[string]bool{}
	for len(urls) > 0 {
		at := strings.ReplaceAll(urls[0], "&amp;", "&")
		urls = urls[1:]
		u, err := url.Parse(at)
		if err != nil {
			s.Errorf("%s: %v", at, err)
			continue
		}
		u = (&url.URL{Scheme: "http", Host: s.server.Addr}).ResolveReference(u)
		if u.Host != s.server.Addr || u.Path == "/v1" || seen[u.String()] {
			continue
		}
		seen[u.String()] = true
		// Without the header of a proxy, which the inbox refuses.
		req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, u.String(), http.NoBody)
		if err != nil {
			s.Fatal(err)
		}
		res, err := browser.Do(req)
		if err != nil {
			s.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			s.Errorf("%s: %d %v", u, res.StatusCode, err)
		}
		if strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
			for _, m := range link.FindAllSubmatch(body, -1) {
				urls = append(urls, string(m[1]))
			}
		}
	}
	s.Logf("%d addresses", len(seen))
	if len(seen) < 25 {
		s.Errorf("only %d addresses were opened", len(seen))
	}
}
