package observability_test

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// builds are the series of all services that run. Without pages none of them may fire.
func builds(pages bool) []sample {
	out := signups(0, 0)
	if pages {
		out = append(out, series(1, "waitlist_build_info", "service", "pages", "version", "test"))
	}
	return out
}

// sign is what an alert looks for: its series after n minutes, in trouble or not.
type sign func(trouble bool, n float64) []sample

// switched is a gauge with one value in trouble and another without.
func switched(bad, good float64, name string, pairs ...string) sign {
	return func(trouble bool, _ float64) []sample {
		if trouble {
			return []sample{series(bad, name, pairs...)}
		}
		return []sample{series(good, name, pairs...)}
	}
}

// signs has one entry for each alert of the group waitlist-alerts.
func signs() map[string]sign {
	dependency := func(name string) sign {
		return switched(0, 1, "waitlist_dependency_up", "service", "signup", "dependency", name)
	}
	rises := func(name string, pairs ...string) sign {
		counts := 0.0 // rises in trouble only; each alert's own, as they are tested side by side
		return func(trouble bool, _ float64) []sample {
			if trouble {
				counts++
			}
			return []sample{series(counts, name, append([]string{"service", "signup"}, pairs...)...)}
		}
	}
	var skipped, refused, ended, exported float64
	return map[string]sign{
		"WaitlistPostgresAway":        dependency("postgres"),
		"WaitlistRedisAway":           dependency("redis"),
		"WaitlistKafkaAway":           dependency("kafka"),
		"WaitlistOutboxOld":           switched(61, 0, "outbox_oldest_seconds", "service", "signup"),
		"WaitlistOutboxWithoutLeader": switched(0, 1, "outbox_leader", "service", "signup"),
		"WaitlistOutboxParked":        switched(1, 0, "outbox_rows", "service", "signup", "state", "parked"),
		"WaitlistConsumerStuck": func(trouble bool, _ float64) []sample {
			if !trouble {
				skipped++ // it moves, though nothing has an effect
			}
			return []sample{
				series(3, "kafka_consumer_lag", "service", "signup", "group", "signup", "topic", "t"),
				series(10, "kafka_consumer_handled_total", "service", "signup", "group", "signup"),
				series(skipped, "kafka_consumer_skipped_total", "service", "signup", "group", "signup"),
			}
		},
		"WaitlistDeadLetters":  rises("kafka_consumer_dead_letters_total", "group", "signup", "reason", "panic"),
		"WaitlistPaymentsAway": switched(1, 0, "billing_provider_breaker_open", "service", "billing"),
		"WaitlistMailAway":     rises("messaging_mails_total", "outcome", "away"),
		"WaitlistPoolExhausted": func(trouble bool, n float64) []sample {
			return append(switched(16, 15, "db_client_connection_count", "service", "signup", "db_client_connection_state", "used")(trouble, n),
				series(16, "db_client_connection_max", "service", "signup"))
		},
		"WaitlistSignupsRefused": rises("http_server_responses_total", "http_route", "/v1/public/waitlists/:waitlist_id/signups",
			"http_request_method", "POST", "http_response_status_code", "429"),
		"WaitlistConnectionsFull": switched(4500, 4400, "http_server_open_connections", "service", "signup"),
		"WaitlistProducerFails":   rises("kafka_producer_errors_total"),
		"WaitlistIndexBehind":     rises("signup_index_catch_ups_total", "outcome", "failed"),
		"WaitlistMailsOld":        switched(3601, 3599, "messaging_oldest_seconds", "service", "messaging", "what", "mail"),
		"WaitlistBlastStands":     switched(601, 599, "messaging_oldest_seconds", "service", "messaging", "what", "blast"),
		"WaitlistLoginsRefused": func(trouble bool, _ float64) []sample {
			if trouble {
				refused += 61
			}
			return []sample{series(refused, "account_password_checks_total", "service", "account", "outcome", "locked")}
		},
		"WaitlistSpansDropped": func(trouble bool, _ float64) []sample {
			ended += 100
			if !trouble {
				exported += 100
			}
			return []sample{
				series(ended, "otel_sdk_span_ended_total", "service", "signup"),
				series(exported, "otel_sdk_exporter_span_exported_total", "service", "signup"),
			}
		},
		"WaitlistCertificateExpires": func(trouble bool, _ float64) []sample {
			left := 30.0
			if trouble {
				left = 13
			}
			return []sample{series(float64(begin.Unix())+left*86400, "waitlist_certificate_expiry_timestamp_seconds",
				"service", "signup", "dependency", "kafka")}
		},
		"WaitlistKeyOld": func(trouble bool, _ float64) []sample {
			age := 399.0
			if trouble {
				age = 401
			}
			return []sample{series(float64(begin.Unix())-age*86400, "waitlist_key_created_timestamp_seconds",
				"service", "signup", "setting", "SEAL_KEYS")}
		},
		"WaitlistReleaseStalled": switched(1, 0, "canary_stalled", "name", "waitlist-signup", "reason", "Worse"),
		"WaitlistProbeFails":     rises("prober_step_failures_total", "step", "signup"),
		"WaitlistProbeSilent":    switched(1, 1e10, "prober_last_success_timestamp_seconds"),
		"WaitlistNothingScraped": func(bool, float64) []sample { return nil }, // the series of builds is its own
	}
}

