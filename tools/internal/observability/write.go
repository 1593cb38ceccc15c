package observability

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// Namespace stands for the release's namespace in the rules; the chart replaces it.
const Namespace = "NAMESPACE"

// Runbooks is the file of the runbooks. The chart replaces it by an address.
const Runbooks = "docs/runbooks.md"

// windows are those of the recorded ratios.
var windows = []string{"5m", "30m", "1h", "2h", "6h", "1d", "3d", Window} // a constant

// burns are the rates that alert: the budget of 30 days would last 30 days ÷ factor.
var burns = []struct { // a constant
	factor                     float64
	long, short, wait, urgency string
}{
	{14.4, "1h", "5m", "2m", "critical"},
	{6, "6h", "30m", "15m", "critical"},
	{3, "1d", "2h", "1h", "warning"},
	{1, "3d", "6h", "3h", "warning"},
}

type rule struct {
	Record      string            `yaml:"record,omitempty"`
	Alert       string            `yaml:"alert,omitempty"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

type group struct {
	Name  string `yaml:"name"`
	Rules []rule `yaml:"rules"`
}

func inNamespace(expr string) string {
	return strings.ReplaceAll(expr, "$NS", `namespace="`+Namespace+`"`)
}

// burnAlert is the name of the alert on an objective's budget.
func burnAlert(o Objective) string {
	var b strings.Builder
	for word := range strings.SplitSeq(o.Name, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return "WaitlistBudget" + b.String()
}

// variable is what Prometheus puts into a summary.
var variable = regexp.MustCompile(`{{ \$(?:labels\.)?(\w+)[^}]* }}`)

func anchor(alert string) string { return Runbooks + "#" + strings.ToLower(alert) }

// Rules returns the file of rules: recorded ratios and the alerts.
func Rules() ([]byte, error) {
	record := group{Name: "waitlist-objectives"}
	burn, others := group{Name: "waitlist-budgets"}, group{Name: "waitlist-alerts"}
	for _, o := range Objectives() {
		slo := map[string]string{"slo": o.Name, "namespace": Namespace}
		add := func(name, expr string) {
			record.Rules = append(record.Rules, rule{Record: name, Expr: inNamespace(expr), Labels: slo})
		}
		// Without events, a ratio would be NaN, so none is recorded.
		add("slo:all:rate5m", o.All)
		add("slo:bad:rate5m", o.Bad)
		sel := fmt.Sprintf("{$NS,slo=%q}", o.Name)
		for _, w := range windows {
			add("slo:bad:ratio_"+w, fmt.Sprintf("avg_over_time(slo:bad:rate5m%s[%s])\n/ (avg_over_time(slo:all:rate5m%s[%s]) > 0)", sel, w, sel, w))
		}
		add("slo:burn:1h", fmt.Sprintf("slo:bad:ratio_1h%s / %.4g", sel, 1-o.Target))
		add("slo:budget_left:ratio", fmt.Sprintf("1 - slo:bad:ratio_%s%s / %.4g", Window, sel, 1-o.Target))
		for _, b := range burns {
			limit := fmt.Sprintf("%.5g", b.factor*(1-o.Target))
			burn.Rules = append(burn.Rules, rule{
				Alert: burnAlert(o), For: b.wait, Labels: map[string]string{"severity": b.urgency, "long": b.long, "short": b.short},
				Expr: inNamespace(fmt.Sprintf("slo:bad:ratio_%s%s > %s\nand slo:bad:ratio_%s%s > %s", b.long, sel, limit, b.short, sel, limit)),
				Annotations: map[string]string{
					"summary":     fmt.Sprintf("%s: the budget of %s burns at %g times the allowed rate. %s", o.Title, Window, b.factor, o.Promise),
					"runbook_url": anchor(burnAlert(o)),
				},
			})
		}
	}
	for _, a := range Alerts() {
		r := rule{
			Alert: a.Name, Expr: inNamespace(a.Expr), Labels: map[string]string{"severity": a.Severity, "namespace": Namespace},
			Annotations: map[string]string{"summary": a.Summary, "runbook_url": anchor(a.Name)},
		}
		if a.For != "0m" {
			r.For = a.For
		}
		others.Rules = append(others.Rules, r)
	}
	out := bytes.NewBufferString("# Written by tools/cmd/observability; see docs/observability.md.\n")
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	err := e.Encode(map[string]any{"groups": []group{record, burn, others}})
	return out.Bytes(), err
}

// runbooks returns the page of runbooks. An alert without one is an error.
func runbooks() (string, error) {
	var pages strings.Builder
	var errs []error
	seen := map[string]bool{}
	add := func(name, sign string, r Runbook) {
		if seen[name] {
			return
		}
		seen[name] = true
		if r.Meaning == "" || len(r.Commands) != 3 {
			errs = append(errs, fmt.Errorf("%s has no runbook: say what it means and the first three commands", name))
		}
		fmt.Fprintf(&pages, "\n## %s\n\n**%s** %s\n\n    %s\n", name, sign, r.Meaning, strings.Join(r.Commands, "\n    "))
	}
	for _, o := range Objectives() {
		add(burnAlert(o), "Broken too often: "+o.Promise, o.Runbook)
	}
	for _, a := range Alerts() {
		add(a.Name, variable.ReplaceAllString(a.Summary, "`<$1>`"), a.Runbook)
	}
	return "<!-- Written by tools/cmd/observability from tools/internal/observability. -->\n# Runbooks\n\n" +
		"What each alert means and the first three commands. `<pod>` is a pod's address; `SELECT` is for psql, as an administrator. Kafka's\n" +
		"scripts, `openssl`, `ss`, `kubectl top` and `kubectl get certificate` are not tried. Causes: [operations](operations.md#on-call),\n" +
		"[debugging](debugging.md).\n" + pages.String(), errors.Join(errs...)
}

// Write writes all files below root.
func Write(root string) error {
	files := map[string][]byte{}
	var err error
	if files["charts/waitlist/files/rules.yaml"], err = Rules(); err != nil {
		return err
	}
	page, err := runbooks()
	if err != nil {
		return err
	}
	files[Runbooks] = []byte(page)
	for _, d := range Dashboards() {
		body, err := grafana(d)
		if err != nil {
			return err
		}
		files["charts/waitlist/files/dashboards/"+d.UID+".json"] = body
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(root, name), body, 0o644); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}
