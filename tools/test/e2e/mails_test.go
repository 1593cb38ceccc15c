package e2e

import (
	"flag"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gosmtp "github.com/emersion/go-smtp"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/testenv"
)

var update = flag.Bool("update", false, "write testdata anew")

// golden compares a mail with testdata/mails. Placeholders stand for values that differ between runs, in all their
// encodings.
func golden(t testing.TB, name string, d *deployment, m Mail, names map[string]string) {
	t.Helper()
	var b strings.Builder
	for _, h := range []string{"From", "To", "Subject", "Auto-Submitted", "List-Unsubscribe", "List-Unsubscribe-Post"} {
		value := m.Header.Get(h)
		if h == "Subject" {
			value = m.Subject
		}
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", h, value)
		}
	}
	if m.Header.Get("Message-Id") == "" || m.Header.Get("Date") == "" {
		t.Errorf("%s has no Message-ID or no Date", name)
	}
	fmt.Fprintf(&b, "\n--- text\n%s\n--- HTML\n%s\n", m.Text, m.HTML)
	got := b.String()
	old := []string{d.server.URL, "<url>"}
	for _, from := range slices.Sorted(maps.Keys(names)) {
		for _, form := range []string{from, url.QueryEscape(from), url.PathEscape(from), strings.ReplaceAll(url.PathEscape(from), "'", "%27")} {
			// The standard library's two HTML escapers differ on '+'.
			old = append(old, form, names[from], html.EscapeString(form), names[from],
				strings.ReplaceAll(html.EscapeString(form), "+", "&#43;"), names[from])
		}
	}
	got = strings.NewReplacer(old...).Replace(got)
	got = regexp.MustCompile(`token=[A-Za-z0-9_.%-]+`).ReplaceAllString(got, "token=<token>")
	got = regexp.MustCompile(`\d+ [A-Z][a-z]+ \d{4}, \d\d:\d\d UTC`).ReplaceAllString(got, "<time>")
	path := filepath.Join("testdata", "mails", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant\n%s", path, got, want)
	}
}

// mailing is a deployment whose mails a test can wait for.
type mailing struct {
	*deployment
	kafka kafka.Config
	// office receives the mails of a deployment that sends by SMTP.
	office *postOffice
}