// TestAlerts shows each alert its sign and nothing else: it must be silent before, fire, and
// be silent again, and no other may fire.
func TestAlerts(t *testing.T) {
	t.Parallel()
	all := map[string]bool{}
	for _, g := range newEngine(t).Groups {
		for _, r := range g.AlertingRules() {
			all[r.Name()] = all[r.Name()] || g.Name() == "waitlist-alerts"
		}
	}
	for name, sign := range signs() {
		if !all[name] {
			t.Errorf("there is no alert %s", name)
		}
		delete(all, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			minutes := func(n int, trouble bool) {
				for i := range n {
					samples := sign(trouble, float64(i))
					if name != "WaitlistNothingScraped" || !trouble {
						samples = append(samples, builds(name == "WaitlistNothingScraped")...)
					}
					e.step(time.Minute, samples)
				}
			}
			minutes(10, false)
			if len(e.fired) > 0 {
				t.Fatalf("before: %s", names(e.firing()))
			}
			minutes(15, true)
			if now := e.firing(); len(now) == 0 {
				t.Error("did not fire")
			}
			minutes(20, false)
			if now := e.firing(); len(now) > 0 {
				t.Errorf("after: %s", names(now))
			}
			for fired := range e.fired {
				if !strings.HasPrefix(fired, name+"/") {
					t.Errorf("%s fired, too", fired)
				}
			}
		})
	}
	for name, other := range all {
		if other {
			t.Errorf("%s has no sign in this test", name)
		}
	}
}

// TestPagesNotScraped lets the optional service vanish: it is missed for an hour, and then taken for switched off.
func TestPagesNotScraped(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	const alert = "WaitlistNothingScraped/critical"
	for minute := range 100 {
		e.step(time.Minute, builds(minute < 10))
		summary := e.firing()[alert]
		if missed := minute > 21 && minute < 68; missed && summary != "No pod of pages can be scraped." || minute > 70 && summary != "" {
			t.Fatalf("after %d minutes: %q", minute, summary)
		}
	}
	if len(e.fired) != 1 {
		t.Errorf("fired: %v", e.fired)
	}
}

// children returns the ids of the suite's processes whose command line has a word.
func (s *suite) children(word string) (pids []int) {
	s.Helper()
	out, err := exec.CommandContext(s.Context(), "ps", "-eo", "pid,ppid,args").Output()
	if err != nil {
		s.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")[1:]
	family := map[int]bool{s.cmd.Process.Pid: true}
	// A child may have a lower pid than its parent, so look until nobody is new.
	for before := 0; before < len(family); {
		before = len(family)
		for _, line := range lines {
			f := strings.Fields(line)
			if len(f) < 3 {
				continue
			}
			pid, _ := strconv.Atoi(f[0])
			parent, _ := strconv.Atoi(f[1])
			if family[parent] && !family[pid] {
				family[pid] = true
				if strings.Contains(line, word) {
					pids = append(pids, pid)
				}
			}
		}
	}
	if len(pids) == 0 {
		s.Fatalf("the suite runs no %s; without redis-server installed it has a stand-in", word)
	}
	return pids
}
