package observability

import "fmt"

// Dashboard is a page of panels.
type Dashboard struct {
	UID, Title string
	Panels     []Panel
}

// Panel draws queries. Unit is Grafana's name of a unit.
type Panel struct {
	Title, Sentence, Unit string
	Queries               []Query
}

// Query is PromQL with $SEL for the selector of the dashboard's variables. Legend may name
// labels of the series.
type Query struct{ Expr, Legend string }

// one returns a panel with one query.
func one(title, unit, sentence, legend, expr string) Panel {
	return Panel{title, sentence, unit, []Query{{expr, legend}}}
}

// quantiles returns a panel with the median and the 99th percentile of a histogram.
func quantiles(title, sentence, metric, more string) Panel {
	p := Panel{Title: title, Sentence: sentence, Unit: "s"}
	for _, q := range [][2]string{{"0.5", "median"}, {"0.99", "p99"}} {
		p.Queries = append(p.Queries, Query{
			fmt.Sprintf("histogram_quantile(%s, sum by (le) (rate(%s_bucket{$SEL%s}[$__rate_interval])))", q[0], metric, more), q[1],
		})
	}
	return p
}

// rate returns a panel with the sum of a counter's rate by some labels.
func rate(title, sentence, metric, more, by, legend string) Panel {
	return one(title, "ops", sentence, legend, fmt.Sprintf("sum by (%s) (rate(%s{$SEL%s}[$__rate_interval]))", by, metric, more))
}

func gauge(title, unit, sentence, metric, by, legend string) Panel {
	return one(title, unit, sentence, legend, fmt.Sprintf("max by (%s) (%s{$SEL})", by, metric))
}

// byVersion returns the rate of a counter by version.
func byVersion(metric, more string) string {
	return fmt.Sprintf(`sum by (version) (sum by (namespace, pod, service) (rate(%s{$SEL%s}[$__rate_interval]))
  * on (namespace, pod, service) group_left(version) waitlist_build_info{$SEL})`, metric, more)
}