// mailing deploys the program with a broker that the test can query, and with frequent purges.
func (s *suite) mailing(t *testing.T, env map[string]string) *mailing {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	all := map[string]string{"KAFKA_BROKERS": strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX": prefix, "PURGE_EVERY": "1s"}
	maps.Copy(all, env)
	return &mailing{deployment: s.deploy(t, all), kafka: kafka.Config{Brokers: brokers, TopicPrefix: prefix}}
}

// testMails tests every mail except blasts, from its cause to the targets of its links.
func (s *suite) testMails(t *testing.T) {
	office := newPostOffice(t)
	m := s.mailing(t, office.env)
	m.office = office
	trial := m.endingTrial(t)
	t.Run("account", m.testAccountMails)
	t.Run("verification", m.testVerificationMail)
	t.Run("confirmation", m.testConfirmation)
	t.Run("referral", m.testReferralMail)
	t.Run("link", m.testLinkMail)
	t.Run("milestones", m.testMilestones)
	t.Run("offboarding", m.testOffboarding)
	t.Run("plans", m.testMailPlans)
	t.Run("meanwhile", m.testMeanwhile)
	t.Run("refused", m.testRefusedRecipients)
	t.Run("slow", m.testSlowBlast)
	t.Run("refuses us", m.testServerThatRefusesUs)
	t.Run("trial", func(t *testing.T) { m.testTrialEnding(t, trial) })
}

// one waits for the only mail to an address.
func (m *mailing) one(t testing.TB, to string) Mail {
	t.Helper()
	mails := awaitMails(t, m.office, to, 1)
	if len(mails) != 1 {
		t.Fatalf("%d mails to %s", len(mails), to)
	}
	return mails[0]
}

// settled waits until no work on a waitlist is pending.
func (m *mailing) settled(t testing.TB, waitlist string) {
	t.Helper()
	m.passed(t)
	Await(t, mailTimeout, "no mail is queued", func() bool { return m.queued(t, waitlist) == 0 })
}

// passed waits until messaging has consumed all events so far.
func (m *mailing) passed(t testing.TB) {
	t.Helper()
	Await(t, mailTimeout, "the outboxes are empty", func() bool {
		return m.query(t, "SELECT (SELECT count(*) FROM signup.outbox) + (SELECT count(*) FROM account.outbox)") == 0
	})
	Await(t, mailTimeout, "every event is taken", func() bool {
		lag, err := kafka.Lag(t.Context(), m.kafka, "messaging", kafka.SignupsTopic, kafka.AccountsTopic)
		if err != nil {
			t.Fatal(err)
		}
		return lag[kafka.SignupsTopic]+lag[kafka.AccountsTopic] == 0
	})
}

// queued returns the number of a waitlist's queued mails.
func (m *mailing) queued(t testing.TB, waitlist string) int {
	t.Helper()
	return m.query(t, "SELECT count(*) FROM messaging.sent_mail WHERE waitlist_id = $1 AND state = 'queued'", waitlist)
}

// query returns the number that an SQL query selects.
func (d *deployment) query(t testing.TB, sql string, args ...any) int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var n int
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// away runs f while the mail server refuses connections.
func (m *mailing) away(f func()) {
	m.office.change(func() { m.office.away = true })
	defer m.office.change(func() { m.office.away = false })
	f()
}

func (m *mailing) testAccountMails(t *testing.T) {
	o := m.owner(t)
	confirm := m.one(t, o.email)
	golden(t, "account_verification", m.deployment, confirm, map[string]string{o.email: "<owner>"})
	noUnsubscribe(t, confirm)
	o.Do(t, Post("/auth/verify-email", Obj{"token": confirm.Token(), "password": o.password})).Want(http.StatusOK)

	o.Do(t, Post("/auth/forgot-password", Obj{"email": o.email})).Want(http.StatusAccepted)
	reset := awaitMails(t, m.office, o.email, 2)[1]
	golden(t, "password_reset", m.deployment, reset, map[string]string{o.email: "<owner>"})
	noUnsubscribe(t, reset)
	o.Do(t, Post("/auth/reset-password", Obj{"token": reset.Token(), "password": "another good one"})).Want(http.StatusNoContent)
	o.password = "another good one"
	o.login(t)

	member := address("member")
	o.Do(t, invite(member, "viewer").As(o.token)).Want(http.StatusCreated)
	asked := m.one(t, member)
	golden(t, "team_invite", m.deployment, asked, map[string]string{o.email: "<owner>", member: "<member>"})
	noUnsubscribe(t, asked)
}

// endingTrial returns an owner whose trial ends within a day.
func (m *mailing) endingTrial(t *testing.T) *owner {
	t.Helper()
	o := m.owner(t)
	m.exec(t, `UPDATE account.account SET valid_until = now() + interval '23 hours', created_at = now() - interval '6 days',
		email_verified_at = now() WHERE email = $1`, o.email)
	return o
}

func (m *mailing) testTrialEnding(t *testing.T, o *owner) {
	var told Mail
	Await(t, 100*time.Second, "the end of a trial is told", func() bool {
		mails, err := m.office.Mails(o.email)
		if err != nil {
			t.Fatal(err)
		}
		for _, mail := range mails {
			if strings.Contains(mail.Subject, "trial") {
				told = mail
			}
		}
		return told.To != ""
	})
	golden(t, "trial_ending", m.deployment, told, map[string]string{o.email: "<owner>"})
	noUnsubscribe(t, told)
	if got := inBoxes(t, m.office, o.email); got[0] != 2 {
		t.Errorf("%d mails", got[0])
	}
}

func (m *mailing) testVerificationMail(t *testing.T) {
	o := m.owner(t)
	id := o.waitlist(t, Obj{"require_email_verification": true})
	ada, bob := "o'hara+x%y-"+address("ada"), address("bob")
	for _, p := range []string{ada, bob} {
		o.join(t, id, p)
	}
	mail := m.one(t, ada)
	noUnsubscribe(t, mail)
	golden(t, "signup_verification", m.deployment, mail, map[string]string{id: "<waitlist>", ada: "<ada>"})
	links := mail.Links()
	if len(links) != 1 || links[0].Query().Get("waitlist") != id || links[0].Query().Get("email") != ada {
		t.Fatalf("links %v", links)
	}
	page := links[0]
	o.Do(t, Post(statusPath(id, page.Query().Get("email"))+"/verify", Obj{"token": page.Query().Get("token")})).
		Want(http.StatusOK).WantJSON("verified", true)
	m.one(t, bob)
}

// everything returns a template that uses every placeholder.
func everything(kind string) Obj {
	const all = "{{email}}|{{ first_name }}|{{last_name}}|{{position}}|{{referral_count}}|{{referral_link}}|{{waitlist_name}}"
	more := ""
	if kind == "referral_milestone" {
		more = "|{{milestone}}"
	}
	return Obj{
		"subject_template":   "For {{first_name}} {{last_name}}: {{position}} " + emoji + more,
		"text_body_template": all + more + "\n{{unsubscribe_url}}\n",
		"html_body_template": "<p>" + all + more + "</p>\n<a href=\"{{unsubscribe_url}}\">x</a>",
	}
}

// assigned creates a waitlist with assigned templates of these kinds.
func (o *owner) assigned(t testing.TB, settings Obj, kinds ...string) string {
	t.Helper()
	templates := Obj{}
	for _, kind := range kinds {
		templates[kind] = o.template(t, kind, everything(kind))
	}
	all := Obj{"email_templates": templates}
	maps.Copy(all, settings)
	return o.waitlist(t, all)
}

func (m *mailing) testConfirmation(t *testing.T) {
	o := m.owner(t)
	id := o.assigned(t, Obj{"position_offset": 100}, "signup_confirmation")
	ada := "o'hara+x%y-" + address("ada")
	// Values come from strangers: they may contain markup, headers or placeholders.
	joined := o.join(t, id, ada, Obj{"first_name": "<b>&\"Ada\r\nBcc: eve@example.com", "last_name": "{{email}}"})
	mail := m.one(t, ada)
	if want := "For <b>&\"Ada  Bcc: eve@example.com {{email}}: 101 " + emoji; mail.Subject != want || mail.Header.Get("Bcc") != "" {
		t.Errorf("subject %q, want %q", mail.Subject, want)
	}
	link := m.server.URL + "/w/" + id + "?ref=" + joined.Str("referral_token")
	text := strings.Join([]string{ada, "<b>&\"Ada\nBcc: eve@example.com", "{{email}}", "101", "0", link, "Launch"}, "|")
	if got := strings.SplitAfter(mail.Text, "|Launch")[0]; got != text {
		t.Errorf("text %q, want %q", got, text)
	}
	if !strings.Contains(mail.HTML, "&lt;b&gt;&amp;") || strings.Contains(mail.HTML, "<b>") ||
		!strings.Contains(mail.HTML, "|{{email}}|101|0|") {
		t.Errorf("HTML %q", mail.HTML)
	}
	if mail.Header.Get("List-Unsubscribe") != "" {
		t.Error("the confirmation has an unsubscribe header of marketing mails")
	}
	golden(t, "signup_confirmation", m.deployment, mail, map[string]string{
		id: "<waitlist>", ada: "<ada>", joined.Str("referral_token"): "<referral>",
	})
	// The placeholder of the unsubscribe link works, too.
	for _, u := range mail.Links() {
		if u.Path == "/unsubscribe" {
			o.Do(t, optOut(u)).Want(http.StatusOK)
		}
	}
	if got := o.Do(t, Get("/waitlists/"+id+"/signups").As(o.token)); !strings.Contains(string(got.Body), `"email_opt_out":true`) {
		t.Errorf("no unsubscribe link in %s", mail.Text)
	}

	t.Run("template without text", func(t *testing.T) {
		id := o.assigned(t, Obj{"hide_position": true}, "signup_confirmation")
		bare := address("bare")
		o.join(t, id, bare)
		if got := m.one(t, bare); !strings.HasPrefix(got.Text, bare+"||||0|") || got.Subject != "For  :  "+emoji {
			t.Errorf("%q, %q", got.Subject, got.Text)
		}
	})
	t.Run("one body", func(t *testing.T) {
		for field, body := range map[string]string{"text_body_template": "Just text", "html_body_template": "<p>Just HTML</p>"} {
			tid := o.Do(t, Post("/templates", Obj{"template_type": "signup_confirmation", "subject_template": "x", field: body}).
				As(o.token)).Want(http.StatusCreated).Str("template_id")
			p := address("p")
			o.join(t, o.waitlist(t, Obj{"email_templates": Obj{"signup_confirmation": tid}}), p)
			// HTML alone gets a text part made of it.
			want := strings.NewReplacer("<p>", "", "</p>", "").Replace(body)
			got := m.one(t, p)
			if strings.TrimSpace(got.Text) != want || (got.HTML != "" && strings.TrimSpace(got.HTML) != body) {
				t.Errorf("%q and %q, want %q", got.Text, got.HTML, body)
			}
		}
	})
	t.Run("who gets none", func(t *testing.T) {
		imported, bot, plain := address("imported"), address("bot"), address("plain")
		o.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": []any{Obj{"email": imported}}}).As(o.token)).Want(http.StatusOK)
		o.Do(t, signup(id, bot, Obj{"website": "x"})).Want(http.StatusCreated)
		o.Do(t, signup(id, ada)).Want(http.StatusOK)
		o.join(t, o.waitlist(t, nil), plain)
		m.settled(t, id)
		if got := inBoxes(t, m.office, imported, bot, ada, plain); !slices.Equal(got, []int{0, 0, 1, 0}) {
			t.Errorf("mails %v", got)
		}
	})
	t.Run("with a verification", func(t *testing.T) {
		id := o.assigned(t, Obj{"require_email_verification": true}, "signup_confirmation")
		p := address("both")
		o.join(t, id, p)
		subjects := []string{}
		for _, mail := range awaitMails(t, m.office, p, 2) {
			subjects = append(subjects, mail.Subject[:3])
		}
		slices.Sort(subjects)
		if !slices.Equal(subjects, []string{"Con", "For"}) {
			t.Errorf("subjects %q", subjects)
		}
	})
}

func (m *mailing) testReferralMail(t *testing.T) {
	o := m.owner(t)
	id := o.waitlist(t, Obj{"notify_referrer": true, "position_offset": 10})
	o.join(t, id, address("first"))
	ada := "o'hara+x%y-" + address("ada")
	ref := o.join(t, id, ada, Obj{"first_name": "Ada"}).Str("referral_token")
	refer := func(id, ref string) string {
		t.Helper()
		return o.join(t, id, address("friend"), Obj{"referred_by_token": ref}).Str("referral_token")
	}
	friend := refer(id, ref)
	mail := m.one(t, ada)
	golden(t, "referral_notification", m.deployment, mail, map[string]string{
		id: "<waitlist>", ada: "<ada>", ref: "<referral>",
	})
	page, one := unsubscribeLinks(t, mail, m.deployment, id)
	for range 3 {
		refer(id, ref)
	}
	refer(id, friend) // the limit is per referrer
	m.settled(t, id)
	if got := inBoxes(t, m.office, ada); got[0] != 1 {
		t.Errorf("%d mails within an hour", got[0])
	}
	o.status(t, id, ada).WantJSON("referral_count", 4)
	m.exec(t, `UPDATE messaging.sent_mail SET ended_at = ended_at - interval '61 minutes'
		WHERE waitlist_id = $1 AND kind = 'referral_notification'`, id)
	refer(id, ref)
	refer(id, ref)
	m.settled(t, id)
	if got := inBoxes(t, m.office, ada); got[0] != 2 {
		t.Errorf("%d mails in two hours", got[0])
	}
	t.Run("opted out", func(t *testing.T) {
		for name, leave := range map[string]func(string) Request{
			"by the page":  func(string) Request { return optOut(page) },
			"by one click": func(string) Request { return click(one) },
			"without mails": func(email string) Request {
				return Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": email, "token": m.unsubscribeToken(t, id, email)})
			},
		} {
			t.Run(name, func(t *testing.T) {
				p := ada
				if name == "without mails" {
					p = address("quiet")
					ref := o.join(t, id, p).Str("referral_token")
					o.Do(t, leave(p)).Want(http.StatusOK)
					refer(id, ref)
					m.settled(t, id)
					if got := inBoxes(t, m.office, p); got[0] != 0 {
						t.Errorf("%d mails", got[0])
					}
					return
				}
				o.Do(t, leave(p)).Want(http.StatusOK).WantJSON("success", true)
			})
		}
	})
	t.Run("switched off", func(t *testing.T) {
		id := o.waitlist(t, nil)
		p := address("quiet")
		refer(id, o.join(t, id, p).Str("referral_token"))
		m.settled(t, id)
		if got := inBoxes(t, m.office, p); got[0] != 0 {
			t.Errorf("%d mails", got[0])
		}
	})
}

// testLinkMail has people ask for their link, also of an owner who pays nothing and after an opt-out.
func (m *mailing) testLinkMail(t *testing.T) {
	o := m.owner(t)
	id := o.waitlist(t, Obj{"position_offset": 10})
	ada, bob, nobody := "o'hara+x%y-"+address("ada"), address("bob"), address("nobody")
	ref := o.join(t, id, ada, Obj{"first_name": "Ada"}).Str("referral_token")
	o.join(t, id, bob)
	m.optOutByHand(t, o.Client, id, bob)
	ask := func(email string) string {
		return o.Do(t, Post("/public/waitlists/"+id+"/link", Obj{"email": email})).Want(http.StatusAccepted).Str("message")
	}
	if known, unknown := ask(ada), ask(nobody); known != unknown {
		t.Errorf("somebody on the list reads %q, others %q", known, unknown)
	}
	mail := m.one(t, ada)
	golden(t, "signup_link", m.deployment, mail, map[string]string{id: "<waitlist>", ada: "<ada>", ref: "<referral>"})
	noUnsubscribe(t, mail)
	m.setTier(t, o, "basic", "active")
	ask(bob)
	m.one(t, bob)
	ask(ada)
	m.settled(t, id)
	if got := inBoxes(t, m.office, ada, bob, nobody); !slices.Equal(got, []int{1, 1, 0}) {
		t.Errorf("mails within an hour: %v", got)
	}
	m.exec(t, `UPDATE messaging.sent_mail SET ended_at = ended_at - interval '61 minutes' WHERE waitlist_id = $1`, id)
	ask(ada)
	m.settled(t, id)
	if got := inBoxes(t, m.office, ada); got[0] != 2 {
		t.Errorf("%d mails in two hours", got[0])
	}
	m.deleteMyData(t, o.Client, id, ada)
	m.exec(t, `UPDATE messaging.sent_mail SET ended_at = ended_at - interval '61 minutes' WHERE waitlist_id = $1`, id)
	ask(ada)
	m.settled(t, id)
	if got := inBoxes(t, m.office, ada); got[0] != 2 {
		t.Errorf("%d mails after the deletion", got[0])
	}
}

func (m *mailing) testMilestones(t *testing.T) {
	o := m.owner(t)
	id := o.assigned(t, Obj{"referral_milestones": []any{2, 1, 2, 4}}, "referral_milestone")
	ada := address("ada")
	ref := o.join(t, id, ada, Obj{"first_name": "Ada"}).Str("referral_token")
	refer := func() string {
		email := address("friend")
		o.join(t, id, email, Obj{"referred_by_token": ref})
		return email
	}
	refer()
	first := m.one(t, ada)
	if want := "For Ada :"; !strings.HasPrefix(first.Subject, want) || !strings.HasSuffix(first.Subject, "|1") {
		t.Errorf("subject %q", first.Subject)
	}
	golden(t, "referral_milestone", m.deployment, first, map[string]string{id: "<waitlist>", ada: "<ada>", ref: "<referral>"})
	unsubscribeLinks(t, first, m.deployment, id)
	friend := refer()
	if mails := awaitMails(t, m.office, ada, 2); !strings.HasSuffix(mails[1].Subject, "|2") {
		t.Errorf("subject %q", mails[1].Subject)
	}
	// A removal does not lower the count, so that no milestone is reached twice.
	o.Do(t, Delete("/waitlists/"+id+"/signups/"+friend).As(o.token)).Want(http.StatusNoContent)
	refer()
	o.set(t, id, Obj{"referral_milestones": []any{2, 3}}) // 3 is already passed
	m.settled(t, id)
	if got := inBoxes(t, m.office, ada); got[0] != 2 {
		t.Errorf("%d mails", got[0])
	}
	o.set(t, id, Obj{"referral_milestones": []any{4, 5}})
	refer()
	page, _ := unsubscribeLinks(t, awaitMails(t, m.office, ada, 3)[2], m.deployment, id)
	o.Do(t, optOut(page)).Want(http.StatusOK)
	refer()
	m.settled(t, id)
	if got := inBoxes(t, m.office, ada); got[0] != 3 {
		t.Errorf("%d mails, the last one to a person who opted out", got[0])
	}
	t.Run("without a template", func(t *testing.T) {
		id := o.waitlist(t, Obj{"referral_milestones": []any{1}})
		p := address("p")
		o.join(t, id, address("friend"), Obj{"referred_by_token": o.join(t, id, p).Str("referral_token")})
		m.settled(t, id)
		if got := inBoxes(t, m.office, p); got[0] != 0 {
			t.Errorf("%d mails", got[0])
		}
	})
}

func (m *mailing) testOffboarding(t *testing.T) {
	o := m.owner(t)
	id := o.assigned(t, nil, "offboarding")
	plain := o.waitlist(t, nil)
	ada, out, own, unnoticed := address("ada"), address("out"), address("own"), address("unnoticed")
	for _, p := range []string{ada, out, own} {
		o.join(t, id, p, Obj{"first_name": "Ada", "last_name": "L"})
	}
	o.join(t, plain, unnoticed)
	m.optOutByHand(t, o.Client, id, out)
	for _, p := range []string{ada, out} {
		o.Do(t, Delete("/waitlists/"+id+"/signups/"+p).As(o.token)).Want(http.StatusNoContent)
	}
	o.Do(t, Delete("/waitlists/"+plain+"/signups/"+unnoticed).As(o.token)).Want(http.StatusNoContent)
	token := o.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": own, "token": m.unsubscribeToken(t, id, own)})).
		Want(http.StatusOK).Str("delete_token")
	o.Do(t, Post("/public/waitlists/"+id+"/delete-my-data", Obj{"email": own, "token": token})).Want(http.StatusOK)
	mail := m.one(t, ada)
	if !strings.HasPrefix(mail.Subject, "For Ada L:") {
		t.Errorf("%q", mail.Subject)
	}
	golden(t, "offboarding", m.deployment, mail, map[string]string{id: "<waitlist>", ada: "<ada>"})
	m.one(t, out)
	m.settled(t, id)
	m.settled(t, plain)
	if got := inBoxes(t, m.office, ada, out, own, unnoticed); !slices.Equal(got, []int{1, 1, 0, 0}) {
		t.Errorf("mails %v", got)
	}
}

// testMailPlans checks that below Pro or without an active plan a waitlist sends only the mails that signups need.
func (m *mailing) testMailPlans(t *testing.T) {
	o := m.owner(t)
	id := o.assigned(t, Obj{"notify_referrer": true, "referral_milestones": []any{1}}, "signup_confirmation", "referral_milestone",
		"offboarding")
	for _, state := range [][2]string{{"advanced", "active"}, {"pro", "inactive"}} {
		m.setTier(t, o, state[0], state[1])
		p, friend := address("p"), address("friend")
		ref := o.join(t, id, p).Str("referral_token")
		o.join(t, id, friend, Obj{"referred_by_token": ref})
		if state[1] == "active" {
			o.Do(t, Delete("/waitlists/"+id+"/signups/"+friend).As(o.token)).Want(http.StatusNoContent)
		}
		m.settled(t, id)
		if got := inBoxes(t, m.office, p, friend); !slices.Equal(got, []int{0, 0}) {
			t.Errorf("state %v: mails %v", state, got)
		}
	}
	m.setTier(t, o, "pro", "active")
	p := address("p")
	o.join(t, id, p)
	m.one(t, p)
}

// list is a waitlist with two people who get mails when a friend joins.
type list struct {
	*owner
	id               string
	ada, bob, friend string
}

// testMeanwhile checks that the state at the time of sending decides, not the state when the mail was requested.
func (m *mailing) testMeanwhile(t *testing.T) {
	cases := []struct {
		name   string
		change func(l *list)
		// ada and bob are the numbers of mails that they still get; friend is the number besides a blast.
		ada, bob, friend int
		list             *list
	}{
		{name: "nothing", change: func(*list) {}, ada: 3, bob: 3, friend: 1},
		{name: "opt-out", change: func(l *list) { m.optOutByHand(t, l.Client, l.id, l.ada) }, bob: 3, friend: 1},
		// A removed person is told of the removal.
		{name: "removal", change: func(l *list) {
			l.Do(t, Delete("/waitlists/"+l.id+"/signups/"+l.ada).As(l.token)).Want(http.StatusNoContent)
		}, ada: 1, bob: 3, friend: 1},
		{name: "deletion of the personal data", change: func(l *list) {
			token := l.Do(t, Post("/public/waitlists/"+l.id+"/unsubscribe",
				Obj{"email": l.ada, "token": m.unsubscribeToken(t, l.id, l.ada)})).Want(http.StatusOK).Str("delete_token")
			l.Do(t, Post("/public/waitlists/"+l.id+"/delete-my-data", Obj{"email": l.ada, "token": token})).Want(http.StatusOK)
		}, bob: 3, friend: 1},
		// The blast is sent.
		{name: "other settings", change: func(l *list) { l.set(t, l.id, Obj{"notify_referrer": false, "email_templates": nil}) }, ada: 1, bob: 1},
		{name: "other milestones", change: func(l *list) { l.set(t, l.id, Obj{"referral_milestones": []any{2}}) }, ada: 2, bob: 2, friend: 1},
		{name: "end of the templates", change: func(l *list) {
			for _, id := range l.templates(t) {
				l.Do(t, Delete("/templates/"+id).As(l.token)).Want(http.StatusNoContent)
			}
		}, ada: 2, bob: 2},
		// A blast waits up to a day for its plan to return; this one is past that.
		{name: "end of the plan", change: func(l *list) {
			m.setTier(t, l.owner, "advanced", "active")
			m.exec(t, "UPDATE messaging.blast SET created_at = created_at - interval '25 hours' WHERE waitlist_id = $1", l.id)
		}},
		{name: "end of the list", change: func(l *list) { l.Do(t, Delete("/waitlists/"+l.id).As(l.token)).Want(http.StatusNoContent) }},
		{name: "end of the account", change: func(l *list) { l.Do(t, Delete("/auth/me").As(l.token)).Want(http.StatusNoContent) }},
	}
	for i := range cases {
		l := &list{owner: m.owner(t), ada: address("ada"), bob: address("bob"), friend: address("friend")}
		l.id = l.assigned(t, Obj{"notify_referrer": true, "referral_milestones": []any{1}}, "signup_confirmation",
			"referral_milestone", "offboarding")
		cases[i].list = l
	}
	referrers := map[string]string{}
	for _, tc := range cases {
		for _, p := range []string{tc.list.ada, tc.list.bob} {
			referrers[p] = tc.list.join(t, tc.list.id, p).Str("referral_token")
		}
	}
	for p := range referrers {
		m.one(t, p) // the confirmation
	}
	m.away(func() {
		var asked sync.WaitGroup
		for _, tc := range cases {
			l := tc.list
			l.join(t, l.id, l.friend, Obj{"referred_by_token": referrers[l.ada]})
			l.join(t, l.id, address("friend"), Obj{"referred_by_token": referrers[l.bob]})
			asked.Go(func() {
				if res, err := l.Send(t.Context(), newBlast(l.id, nil).As(l.token)); err != nil || res.Status != http.StatusOK {
					t.Errorf("%s: %v, %v", tc.name, res, err)
				}
			})
		}
		asked.Wait()
		for _, tc := range cases {
			Await(t, mailTimeout, "mails are queued", func() bool { return m.queued(t, tc.list.id) == 6 })
		}
		for _, tc := range cases {
			tc.change(tc.list)
		}
		m.passed(t)
	})
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			l := tc.list
			m.settled(t, l.id)
			Await(t, mailTimeout, "the blast has ended", func() bool {
				return m.query(t, "SELECT count(*) FROM messaging.blast WHERE waitlist_id = $1 AND ended_at IS NULL", l.id) == 0
			})
			if got, want := inBoxes(t, m.office, l.ada, l.bob), []int{1 + tc.ada, 1 + tc.bob}; !slices.Equal(got, want) {
				t.Errorf("mails %v, want %v", got, want)
			}
			mails, err := m.office.Mails(l.friend)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(slices.DeleteFunc(mails, func(mail Mail) bool { return mail.Subject == "News" })); n != tc.friend {
				t.Errorf("%d confirmations", n)
			}
		})
	}
}

