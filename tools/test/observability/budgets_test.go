package observability_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// paymentSecret signs the payment provider's events.
const paymentSecret = "whsec_of_the_test"

// pace is the rules' time from one look to the next while a budget burns: rates of five minutes need two looks.
const pace = 4 * time.Minute

// late is how many signups have late effects.
const late = 60

// burns are the four alerts on an objective's budget.
func burns(objective string) []string {
	name := "Budget" + objective
	return []string{name + "/critical/1h", name + "/critical/6h", name + "/warning/1d", name + "/warning/3d"}
}

// trigger makes each new row of a table run a statement of PL/pgSQL.
func trigger(schema, table, statement string) (begin, end func(*running)) {
	return func(r *running) {
			r.psql(fmt.Sprintf(`CREATE FUNCTION %[1]s.fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %[3]s; RETURN NEW; END $$;
				CREATE TRIGGER fault BEFORE INSERT ON %[1]s.%[2]s FOR EACH ROW EXECUTE FUNCTION %[1]s.fault()`, schema, table, statement))
		}, func(r *running) {
			r.psql(fmt.Sprintf(`DROP FUNCTION %s.fault CASCADE`, schema))
		}
}

// statements runs one statement at the beginning and another at the end.
func statements(first, last string) (begin, end func(*running)) {
	return func(r *running) { r.psql(first) }, func(r *running) { r.psql(last) }
}

// delayed keeps a service's inbox locked while people sign up and for some seconds more, and waits until a counter
// has risen by an amount.
func delayed(schema string, seconds int, counter string, rise float64) func(*running) {
	lock, release := holds(fmt.Sprintf(`BEGIN; LOCK TABLE %s.inbox IN ACCESS EXCLUSIVE MODE`, schema))
	return func(r *running) {
		count := func() float64 {
			now, _ := scrape(r, r.metrics)
			return total(now, counter)
		}
		before := count()
		lock(r)
		for range late {
			r.comes()
		}
		r.psql(fmt.Sprintf(`SELECT pg_sleep(%d)`, seconds))
		release(r)
		r.await("late effects", func() bool { return count() >= before+rise })
	}
}

// budgetFaults burn the budget of each objective for so long that all four alerts on it fire.
func budgetFaults() map[string]fault {
	burn := func(objective string, meanwhile func(*running), may ...string) func(begin, end func(*running)) fault {
		return func(begin, end func(*running)) fault {
			return fault{step: pace, meanwhile: meanwhile, begin: begin, end: end, want: burns(objective), may: may}
		}
	}
	page := func(r *running) {
		r.at(http.MethodGet, strings.TrimSuffix(r.api, "/v1")+"/w/"+r.list+"/leaderboard", http.Header{"Accept": {"text/html"}}, "")
	}
	return map[string]fault{
		"Postgres refuses signups": burn("SignupAnswered", (*running).comes)(trigger("signup", "signup", `RAISE EXCEPTION 'the disk is full'`)),
		"signups take 300 ms":      burn("SignupFast", (*running).comes)(trigger("signup", "signup", `PERFORM pg_sleep(0.3)`)),
		"waitlists cannot be read": burn("PublicReads", func(r *running) { r.try("GET", "/public/waitlists/"+r.list+"/config", "", "") })(
			statements(`ALTER TABLE signup.owner RENAME TO gone`, `ALTER TABLE signup.gone RENAME TO owner`)),
		"sums cannot be read": burn("OwnersApi", func(r *running) { r.try("GET", "/waitlists/"+r.list+"/analytics", r.key, "") })(
			statements(`ALTER TABLE admin_analytics.day RENAME TO gone`, `ALTER TABLE admin_analytics.gone RENAME TO day`)),
		"payment events cannot be written": burn("PaymentsTaken", (*running).pays)(
			trigger("billing", "provider_event", `RAISE EXCEPTION 'the disk is full'`)),
		// The page reads the interface as everybody does.
		"leaderboards cannot be read": burn("PagesAnswered", page, "BudgetPublicReads/critical", "BudgetPublicReads/warning")(
			statements(`ALTER TABLE signup.owner RENAME TO gone`, `ALTER TABLE signup.gone RENAME TO owner`)),
		"leaderboards take 600 ms": burn("PagesFast", page)(statements(
			`ALTER TABLE signup.owner RENAME TO slow; CREATE VIEW signup.owner AS SELECT slow.* FROM signup.slow, pg_sleep(0.6)`,
			`DROP VIEW signup.owner; ALTER TABLE signup.slow RENAME TO owner`)),
		"analytics 11 s behind": {
			step: pace, want: burns("EventsFresh"), meanwhile: (*running).comes,
			begin: delayed("admin_analytics", 11, "kafka_consumer_handled_total", 2*late), end: func(*running) {},
		},
		"notifications 6 s behind": {
			step: pace, want: burns("WebhookSoon"), meanwhile: (*running).comes,
			begin: delayed("notifier", 6, "notifier_delay_seconds_count", late), end: func(*running) {},
		},
		"a mail two minutes late": {
			step: pace, want: burns("MailSoon"),
			begin: func(r *running) {
				r.mail.answer.Store("451 4.7.1 later")
				r.forgets()
				put := func() float64 {
					now, _ := scrape(r, r.metrics)
					return outcome(now, "deferred")
				}
				before := put()
				r.await("a mail put off", func() bool { return put() > before })
				r.mail.answer.Store("")
				r.psql(`UPDATE messaging.sent_mail SET requested_at = requested_at - interval '2 minutes', due_at = now() WHERE state = 'queued'`)
				r.await("the mail", func() bool {
					now, _ := scrape(r, r.metrics)
					return len(now) > 0 && total(now, "messaging_oldest_seconds") == 0
				})
			},
			end: func(*running) {},
		},
	}
}

// outcome is how many attempts to send a mail had an outcome.
func outcome(samples []sample, outcome string) (sum float64) {
	for _, s := range samples {
		if s.name() == "messaging_mails_total" && s.labels.Get("outcome") == outcome {
			sum += s.value
		}
	}
	return sum
}

// pays is the payment provider, which tells of a customer that nobody knows.
func (r *running) pays() {
	n := r.number.Add(1)
	payload := fmt.Sprintf(
		`{"id":"evt_%[1]d","object":"event","type":"customer.updated","data":{"object":{"id":"cus_%[1]d","object":"customer"}}}`, n)
	now := time.Now().Unix()
	mac := hmac.New(sha256.New, []byte(paymentSecret))
	_, _ = fmt.Fprintf(mac, "%d.%s", now, payload)
	r.at(http.MethodPost, r.api+"/billing/webhook", http.Header{"Stripe-Signature": {fmt.Sprintf("t=%d,v1=%x", now, mac.Sum(nil))}}, payload)
}
