package observability

import (
	"fmt"
	"slices"
)

// Runbook says what an alert means, and the first three commands.
type Runbook struct {
	Meaning  string
	Commands []string
}

// Alert is a condition that the objectives do not show, or show late.
type Alert struct {
	Name, Expr string
	// For is how long the condition must hold.
	For string
	// Severity is critical, which wakes somebody, or warning, which is for the day.
	Severity string
	// Summary may name labels of the series, as in a Prometheus annotation.
	Summary string
	Runbook Runbook
}

// away is an alert on a server that a service's own checks do not reach.
func away(name, dependency, severity, meaning string, commands ...string) Alert {
	return Alert{
		name, fmt.Sprintf(`max by (service) (waitlist_dependency_up{$NS,dependency=%q}) == 0`, dependency), "1m", severity,
		"No pod of {{ $labels.service }} reaches " + dependency + ".",
		Runbook{meaning, commands},
	}
}

// Services are the values of the label service in every installation.
var Services = []string{"account", "admin-analytics", "billing", "messaging", "notifier", "signup"} // a constant

// Alerts returns all alerts beside those on budgets.
func Alerts() []Alert {
	all := []Alert{
		away("WaitlistPostgresAway", "postgres", "critical",
			"The service answers 500 and handles no events. It recovers by itself when Postgres is back.",
			"curl -s http://<pod>:8081/readyz", "psql \"$POSTGRES_URL\" -c 'SELECT 1'",
			"psql \"$ADMIN_URL\" -c 'SELECT usename, count(*) FROM pg_stat_activity GROUP BY 1'"),
		away("WaitlistRedisAway", "redis", "warning",
			"Redis is away, or a replica. Each pod enforces its share of the rate limit; positions come from Postgres: slower, but exact.",
			"curl -s http://<pod>:8081/readyz", "redis-cli -u \"$REDIS_URL\" INFO replication | grep role",
			"redis-cli -u \"$REDIS_URL\" INFO memory"),
		away("WaitlistKafkaAway", "kafka", "critical", "The API works and the outbox grows. It drains by itself when Kafka is back.",
			"curl -s http://<pod>:8081/readyz", "kafka-topics.sh --bootstrap-server \"$KAFKA\" --describe",
			"curl -s http://<pod>:8081/metrics | grep ^outbox_"),
		{
			"WaitlistOutboxOld", `max by (service) (outbox_oldest_seconds{$NS}) > 60`, "2m", "critical",
			"An event of {{ $labels.service }} has waited {{ $value | humanizeDuration }} to reach Kafka.",
			Runbook{"Kafka is unreachable or rejects events, or the relay hangs: see [a stuck outbox](debugging.md#a-stuck-outbox).", []string{
				"curl -s http://<pod>:8081/metrics | grep ^outbox_",
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep outbox",
				"SELECT topic, count(*), min(created_at) FROM signup.outbox WHERE parked_at IS NULL GROUP BY 1;",
			}},
		},
		{
			"WaitlistOutboxWithoutLeader", `sum by (service) (outbox_leader{$NS}) == 0`, "2m", "critical",
			"No replica of {{ $labels.service }} publishes its events.",
			Runbook{"A stale connection holds the relay's lock, or no replica reaches Postgres.", []string{
				"SELECT pid, state, application_name, backend_start FROM pg_stat_activity WHERE application_name LIKE '%outbox relay';",
				"SELECT * FROM pg_locks WHERE locktype = 'advisory';",
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep 'outbox relay'",
			}},
		},
		{
			"WaitlistOutboxParked", `max by (service) (outbox_rows{$NS,state="parked"}) > 0`, "0m", "warning",
			"Kafka permanently rejects {{ $value }} events of {{ $labels.service }}.",
			Runbook{"Other events continue. Remove the cause, then release the rows: see [a stuck outbox](debugging.md#a-stuck-outbox).", []string{
				"SELECT id, topic, key, error FROM signup.outbox WHERE parked_at IS NOT NULL;",
				"kafka-configs.sh --bootstrap-server \"$KAFKA\" --describe --entity-type topics --all",
				"UPDATE signup.outbox SET parked_at = NULL, error = '' WHERE id = …;",
			}},
		},
		{
			"WaitlistConsumerStuck", `sum by (service, group) (kafka_consumer_lag{$NS}) > 0
unless on (service, group) sum by (service, group) (
  rate(kafka_consumer_handled_total{$NS}[5m]) + rate(kafka_consumer_skipped_total{$NS}[5m])) > 0`, "5m", "critical",
			"The consumer group {{ $labels.group }} has a backlog but handles no events.",
			Runbook{"A server that the handler needs is unreachable, or the reader hangs; then it is replaced after 45 s.", []string{
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep 'event failed'",
				"curl -s http://<pod>:8081/metrics | grep ^kafka_consumer_retries_total",
				"kafka-consumer-groups.sh --bootstrap-server \"$KAFKA\" --all-groups --describe",
			}},
		},
		{
			"WaitlistDeadLetters", `sum by (service, group, reason) (increase(kafka_consumer_dead_letters_total{$NS}[15m])) > 0`, "0m", "warning",
			"The consumer group {{ $labels.group }} dead-letters events: {{ $labels.reason }}.",
			Runbook{"Other events continue. Remove the cause, then replay: see [dead letters](operations.md#dead-letters).", []string{
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=1h --prefix | grep 'message dead-lettered'",
				"go run ./tools/cmd/replay -h", "go run ./tools/cmd/replay",
			}},
		},
		{
			"WaitlistPaymentsAway", `max by (service) (billing_provider_breaker_open{$NS}) == 1`, "2m", "critical",
			"The payment provider does not respond.",
			Runbook{"Checkout, portal and cancellation answer 502. Payments made meanwhile are fetched later.", []string{
				"kubectl logs --selector=app.kubernetes.io/name=billing --since=10m | grep 'payment provider'",
				"curl -sI https://api.stripe.com/healthcheck", "go run ./services/billing/cmd/reconcile",
			}},
		},
		{
			"WaitlistMailAway", `sum by (service) (rate(messaging_mails_total{$NS,outcome="away"}[5m])) > 0
unless on (service) sum by (service) (rate(messaging_mails_total{$NS,outcome="sent"}[5m])) > 0`, "5m", "critical",
			"The mail provider accepts no mail.",
			Runbook{"Mails wait in the database until it accepts them. Only those with expired links are dropped.", []string{
				"kubectl logs --selector=app.kubernetes.io/name=messaging --since=10m | grep 'mail not sent'",
				"SELECT kind, count(*), min(requested_at) FROM messaging.sent_mail WHERE state = 'queued' GROUP BY 1;",
				"openssl s_client -starttls smtp -connect \"$SMTP_HOST:$SMTP_PORT\" </dev/null",
			}},
		},
		{
			"WaitlistPoolExhausted", `max by (service) (
  db_client_connection_count{$NS,db_client_connection_state="used"}
    / on (namespace, pod, service) db_client_connection_max{$NS}) >= 0.95`, "2m", "warning",
			"A pod of {{ $labels.service }} uses all its connections to Postgres.",
			Runbook{"Requests wait for a connection: statements are slow, or the pool is too small.", []string{
				"curl -s http://<pod>:8081/metrics | grep ^db_client_connection",
				"SELECT usename, state, count(*) FROM pg_stat_activity GROUP BY 1, 2;",
				"SELECT pid, now() - xact_start AS age, left(query, 80) FROM pg_stat_activity ORDER BY xact_start LIMIT 10;",
			}},
		},
		{
			"WaitlistSignupsRefused", fmt.Sprintf(`sum by (service) (
  rate(http_server_responses_total{$NS,%s,http_response_status_code="429"}[5m])) > 0
unless on (service) sum by (service) (rate(ratelimit_requests_total{$NS,decision!="allowed"}[5m])) > 0`, signups), "2m", "warning",
			"Signups are rejected with 429, and not by the rate limit.",
			Runbook{"More arrive than commit within `SIGNUP_MAX_WAIT`, or than a pod bears (`http_server_refused_total`): add replicas.", []string{
				"curl -s http://<signup>:8081/metrics | grep -E '^signup_(queue|batch)|^http_server_re'",
				"SELECT wait_event_type, wait_event, count(*) FROM pg_stat_activity WHERE usename = 'waitlist_signup' GROUP BY 1, 2;",
				"SELECT pid, now() - xact_start AS age, left(query, 80) FROM pg_stat_activity WHERE usename = 'waitlist_signup' ORDER BY xact_start;",
			}},
		},
		{
			"WaitlistConnectionsFull", `max by (service) (http_server_open_connections{$NS}) >= 4500`, "2m", "warning",
			"A pod of {{ $labels.service }} has nearly the 5,000 connections that HTTP_MAX_CONNS allows.",
			Runbook{"Clients hold connections open; new ones are closed. Limit clients at the gateway.", []string{
				"curl -s http://<pod>:8081/metrics | grep ^http_server_",
				"ss -tn state established '( sport = :8080 )' | awk '{print $5}' | sort | uniq -c | sort -n | tail",
				"kubectl get deployment --selector=app.kubernetes.io/part-of=waitlist",
			}},
		},
		{
			"WaitlistProducerFails", `sum by (service) (increase(kafka_producer_errors_total{$NS}[5m])) > 0
unless on (service) min by (service) (waitlist_dependency_up{$NS,dependency="kafka"}) == 0`, "5m", "warning",
			"Kafka responds but rejects messages of {{ $labels.service }}.",
			Runbook{"A topic is read-only, too few replicas are in sync, or the user may not write. The rows stay in the outbox.", []string{
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep 'outbox'",
				"kafka-topics.sh --bootstrap-server \"$KAFKA\" --describe --under-min-isr-partitions",
				"kafka-acls.sh --bootstrap-server \"$KAFKA\" --list",
			}},
		},
		{
			"WaitlistIndexBehind", `sum by (service) (rate(signup_index_catch_ups_total{$NS,outcome="failed"}[5m])) > 0
unless on (service) sum by (service) (rate(signup_index_catch_ups_total{$NS,outcome="applied"}[5m])) > 0
unless on (service) min by (service) (waitlist_dependency_up{$NS,dependency=~"redis|postgres"}) == 0`, "5m", "warning",
			"Redis responds, but the index of positions cannot be updated.",
			Runbook{"Redis is full, or rejects the script. Positions come from Postgres: slower, but exact.", []string{
				"redis-cli -u \"$REDIS_URL\" INFO memory | grep -E 'used_memory_human|maxmemory_human|maxmemory_policy'",
				"redis-cli -u \"$REDIS_URL\" ACL LOG 5",
				"curl -s http://<signup>:8081/metrics | grep ^signup_index_",
			}},
		},
		{
			"WaitlistMailsOld", `max by (service) (messaging_oldest_seconds{$NS,what="mail"}) > 3600
unless on (service) sum by (service) (increase(messaging_mails_total{$NS,outcome="sent"}[1h])) > 0`, "5m", "warning",
			"A mail has waited {{ $value | humanizeDuration }}, and none was sent for an hour.",
			Runbook{"The provider defers all mails (such as with 451), or one mailbox defers and there was no other mail to send.", []string{
				"SELECT kind, deferrals, count(*), min(requested_at), min(error) FROM messaging.sent_mail WHERE state = 'queued' GROUP BY 1, 2;",
				"kubectl logs --selector=app.kubernetes.io/name=messaging --since=1h | grep 'mail not sent'",
				"curl -s http://<messaging>:8081/metrics | grep -E '^messaging_(oldest|mails)'",
			}},
		},
		{
			"WaitlistBlastStands", `max by (service) (messaging_oldest_seconds{$NS,what="blast"}) > 600
unless on (service) sum by (service) (increase(messaging_blast_mails_total{$NS,outcome=~"sent|failed|skipped"}[10m])) > 0`, "5m", "warning",
			"A blast began {{ $value | humanizeDuration }} ago, and no blast makes progress.",
			Runbook{"The provider is unreachable or defers everything, or signup does not list the recipients. It resumes by itself.", []string{
				"SELECT id, state, planned, batches, batches_ended, plan_at FROM messaging.blast WHERE ended_at IS NULL ORDER BY id;",
				"kubectl logs --selector=app.kubernetes.io/name=messaging --since=10m | grep blast",
				"curl -s http://<messaging>:8081/metrics | grep ^messaging_blast",
			}},
		},
		{
			"WaitlistLoginsRefused",
			`sum by (service) (rate(account_password_checks_total{$NS,outcome=~"refused|locked"}[5m])) > 1`, "5m", "warning",
			"{{ $value | humanize }} logins per second are rejected.",
			Runbook{"Somebody guesses passwords. Ten failures lock an account for one address, a hundred an address for all accounts.", []string{
				"SELECT count(*), count(DISTINCT account), count(DISTINCT address) FROM account.login_failure;",
				"kubectl logs --selector=app.kubernetes.io/name=account --since=10m | grep '\"route\":\"/v1/auth/login\"' | tail",
				"curl -s http://<account>:8081/metrics | grep ^account_password_checks",
			}},
		},
		{
			"WaitlistSpansDropped", `sum by (service) (increase(otel_sdk_span_ended_total{$NS}[10m]))
  > 1.1 * sum by (service) (increase(otel_sdk_exporter_span_exported_total{$NS}[10m])) + 1`, "10m", "warning",
			"Spans of {{ $labels.service }} do not reach the collector.",
			Runbook{"The collector is unreachable, rejects spans, or is too slow for TRACES_PER_SECOND. Requests do not wait for it.", []string{
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep -i 'traces export'",
				"curl -s http://<pod>:8081/metrics | grep ^otel_sdk_",
				"kubectl get networkpolicy",
			}},
		},
		{
			"WaitlistCertificateExpires",
			`min by (service, dependency) (waitlist_certificate_expiry_timestamp_seconds{$NS}) - time() < 14 * 86400`, "5m", "warning",
			"The certificate of {{ $labels.dependency }} expires in {{ $value | humanizeDuration }}.",
			Runbook{"After that, the service can open no new connections. Renew it.", []string{
				"openssl s_client -connect <host:port> -showcerts </dev/null | openssl x509 -noout -enddate -issuer",
				"kubectl get certificate --all-namespaces",
				"curl -s http://<pod>:8081/metrics | grep ^waitlist_certificate",
			}},
		},
		{
			"WaitlistKeyOld", `time() - min by (setting) (waitlist_key_created_timestamp_seconds{$NS}) > 400 * 86400`, "5m", "warning",
			"The key of {{ $labels.setting }} is {{ $value | humanizeDuration }} old.",
			Runbook{"Nothing is broken. Prepend a new key whose id is today's date: see [keys](operations.md#keys).", []string{
				"curl -s http://<pod>:8081/metrics | grep ^waitlist_key_created",
				"kubectl get secret --selector=app.kubernetes.io/part-of=waitlist",
				"go run ./tools/cmd/secrets -h",
			}},
		},
		// The metric is the canary operator's, which labels it with the Canary's namespace.
		{
			"WaitlistReleaseStalled", `max by (name, reason) (canary_stalled{$NS}) == 1`, "5m", "warning",
			"The Canary {{ $labels.name }} needs a person: {{ $labels.reason }}.",
			Runbook{"The stable version serves. Look up the [reason](canary.md#conditions-and-what-to-do) and what to do.", []string{
				"kubectl get canaries", "kubectl describe canary <name>", "go run ./k8s/canary/cmd/canaryctl status",
			}},
		},
		// The prober is a release of its own, in another namespace.
		{
			"WaitlistProbeFails", `sum by (step) (increase(prober_step_failures_total[5m])) >= 3`, "0m", "critical",
			"The prober, which acts as a user, fails at the step {{ $labels.step }}.",
			Runbook{"Users see the same failure. The prober's log has the answer and request id.", []string{
				"kubectl --namespace prober logs deployment/prober-service --since=10m | grep 'round failed'",
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --since=10m --prefix | grep <request id>",
				"curl -si https://<api>/v1/public/waitlists/<id>/config",
			}},
		},
		{
			"WaitlistProbeSilent", `time() - max(prober_last_success_timestamp_seconds) > 600`, "5m", "critical",
			"No round of the prober has succeeded for {{ $value | humanizeDuration }}.",
			Runbook{"The prober cannot start, cannot log in, or cannot reach the API.", []string{
				"kubectl --namespace prober get pods", "kubectl --namespace prober logs deployment/prober-service --tail 20",
				"kubectl --namespace prober get secret prober",
			}},
		},
	}
	for _, s := range append(slices.Clone(Services), "pages") {
		expr := fmt.Sprintf(`absent(waitlist_build_info{$NS,service=%q})`, s)
		if s == "pages" { // optional: alert only if it has run
			expr += fmt.Sprintf(` and on () present_over_time(waitlist_build_info{$NS,service=%q}[1h])`, s)
		}
		all = append(all, Alert{
			"WaitlistNothingScraped", expr, "5m", "critical", "No pod of " + s + " can be scraped.",
			Runbook{"No pod runs, or Prometheus cannot reach port 8081. Meanwhile, none of this service's other alerts can fire.", []string{
				"kubectl get pods --selector=app.kubernetes.io/part-of=waitlist", "kubectl get servicemonitor,networkpolicy",
				"kubectl logs --selector=app.kubernetes.io/part-of=waitlist --previous --prefix | tail -50",
			}},
		})
	}
	return all
}