// testRefusedRecipients checks that recipients that the mail server rejects count as failed.
func (m *mailing) testRefusedRecipients(t *testing.T) {
	o := m.owner(t)
	id := o.waitlist(t, nil)
	good, bad := address("good"), address("bad")
	m.office.change(func() { m.office.refused[bad] = true })
	o.join(t, id, bad)
	r := o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK)
	r.WantJSON("status", "failed").WantJSON("recipient_count", 1).WantJSON("failed_count", 1)
	o.join(t, id, good)
	o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("status", "sent").WantJSON("recipient_count", 2).
		WantJSON("failed_count", 1)
	m.one(t, good)
	if log := m.server.Log(); strings.Contains(log, bad) || strings.Contains(log, good) {
		t.Error("the log names a recipient")
	}
}

// testServerThatRefusesUs checks that mails wait for a mail server that refuses everybody for a while, and arrive once.
func (m *mailing) testServerThatRefusesUs(t *testing.T) {
	o := m.owner(t)
	blasted, verified := o.waitlist(t, nil), o.waitlist(t, Obj{"require_email_verification": true})
	var people []string
	var rows []any
	for range 27 {
		people = append(people, address("p"))
		rows = append(rows, Obj{"email": people[len(people)-1]})
	}
	o.Do(t, Post("/waitlists/"+blasted+"/import", Obj{"signups": rows}).As(o.token)).Want(http.StatusOK)
	m.one(t, o.email)
	failed := func() int {
		return m.query(t, "SELECT (SELECT count(*) FROM messaging.sent_mail WHERE state = 'failed') + "+
			"(SELECT count(*) FROM messaging.blast_recipient WHERE state = 'failed')")
	}
	before := failed()

	m.office.change(func() {
		m.office.refusing, m.office.refusals = 0, []refusal{
			{"rcpt", 504, gosmtp.EnhancedCode{5, 5, 2}}, // EHLO without a dot
			{"rcpt", 554, gosmtp.EnhancedCode{5, 7, 1}}, // relaying is denied
			{"data", 550, gosmtp.EnhancedCode{5, 4, 5}}, // the day's quota is used up
			{"rcpt", 530, gosmtp.EnhancedCode{5, 7, 0}},
			{"rcpt", 550, gosmtp.NoEnhancedCode},
		}
	})
	o.Do(t, newBlast(blasted, nil).As(o.token)).Want(http.StatusOK).WantJSON("status", "sending").WantJSON("failed_count", 0)
	for range 5 {
		people = append(people, address("v"))
		o.join(t, verified, people[len(people)-1])
	}
	Await(t, mailTimeout, "every refusal has come several times, for verifications too", func() bool {
		m.office.mu.Lock()
		defer m.office.mu.Unlock()
		return m.office.refusing >= 25
	})
	m.office.change(func() { m.office.refusals = nil })
	if got := o.awaitBlast(t, blasted); got.Recipients != 27 || got.Failed != 0 {
		t.Errorf("%+v", got)
	}
	m.passed(t)
	Await(t, 2*time.Minute, "no mail is queued", func() bool { return m.queued(t, verified) == 0 })
	for i, n := range inBoxes(t, m.office, people...) {
		if n != 1 {
			t.Errorf("%s got %d mails", people[i], n)
		}
	}
	if n := failed() - before; n != 0 {
		t.Errorf("%d mails failed", n)
	}
	if m.office.hello != "waitlist.example" {
		t.Errorf("EHLO %s", m.office.hello)
	}
}

// testSlowBlast checks that a slow blast is answered before it is done, and then continues.
func (m *mailing) testSlowBlast(t *testing.T) {
	const people = 60
	o := m.owner(t)
	id := o.waitlist(t, nil)
	rows := make([]any, people)
	for i := range rows {
		rows[i] = Obj{"email": address("p")}
	}
	o.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": rows}).As(o.token)).Want(http.StatusOK)
	m.office.change(func() { m.office.pause = 500 * time.Millisecond })
	r := o.Do(t, newBlast(id, nil).As(o.token)).Want(http.StatusOK).WantJSON("status", "sending")
	if r.Took < 4*time.Second || r.Took > 7*time.Second {
		t.Errorf("answered after %s", r.Took)
	}
	m.office.change(func() { m.office.pause = 0 })
	if got := o.awaitBlast(t, id); got.Recipients != people || got.Failed != 0 {
		t.Errorf("%+v", got)
	}
	for _, row := range rows {
		if got := inBoxes(t, m.office, row.(Obj)["email"].(string)); got[0] != 1 {
			t.Errorf("%d mails", got[0])
		}
	}
}
