package deploy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/tools/internal/mailfile"
	"waitlist.internal/tools/test/chaos"
)

// settled is how long the suite may take to work off what it holds: a broker waits ten
// seconds for a dead consumer, notifiers wait twenty for a dead one.
const settled = 2 * time.Minute

// receiver is the owner's server. It counts the messages that came.
type receiver struct {
	mu  sync.Mutex
	got map[notice]int
	bad []string
}

// notice is what a webhook tells: a signup, or somebody's so many-th referral.
type notice struct {
	event, email string
	referrals    int64
}

func newReceiver() *receiver { return &receiver{got: map[notice]int{}} }

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return // the notifier was killed
	}
	var hook struct {
		Event string `json:"event"`
		Data  struct {
			Email         string `json:"email"`
			ReferralCount int64  `json:"referral_count"`
		} `json:"data"`
	}
	// Attempts must be under way when the notifier is killed.
	defer pause(req.Context(), 100*time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := json.Unmarshal(raw, &hook); err != nil {
		r.bad = append(r.bad, string(raw))
		return
	}
	r.got[notice{hook.Event, hook.Data.Email, hook.Data.ReferralCount}]++
}

// auditor compares what people and owners were told with tables, index, topic, ledgers,
// aggregates, mails and receivers.
type auditor struct {
	*mix

	stored, events, missing, unknown, audits int
	blastMails                               int
}

// newAuditor notes from now on how deliveries end, for the notifier keeps the last hundred.
func newAuditor(m *mix) *auditor {
	m.t.Helper()
	a := &auditor{mix: m}
	conn := a.connect()
	defer conn.Close(m.t.Context())
	if _, err := conn.Exec(m.t.Context(), `
		CREATE TABLE public.ended (event_id uuid, event text, number bigint, referral_count bigint, outcome text);
		CREATE FUNCTION public.note_end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			INSERT INTO public.ended VALUES (NEW.event_id, NEW.event, NEW.number, NEW.referral_count, NEW.outcome);
			RETURN NULL;
		END $$;
		CREATE TRIGGER note_end AFTER UPDATE ON notifier.delivery FOR EACH ROW
			WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION public.note_end();
		CREATE TRIGGER note_dropped AFTER INSERT ON notifier.delivery FOR EACH ROW
			WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION public.note_end()`); err != nil {
		m.t.Fatal(err)
	}
	return a
}

// connect returns a connection to the Postgres of now.
func (a *auditor) connect() *pgx.Conn {
	a.t.Helper()
	conn, err := pgx.Connect(a.t.Context(), a.s.db.url("postgres"))
	if err != nil {
		a.t.Fatal(err)
	}
	return conn
}

func (a *auditor) summary() string {
	return fmt.Sprintf("%d audits; %d signups acknowledged, %d stored; %d imported; %d blasts with %d mails; %d payments; "+
		"%d events delivered again; %d webhooks ended without a delivery, %d unknown",
		a.audits, len(a.acks), a.stored, len(a.imported), len(a.blasts), a.blastMails, len(a.paid), a.events, a.missing, a.unknown)
}

// audit waits until the suite has settled and compares everything. The mix must have ended.
func (a *auditor) audit() {
	a.t.Helper()
	begin := time.Now()
	a.audits++
	conn := a.connect()
	defer conn.Close(a.t.Context())
	a.settle(conn)
	worked := time.Since(begin)
	url := a.s.db.server.URL(databaseName)
	stored := chaos.AuditRows(a.t, url, a.signups, a.acks)
	a.stored = len(stored)
	// Places first: an index that missed a change while Redis was away follows when somebody asks.
	chaos.AuditStatus(a.t, a.s.url("signup", "/v1/public/waitlists/"+a.signups), stored)
	chaos.AuditIndex(a.t, a.s.base["REDIS_URL"], a.signups, stored)
	chaos.AuditAnalytics(a.t, url, a.signups, stored)
	a.events = chaos.AuditEvents(a.t, strings.Split(a.s.base["KAFKA_BROKERS"], ","), a.signups, stored)
	a.auditCounts(conn)
	a.auditImports(conn)
	a.auditWebhooks(conn)
	a.auditMails(conn)
	a.auditPayments(conn)
	a.t.Logf("settled in %v, audited in %v: %s", worked.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), a.summary())
}