// Dashboards returns all dashboards.
func Dashboards() []Dashboard {
	return []Dashboard{
		{"waitlist-suite", "Waitlist / Suite", []Panel{
			one("Budget left", "percentunit", "What is left of each objective's budget of errors over 30 days; below 0 it is broken.", "{{slo}}",
				"slo:budget_left:ratio{$NS}"),
			one("Share of bad events", "percentunit", "Bad events of each objective over the last hour.", "{{slo}}", "slo:bad:ratio_1h{$NS}"),
			one("Budget burn", "none", "How many times faster than allowed the budget is spent, over the last hour.", "{{slo}}",
				"slo:burn:1h{$NS}"),
			rate("Requests", "Answers of the public interfaces.", "http_server_responses_total", "", "service", "{{service}}"),
			rate("Server errors", "Answers with a status from 500, by route.", "http_server_responses_total",
				`,http_response_status_code=~"5.."`, "service, http_route", "{{service}} {{http_route}}"),
			rate("Refusals", "Answers from 400 to 499, by status: 401 and 403 are refused callers, 429 those beyond a limit.",
				"http_server_responses_total", `,http_response_status_code=~"4.."`, "http_response_status_code", "{{http_response_status_code}}"),
			rate("Passwords", "Checks of passwords: accepted, refused, locked after too many failures, busy.", "account_password_checks_total", "",
				"outcome", "{{outcome}}"),
			quantiles("Time of a request", "Median and 99th percentile over all routes.", "http_server_request_duration_seconds", ""),
			gauge("Requests under way", "none", "Requests that are not answered yet.", "http_server_active_requests", "service", "{{service}}"),
			gauge("Bound of requests", "none", "Requests that a pod works on at a time; it follows the rate at which they are done.",
				"http_server_request_limit", "service", "{{service}}"),
			rate("Refused for load", "Requests beyond what a pod can bear: requests under way, or bytes of unfinished bodies.",
				"http_server_refused_total", "", "service, reason", "{{service}} {{reason}}"),
			gauge("Unfinished bodies", "bytes", "Bytes of bodies that have not arrived as a whole; at most 32 MiB a pod.",
				"http_server_unfinished_body_bytes", "service", "{{service}}"),
		}},
		{"waitlist-signup", "Waitlist / Signup path", []Panel{
			rate("Changes", "Committed signups, credits, opt-outs and verifications; imports are not counted.", "signup_changes_total", "",
				"change", "{{change}}"),
			rate("Answers", "Answers to signups by status.", "http_server_responses_total", ","+signups,
				"http_response_status_code", "{{http_response_status_code}}"),
			quantiles("Time of a signup", "From the request to its answer.", "http_server_request_duration_seconds", ","+signups),
			gauge("Queue", "none", "Signups that wait for a commit, in the lanes of all waitlists.", "signup_queue_length", "pod", "{{pod}}"),
			quantiles("Time in the queue", "Of a signup, until a commit takes it.", "signup_queue_wait_seconds", ""),
			one("Signups in a commit", "none", "Mean size of a batch; near 256 the lanes have a backlog.", "signups",
				"sum(rate(signup_batch_size_sum{$SEL}[$__rate_interval])) / sum(rate(signup_batch_size_count{$SEL}[$__rate_interval]))"),
			quantiles("Time of a commit", "From taking a batch to its commit.", "signup_batch_duration_seconds", ""),
			one("Places in a read", "none", "Requests for a place that one read of Postgres and the index answers, on average.", "requests",
				"sum(rate(signup_read_size_sum{$SEL}[$__rate_interval])) / sum(rate(signup_read_size_count{$SEL}[$__rate_interval]))"),
			quantiles("Delay of the index", "From a commit until the index of positions in Redis has it.", "signup_index_delay_seconds", ""),
			rate("Index", "Catch-ups of the index of positions, by outcome.", "signup_index_catch_ups_total", "", "outcome", "{{outcome}}"),
			rate("Limiter", "Requests by the global limit's decision.", "ratelimit_requests_total", "", "decision", "{{decision}}"),
			rate("Limiter without Redis", "Requests that the local bucket decided, because Redis did not answer.",
				"ratelimit_fallback_total", "", "service", "{{service}}"),
			gauge("Limiter's breaker", "none", "1 while the breaker keeps requests from Redis.", "ratelimit_breaker_open", "service", "{{service}}"),
			quantiles("Time of the limiter's call", "A call to the bucket in Redis.", "ratelimit_call_duration_seconds", ""),
		}},
		{"waitlist-events", "Waitlist / Events", []Panel{
			gauge("Oldest event", "s", "Age of the oldest row that waits for Kafka.", "outbox_oldest_seconds", "service", "{{service}}"),
			gauge("Outbox", "none", "Rows of the outbox: waiting, and parked because Kafka refuses them.", "outbox_rows", "service, state",
				"{{service}} {{state}}"),
			one("Leaders", "none", "Replicas that publish the outbox; 1 for each service.", "{{service}}", "sum by (service) (outbox_leader{$SEL})"),
			rate("Published", "Events that Kafka acknowledged.", "outbox_published_total", "", "service", "{{service}}"),
			rate("Failed writes", "Failed writes to Kafka; their rows stay.", "outbox_failures_total", "", "service", "{{service}}"),
			quantiles("Time of a write", "Until all in-sync replicas of Kafka have a write.", "kafka_producer_write_duration_seconds", ""),
			rate("Messages not taken", "Messages that Kafka did not acknowledge; they are written again.", "kafka_producer_errors_total", "",
				"service", "{{service}}"),
			gauge("Lag", "none", "Messages behind the end of a topic.", "kafka_consumer_lag", "group, topic", "{{group}} {{topic}}"),
			rate("Handled", "Events whose effect was committed.", "kafka_consumer_handled_total", "", "group", "{{group}}"),
			rate("Skipped", "Events that have no effect in the group.", "kafka_consumer_skipped_total", "", "group", "{{group}}"),
			quantiles("Delay", "From an event to the commit of its effect.", "kafka_consumer_event_delay_seconds", ""),
			quantiles("Time of a transaction", "One transaction of a consumer, with all its events.", "kafka_consumer_batch_duration_seconds", ""),
			rate("Failed attempts", "Attempts to handle an event that failed, by kind.", "kafka_consumer_retries_total", "", "group, kind",
				"{{group}} {{kind}}"),
			rate("Duplicates", "Deliveries that the inbox knew.", "kafka_consumer_duplicates_total", "", "group", "{{group}}"),
			rate("Dead letters", "Messages moved to the dead-letter topic.", "kafka_consumer_dead_letters_total", "", "group, reason",
				"{{group}} {{reason}}"),
		}},
		{"waitlist-messaging", "Waitlist / Messaging", []Panel{
			rate("Mails", "Attempts to send, by kind and outcome.", "messaging_mails_total", "", "kind, outcome", "{{kind}} {{outcome}}"),
			gauge("Oldest", "s", "Age of the oldest mail that waits, and of the oldest blast that has not ended.", "messaging_oldest_seconds",
				"what", "{{what}}"),
			quantiles("Delay of a mail", "From its request to the provider's acceptance.", "messaging_mail_delay_seconds", ""),
			rate("Mails of blasts", "Mails of blasts, by outcome.", "messaging_blast_mails_total", "", "outcome", "{{outcome}}"),
			rate("Claims", "Claims of mails and batches that ended: settled, returned, lost.", "work_claims_total", "", "work, end",
				"{{work}} {{end}}"),
			gauge("Claims held", "none", "Mails and batches that a process works on.", "work_claims_held", "pod, work", "{{pod}} {{work}}"),
			rate("DNS", "Look-ups for sending domains, by outcome.", "messaging_dns_lookups_total", "", "outcome", "{{outcome}}"),
		}},
		{"waitlist-notifier", "Waitlist / Notifier", []Panel{
			rate("Deliveries", "Deliveries that ended, by channel and outcome.", "notifier_deliveries_total", "", "channel, outcome",
				"{{channel}} {{outcome}}"),
			quantiles("Delay", "From an event to the start of its attempt.", "notifier_delay_seconds", ""),
			quantiles("Time of an attempt", "What owners' endpoints take to answer.", "notifier_attempt_duration_seconds", ""),
			gauge("Open", "none", "Deliveries in a process, queued and running.", "notifier_deliveries_open", "pod, state", "{{pod}} {{state}}"),
		}},
		{"waitlist-billing", "Waitlist / Billing", []Panel{
			rate("Events of the provider", "Answers to the provider's events by status.", "http_server_responses_total", ","+payment,
				"http_response_status_code", "{{http_response_status_code}}"),
			rate("Calls", "Calls to the payment provider by outcome.", "billing_provider_call_duration_seconds_count", "", "call, outcome",
				"{{call}} {{outcome}}"),
			quantiles("Time of a call", "Calls to the payment provider, retries included.", "billing_provider_call_duration_seconds", ""),
			gauge("Breaker", "none", "1 while the breaker keeps calls from the payment provider.", "billing_provider_breaker_open",
				"pod", "{{pod}}"),
		}},
		{"waitlist-pages", "Waitlist / Pages", []Panel{
			rate("Answers", "Answers of the pages by status; 502 where the interface failed.", "http_server_responses_total", ","+pages,
				"http_response_status_code", "{{http_response_status_code}}"),
			rate("Requests", "Answers by page.", "http_server_responses_total", ","+pages, "http_route", "{{http_route}}"),
			quantiles("Time of a page", "From a page's request to its answer.", "http_server_request_duration_seconds", ","+pages),
			one("Pages under way", "none", "Requests for pages that are not answered yet.", "{{pod}}",
				"sum by (pod) (http_server_active_requests{$SEL,"+pages+"})"),
			quantiles("Time of a call to the interface", "gRPC calls of the pages to other services.",
				"rpc_client_call_duration_seconds", ","+pages),
			rate("Calls to the interface", "gRPC calls of the pages by their status.", "rpc_client_call_duration_seconds_count", ","+pages,
				"rpc_response_status_code", "{{rpc_response_status_code}}"),
		}},
		{"waitlist-runtime", "Waitlist / Runtime and dependencies", []Panel{
			one("Dependencies", "none", "Share of a service's pods that reach a server it needs.", "{{service}} {{dependency}}",
				"avg by (service, dependency) (waitlist_dependency_up{$SEL})"),
			gauge("Connections to Postgres", "none", "Connections of the fullest pool, by state.", "db_client_connection_count",
				"service, db_client_connection_state", "{{service}} {{db_client_connection_state}}"),
			gauge("Bound of the pool", "none", "Connections that a pod may open.", "db_client_connection_max", "service", "{{service}}"),
			rate("Waits for a connection", "Times that a caller waited, because no connection was idle.", "db_client_connection_waits_total", "",
				"service", "{{service}}"),
			one("Time spent waiting", "s", "Seconds a second that callers spent waiting for connections to Postgres.", "{{service}}",
				"sum by (service) (rate(db_client_connection_wait_time_seconds_total{$SEL}[$__rate_interval]))"),
			quantiles("Time of a statement", "Statements of Postgres.", "db_client_operation_duration_seconds", ""),
			quantiles("Time of Redis", "Commands and pipelines.", "redis_client_operation_duration_seconds", ""),
			rate("Redis without an answer", "Commands and pipelines that Redis did not answer.", "redis_client_errors_total", "", "service",
				"{{service}}"),
			gauge("Connections to Redis", "none", "Open connections of the pool.", "redis_client_connections", "service", "{{service}}"),
			rate("Redis' pool full", "Commands that got no connection in time.", "redis_client_pool_timeouts_total", "", "service", "{{service}}"),
			rate("gRPC answers", "Calls that services answered, by status.", "rpc_server_call_duration_seconds_count", "",
				"rpc_response_status_code", "{{rpc_response_status_code}}"),
			quantiles("Time of a gRPC call", "As the caller sees it.", "rpc_client_call_duration_seconds", ""),
			gauge("HTTP connections", "none", "Open connections of the public interface of the fullest pod.", "http_server_open_connections",
				"service", "{{service}}"),
			rate("Spans", "Spans that ended in a sampled trace.", "otel_sdk_span_ended_total", "", "service", "{{service}}"),
			rate("Spans exported", "Spans that the collector took.", "otel_sdk_exporter_span_exported_total", "", "service", "{{service}}"),
			one("Certificates", "s", "Time until the certificate of a server expires.", "{{service}} {{dependency}}",
				"min by (service, dependency) (waitlist_certificate_expiry_timestamp_seconds{$SEL}) - time()"),
			one("Keys", "s", "Age of the keys that sign and encrypt, where the id tells it.", "{{setting}}",
				"time() - min by (setting) (waitlist_key_created_timestamp_seconds{$SEL})"),
			one("Processors", "none", "Processors that a pod uses.", "{{service}} {{pod}}",
				"sum by (service, pod) (rate(process_cpu_seconds_total{$SEL}[$__rate_interval]))"),
			gauge("Memory", "bytes", "Resident memory of the largest pod.", "process_resident_memory_bytes", "service", "{{service}}"),
			gauge("Heap in use", "bytes", "Bytes of live objects and those not swept yet.", "go_memstats_heap_inuse_bytes",
				"service", "{{service}}"),
			gauge("Goroutines", "none", "Goroutines of the busiest pod.", "go_goroutines", "service", "{{service}}"),
			gauge("Files", "none", "Open file descriptors.", "process_open_fds", "service", "{{service}}"),
		}},
		{"waitlist-release", "Waitlist / Release", []Panel{
			one("Pods", "none", "Pods of each version.", "{{service}} {{version}}", "count by (service, version) (waitlist_build_info{$SEL})"),
			one("Requests", "ops", "Answers of each version.", "{{version}}", byVersion("http_server_responses_total", "")),
			one("Server errors", "ops", "Answers with a status from 500, of each version.", "{{version}}",
				byVersion("http_server_responses_total", `,http_response_status_code=~"5.."`)),
			one("Slow requests", "percentunit", "Share of requests that took longer than 250 ms, of each version.", "{{version}}",
				"1 - "+byVersion("http_server_request_duration_seconds_bucket", `,le="0.25"`)+"\n  / "+
					byVersion("http_server_request_duration_seconds_count", "")),
			one("Requests by revision", "ops", "Answers of each revision, as the ReplicaSet of a pod names it, and whether it is the stable one.",
				"{{service}} {{track}} {{revision}}", "sum by (service, track, revision) (rate(http_server_responses_total{$SEL}[$__rate_interval]))"),
			one("Share of errors by revision", "percentunit", "Answers with a status from 500, of each revision's answers.",
				"{{service}} {{track}} {{revision}}", `sum by (service, track, revision) (
  rate(http_server_responses_total{$SEL,http_response_status_code=~"5.."}[$__rate_interval]))
  / sum by (service, track, revision) (rate(http_server_responses_total{$SEL}[$__rate_interval]))`),
			one("Candidates", "percentunit", "The share of the requests that a candidate gets, as its route has it.", "{{name}}",
				"max by (name) (canary_weight_percent{$NS}) / 100"),
			one("Canaries", "none", "The phase that each Canary is in.", "{{name}} {{phase}}", "max by (name, phase) (canary_phase{$NS})"),
			one("Stalled canaries", "none", "Canaries that wait for a person, and why.", "{{name}} {{reason}}",
				"max by (name, reason) (canary_stalled{$NS})"),
			one("Age", "s", "How long the youngest pod of each service runs.", "{{service}}",
				"min by (service) (time() - process_start_time_seconds{$SEL})"),
		}},
	}
}
