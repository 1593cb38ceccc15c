package observability_test

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// signups are the series of answered signups after some good and bad ones.
func signups(good, bad float64) []sample {
	const route = "/v1/public/waitlists/:waitlist_id/signups"
	out := []sample{}
	for status, n := range map[string]float64{"201": good, "500": bad} {
		out = append(out, series(n, "http_server_responses_total", "service", "signup", "http_route", route,
			"http_request_method", "POST", "http_response_status_code", status))
	}
	for _, s := range []string{"account", "admin-analytics", "billing", "messaging", "notifier", "signup"} {
		out = append(out, series(1, "waitlist_build_info", "service", s, "version", "test"))
	}
	return out
}

// TestBudgets feeds shares of errors, every two minutes, and says which alert fires after
// how long: the budget is 0.1 %.
func TestBudgets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		share float64 // of the signups of a minute that fail
		steps int     // minutes
		want  string
	}{
		"none":                   {0, 120, ""},
		"within the budget":      {.0005, 600, ""},
		"an outage of 2 minutes": {1, 2, ""},
		"an outage of 6 minutes": {1, 6, "critical"},
		"2 % for an hour":        {.02, 60, "critical"}, // 20 times: 14.4 in an hour
		"0.8 % for half an hour": {.008, 30, ""},
		"0.8 % for seven hours":  {.008, 7 * 60, "critical"}, // 8 times: 6 in six hours
		"0.4 % for twenty hours": {.004, 20 * 60, "warning"}, // 4 times: 3 in a day
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			var good, bad float64
			two := func(share float64) {
				good, bad = good+10_000*(1-share), bad+10_000*share
				e.step(2*time.Minute, signups(good, bad))
			}
			for range 2 * 60 { // a past without errors
				two(0)
			}
			for range c.steps / 2 {
				two(c.share)
			}
			const alert = "WaitlistBudgetSignupAnswered/"
			got := ""
			for _, severity := range []string{"warning", "critical"} {
				for fired := range e.fired {
					if strings.HasPrefix(fired, alert+severity) {
						got = severity
					}
				}
			}
			if got != c.want {
				t.Errorf("%q fired, want %q", got, c.want)
			}
			for fired := range e.fired {
				if !strings.HasPrefix(fired, alert) {
					t.Errorf("%s fired, too", fired)
				}
			}
			for range 40 {
				two(0)
			}
			now := e.firing()
			for fires := range now {
				if strings.HasPrefix(fires, alert+"critical") {
					t.Errorf("%s an hour after the last error", names(now))
				}
			}
		})
	}
}

// rulesFile is the chart's.
func rulesFile(t *testing.T) *rulefmt.RuleGroups {
	t.Helper()
	groups, errs := rulefmt.Parse([]byte(read(t, "charts/waitlist/files/rules.yaml")), false, model.UTF8Validation,
		parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return groups
}

// TestRunbooks follows the link of each alert.
func TestRunbooks(t *testing.T) {
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(read(t, "docs/runbooks.md"), -1) {
		headings[strings.ToLower(m[1])] = true
	}
	for _, g := range rulesFile(t).Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
			if page != "docs/runbooks.md" || !headings[anchor] {
				t.Errorf("%s: nothing at %q", r.Alert, r.Annotations["runbook_url"])
			}
			if r.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
				t.Errorf("%s has no summary or severity", r.Alert)
			}
		}
	}
}

// panel is a panel of Grafana's JSON.
type panel struct {
	dashboard   string
	Title       string `json:"title"`
	Description string `json:"description"`
	FieldConfig struct {
		Defaults struct{ Unit string } `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct{ Expr string } `json:"targets"`
}

// panels returns the panels of all dashboards, with their variables replaced by everything.
func panels(t *testing.T) []panel {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "charts/waitlist/files/dashboards/*.json"))
	if err != nil || len(files) != 9 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	var out []panel
	for _, f := range files {
		var d struct{ Panels []panel }
		body := read(t, strings.TrimPrefix(f, root+"/"))
		body = strings.NewReplacer("$namespace", namespace, "$service", ".*", "$version", ".*", "$__rate_interval", "5m").Replace(body)
		if err := json.Unmarshal([]byte(body), &d); err != nil {
			t.Fatal(err)
		}
		for _, p := range d.Panels {
			p.dashboard = filepath.Base(f)
			out = append(out, p)
		}
	}
	return out
}

// TestPanels parses each expression and asks for a unit and a sentence.
func TestPanels(t *testing.T) {
	parse := parser.NewParser(parser.Options{})
	for _, p := range panels(t) {
		for _, q := range p.Targets {
			if _, err := parse.ParseExpr(q.Expr); err != nil {
				t.Errorf("%s, %s: %v", p.dashboard, p.Title, err)
			}
		}
		if p.FieldConfig.Defaults.Unit == "" || !strings.HasSuffix(p.Description, ".") || len(p.Targets) == 0 {
			t.Errorf("%s, %s has no unit, no sentence or no query", p.dashboard, p.Title)
		}
	}
}