// settle waits until nothing is under way.
func (a *auditor) settle(conn *pgx.Conn) {
	a.t.Helper()
	var left []string
	deadline := time.Now().Add(settled)
	for {
		left = left[:0]
		for what, sql := range map[string]string{
			"outbox": `SELECT (SELECT count(*) FROM account.outbox) + (SELECT count(*) FROM signup.outbox)
				+ (SELECT count(*) FROM messaging.outbox)`,
			"blasts":     `SELECT count(*) FROM messaging.blast WHERE ended_at IS NULL`,
			"mails":      `SELECT count(*) FROM messaging.sent_mail WHERE state = 'queued'`,
			"deliveries": `SELECT count(*) FROM notifier.delivery WHERE ended_at IS NULL`,
			"pushes":     `SELECT count(*) FROM billing.subscriber WHERE push_at IS NOT NULL`,
			"arrivals":   `SELECT count(*) FROM admin_analytics.arrival`,
			"mails to send": `SELECT (SELECT count(*) FROM signup.signup WHERE waitlist_id = '` + a.signups + `')
				- (SELECT count(*) FROM messaging.sent_mail WHERE kind = 'signup_confirmation')`,
			"webhooks to send": `SELECT (SELECT count(*) + sum(referral_count) FROM signup.signup WHERE waitlist_id = '` + a.signups + `')
				- (SELECT count(*) FROM public.ended)`,
			"counts": `SELECT (SELECT count(*) FROM signup.signup)
				- (SELECT coalesce(sum(signups), 0) FROM admin_analytics.day)::bigint`,
		} {
			var n int
			if err := conn.QueryRow(a.t.Context(), sql).Scan(&n); err != nil {
				a.t.Fatalf("%s: %v", what, err)
			}
			if n != 0 {
				left = append(left, fmt.Sprint(what, " ", n))
			}
		}
		if n := len(a.s.sim.Pending()); n > 0 {
			left = append(left, fmt.Sprint("events of payments ", n))
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			a.t.Errorf("not settled in %v: %v", settled, left)
			return
		}
		pause(a.t.Context(), 200*time.Millisecond)
	}
}

// auditCounts compares the sums of analytics with the rows, and looks for dead letters.
func (a *auditor) auditCounts(conn *pgx.Conn) {
	a.t.Helper()
	for what, sql := range map[string]string{
		"signups by origin": `SELECT (SELECT count(*) FROM signup.signup WHERE utm_source <> '')
			- (SELECT coalesce(sum(count), 0) FROM admin_analytics.utm_value)::bigint`,
		"rows in buckets": `SELECT (SELECT count(*) FROM signup.signup) - (SELECT sum(live) FROM signup.queue_bucket)::bigint`,
		"parked events": `SELECT (SELECT count(parked_at) FROM account.outbox) + (SELECT count(parked_at) FROM signup.outbox)
			+ (SELECT count(parked_at) FROM messaging.outbox)`,
	} {
		var n int
		if err := conn.QueryRow(a.t.Context(), sql).Scan(&n); err != nil || n != 0 {
			a.t.Errorf("%s: %d too many or too few, %v", what, n, err)
		}
	}
}

