// Package observability has the objectives, alerts and dashboards of the suite as data, and
// writes from them what Prometheus, Grafana and people read. Expressions are PromQL, with
// $NS for the selector of the release's namespace; dashboards narrow it to a service.
package observability

import "fmt"

// Objective is a promise about a share of events, kept over Window.
type Objective struct {
	// Name is the value of the label slo.
	Name string
	// Title and Promise are for people.
	Title, Promise string
	// Target is the share of good events.
	Target float64
	// Bad and All are rates of events over [5m], one series each.
	Bad, All string
	// Runbook is what the alert on its budget says.
	Runbook Runbook
}

// Window is the time over which objectives hold.
const Window = "30d"

// responses returns the rate of those answers of the public interface that match more.
func responses(more string) string {
	return fmt.Sprintf("sum(rate(http_server_responses_total{$NS,%s}[5m]))", more)
}

func failed(more string) string { return responses(more + `,http_response_status_code=~"5.."`) }

// slower returns the rates of the events beyond a bound of a histogram and of all its
// events. The bound must be a bucket's, so that the rate is exact.
func slower(metric, more, bound string) (bad, all string) {
	all = fmt.Sprintf("sum(rate(%s_count{$NS%s}[5m]))", metric, more)
	return fmt.Sprintf(`%s - sum(rate(%s_bucket{$NS%s,le=~"%s"}[5m]))`, all, metric, more, bound), all
}

const (
	signups = `http_route="/v1/public/waitlists/:waitlist_id/signups",http_request_method="POST"`
	reads   = `http_route=~"/v1/public/.*",http_request_method="GET"`
	payment = `http_route="/v1/billing/webhook",http_request_method="POST"`
	owners  = `http_route=~"/v1/.*",http_route!~"/v1/public/.*|/v1/billing/webhook"`
	pages   = `service="pages"`
)

// Objectives returns all objectives.
func Objectives() []Objective {
	fastBad, fastAll := slower("http_server_request_duration_seconds", ","+signups, "0.25")
	pageBad, pageAll := slower("http_server_request_duration_seconds", ","+pages, "0.5")
	freshBad, freshAll := slower("kafka_consumer_event_delay_seconds", "", "10|10.0")
	hookBad, hookAll := slower("notifier_delay_seconds", "", "5|5.0")
	mailBad, mailAll := slower("messaging_mail_delay_seconds", "", "60|60.0")
	return []Objective{
		{
			"signup_answered", "Signups are answered", "99.9 % of signups get an answer that is no server error.",
			.999, failed(signups), responses(signups),
			Runbook{
				"People cannot sign up.", []string{
					"kubectl logs --selector=app.kubernetes.io/name=signup --since=10m | grep '\"level\":\"ERROR\"'",
					"curl -s http://<pod>:8081/readyz",
					"SELECT pid, state, wait_event, now() - xact_start AS age, left(query, 80) FROM pg_stat_activity ORDER BY xact_start;",
				},
			},
		},
		{
			"signup_fast", "Signups are fast", "99 % of signups are answered within 250 ms.",
			.99, fastBad, fastAll,
			Runbook{"People wait for their position. [A slow signup](debugging.md#a-slow-signup) lists the causes.", []string{
				"curl -s http://<pod>:8081/metrics | grep -E '^signup_(queue|batch)'",
				"SELECT wait_event_type, wait_event, count(*) FROM pg_stat_activity WHERE usename = 'waitlist_signup' GROUP BY 1, 2;",
				"curl -s http://<pod>:8081/metrics | grep ^ratelimit_call_duration",
			}},
		},
		{
			"public_reads", "Public reads are answered", "99.9 % of public reads get an answer that is no server error.",
			.999, failed(reads), responses(reads),
			Runbook{"People cannot see their position or the form.", []string{
				"kubectl logs --selector=app.kubernetes.io/name=signup --since=10m | grep '\"level\":\"ERROR\"'",
				"curl -s http://<pod>:8081/readyz", "redis-cli -u \"$REDIS_URL\" PING",
			}},
		},
		{
			"owners_api", "The owners' API answers", "99.9 % of owners' requests get an answer that is no server error.",
			.999, failed(owners), responses(owners),
			Runbook{"Owners see errors. The panel *Server errors* of the dashboard *Suite* says which route.", []string{
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep '\"level\":\"ERROR\"'",
				"kubectl get pods --selector=app.kubernetes.io/part-of=waitlist", "curl -s http://<pod>:8081/readyz",
			}},
		},
		{
			"events_fresh", "Events take effect soon", "99 % of events have their effect within 10 s.",
			.99, freshBad, freshAll,
			Runbook{"Analytics, mails and notifications are late.", []string{
				"curl -s http://<pod>:8081/metrics | grep -E '^(outbox_oldest|outbox_rows|kafka_consumer_lag)'",
				"kafka-consumer-groups.sh --bootstrap-server \"$KAFKA\" --all-groups --describe",
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep 'event failed'",
			}},
		},
		{
			"webhook_soon", "Owners are notified soon", "99 % of notifications start within 5 s of their event.",
			.99, hookBad, hookAll,
			Runbook{"Owners' webhooks and chat messages are late. A slow endpoint delays only its own.", []string{
				"curl -s http://<notifier>:8081/metrics | grep -E '^notifier_(deliveries_open|delay)'",
				"SELECT outcome, count(*) FROM notifier.delivery GROUP BY 1;",
				"curl -s http://<notifier>:8081/metrics | grep ^kafka_consumer_lag",
			}},
		},
		{
			"mail_soon", "Mails leave soon", "99 % of mails are accepted by the provider within 60 s of their request.",
			.99, mailBad, mailAll,
			Runbook{"People wait for verification and reset mails.", []string{
				"SELECT kind, count(*), min(requested_at), max(deferrals) FROM messaging.sent_mail WHERE state = 'queued' GROUP BY 1;",
				"kubectl logs --selector=app.kubernetes.io/name=messaging --since=10m | grep 'mail not sent'",
				"curl -s http://<messaging>:8081/metrics | grep ^messaging_mails_total",
			}},
		},
		{
			"payments_taken", "Payment events are accepted", "99.9 % of the provider's events are accepted at their first delivery.",
			.999, failed(payment), responses(payment),
			Runbook{"Payments take effect late. The provider resends the events for days.", []string{
				"kubectl logs --selector=app.kubernetes.io/name=billing --since=10m | grep '\"level\":\"ERROR\"'",
				"curl -s http://<billing>:8081/readyz", "go run ./services/billing/cmd/reconcile",
			}},
		},
		{
			"pages_answered", "Pages are shown", "99.9 % of pages get an answer that is no server error.",
			.999, failed(pages), responses(pages),
			Runbook{"People cannot see forms and positions. A page answers 502 if the API fails or does not respond.", []string{
				"kubectl logs --selector=app.kubernetes.io/name=pages --since=10m | grep -E '\"level\":\"(WARN|ERROR)\"'",
				"curl -si https://<api>/v1/public/waitlists/<id>/config", "curl -s http://<signup>:8081/readyz",
			}},
		},
		{
			"pages_fast", "Pages are fast", "99 % of pages are answered within 500 ms.",
			.99, pageBad, pageAll,
			Runbook{"People wait for forms and positions. A page takes as long as its API calls; the dashboard *Pages* shows both.", []string{
				"curl -s http://<pages>:8081/metrics | grep -E '^http_server_(active|request_duration)'",
				"curl -so /dev/null -w '%{time_total}\\n' https://<api>/v1/public/waitlists/<id>/config",
				"kubectl top pods --selector=app.kubernetes.io/name=pages",
			}},
		},
	}
}