// column returns the texts that a statement selects.
func (a *auditor) column(conn *pgx.Conn, sql string, args ...any) []string {
	a.t.Helper()
	rows, err := conn.Query(a.t.Context(), sql, args...)
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

// auditImports requires every acknowledged row, and each import whole.
func (a *auditor) auditImports(conn *pgx.Conn) {
	a.t.Helper()
	there := map[string]bool{}
	whole := map[string]int{}
	for _, email := range a.column(conn, `SELECT email FROM signup.signup WHERE waitlist_id = $1`, a.bulk) {
		there[email] = true
		batch, _, _ := strings.Cut(email, ".")
		whole[batch]++
	}
	for _, email := range a.imported {
		if !there[email] {
			a.t.Errorf("%s was imported, but is not stored", email)
		}
	}
	for batch, n := range whole {
		if n != imports {
			a.t.Errorf("%d rows of the import %s are stored, of %d", n, batch, imports)
		}
	}
}

// auditWebhooks requires that nothing came twice or without its cause, and that everything
// came but what the notifier says to have failed.
func (a *auditor) auditWebhooks(conn *pgx.Conn) {
	a.t.Helper()
	rows, err := conn.Query(a.t.Context(), `
		SELECT e.event, s.email, e.referral_count, e.outcome
		FROM public.ended e JOIN signup.signup s ON s.waitlist_id = $1 AND s.number = e.number`, a.signups)
	if err != nil {
		a.t.Fatal(err)
	}
	ended := map[notice]string{}
	var n notice
	var outcome string
	if _, err := pgx.ForEachRow(rows, []any{&n.event, &n.email, &n.referrals, &outcome}, func() error {
		if n.event == "signup.created" {
			n.referrals = 0
		}
		if ended[n] != "" {
			a.t.Errorf("two deliveries ended: %v, %s and %s", n, ended[n], outcome)
		}
		ended[n] = outcome
		return nil
	}); err != nil {
		a.t.Fatal(err)
	}
	a.s.hooks.mu.Lock()
	defer a.s.hooks.mu.Unlock()
	got := a.s.hooks.got
	if len(a.s.hooks.bad) > 0 {
		a.t.Errorf("the receiver cannot read %q", a.s.hooks.bad)
	}
	for n, times := range got {
		if ended[n] == "" {
			a.t.Errorf("%v came without a delivery", n)
		}
		if times > 1 {
			a.t.Errorf("%v came %d times", n, times)
		}
	}
	a.missing, a.unknown = 0, 0
	for n, outcome := range ended {
		switch outcome {
		case "delivered":
			if got[n] == 0 {
				a.t.Errorf("%v is said to be delivered, but never came", n)
			}
			continue
		case "unknown":
			a.unknown++
		default:
			a.t.Errorf("%v ended as %s", n, outcome)
		}
		if got[n] == 0 {
			a.missing++
		}
	}
	// Each referral was told with a number of its own.
	for _, n := range a.column(conn, `SELECT number || '/' || k FROM signup.signup, generate_series(1, referral_count) k
			WHERE waitlist_id = $1 EXCEPT SELECT number || '/' || referral_count FROM public.ended WHERE event = 'referral.credited'`, a.signups) {
		a.t.Errorf("the referral %s has no delivery", n)
	}
}

// auditMails requires one welcome for each signup and one mail of each blast for each of the
// club, and no others.
func (a *auditor) auditMails(conn *pgx.Conn) {
	a.t.Helper()
	welcomes := a.column(conn, `SELECT s.email FROM messaging.sent_mail m
		JOIN signup.signup s ON s.waitlist_id = m.waitlist_id AND s.number = m.number
		WHERE m.kind = 'signup_confirmation' AND m.state = 'sent'`)
	mails, err := mailfile.All(os.DirFS(a.s.mails))
	if err != nil {
		a.t.Fatal(err)
	}
	got := map[string][]string{}
	for _, m := range mails {
		got[m.Subject] = append(got[m.Subject], m.To)
	}
	same := func(what string, got, want []string) {
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			a.t.Errorf("%s: %d mails, want %d", what, len(got), len(want))
		}
	}
	same("the ledger of welcomes", welcomes, a.column(conn, `SELECT email FROM signup.signup WHERE waitlist_id = $1`, a.signups))
	same("welcomes", got["Welcome"], welcomes)
	members := a.column(conn, `SELECT email FROM signup.signup WHERE waitlist_id = $1`, a.club)
	a.blastMails = 0
	for _, subject := range a.blasts {
		same(subject, got[subject], members)
		a.blastMails += len(got[subject])
	}
	same("blasts", a.column(conn, `SELECT subject FROM messaging.blast
		WHERE state = 'sent' AND recipient_count = $1 AND failed_count = 0`, club), slices.Clone(a.blasts))
}

// auditPayments requires that whoever paid has the plan, once, and nobody else.
func (a *auditor) auditPayments(conn *pgx.Conn) {
	a.t.Helper()
	active := a.column(conn, `SELECT email FROM account.account WHERE status = 'active' AND tier = 'pro' AND NOT trial`)
	paid := slices.Clone(a.paid)
	slices.Sort(active)
	slices.Sort(paid)
	if !slices.Equal(active, paid) {
		a.t.Errorf("%d accounts have a plan, %d paid", len(active), len(paid))
	}
	customers := `SELECT customer_id FROM billing.subscriber WHERE customer_id IS NOT NULL AND subscription_id <> ''`
	for _, customer := range a.column(conn, customers) {
		if n := len(a.s.sim.Current(customer)); n != 1 {
			a.t.Errorf("the customer %s has %d subscriptions", customer, n)
		}
	}
}
