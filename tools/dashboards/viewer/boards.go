package viewer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

const (
	// points is how many points a line has at most.
	points = 180
	// maxExemplars is how many exemplars a panel shows at most: those with the largest values.
	maxExemplars = 60
)

// board is what this page reads of Grafana's JSON.
type board struct {
	UID, Title string
	Panels     []struct {
		Title, Description string
		Targets            []struct{ Expr, LegendFormat string }
		FieldConfig        struct{ Defaults struct{ Unit string } }
	}
	Templating struct {
		List []struct {
			Name, Label, Type string
			IncludeAll        bool
			Query             json.RawMessage
		}
	}
}

// drawn is a dashboard with the numbers of a range. Times are Unix seconds, one for all panels.
type drawn struct {
	Title     string     `json:"title"`
	Variables []variable `json:"variables"`
	Times     []int64    `json:"times"`
	Panels    []panel    `json:"panels"`
}

type variable struct {
	Name    string   `json:"name"`
	Label   string   `json:"label"`
	Options []string `json:"options"`
	// Value is "" for all.
	Value string `json:"value"`
	All   bool   `json:"all"`
}

type panel struct {
	Title    string `json:"title"`
	Sentence string `json:"sentence"`
	Unit     string `json:"unit"`
	Lines    []line `json:"lines"`
	// Exemplars are of the histograms that the panel's quantiles are made of.
	Exemplars []exemplar `json:"exemplars"`
}

// exemplar is one of the values that a histogram counted, with its trace, which the viewer still
// has.
type exemplar struct {
	At    float64 `json:"at"` // Unix seconds
	Value float64 `json:"value"`
	Trace string  `json:"trace"`
}

// line has a value for each time, nil where there is none.
type line struct {
	Name   string     `json:"name"`
	Values []*float64 `json:"values"`
}

// boards reads the generated dashboards, so a page that is loaded anew shows what was generated
// anew.
func (v *Viewer) boards() ([]board, error) {
	files, err := filepath.Glob(filepath.Join(v.cfg.Root, "charts/waitlist/files/dashboards/*.json"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("no dashboards below %s", v.cfg.Root), err)
	}
	var out []board
	for _, f := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var b board
		if err := json.Unmarshal(body, &b); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		b.Title = strings.TrimPrefix(b.Title, "Waitlist / ")
		out = append(out, b)
	}
	return out, nil
}

var (
	labelValues = regexp.MustCompile(`^label_values\((.+), *(\w+)\)$`)
	legendLabel = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
)

// errValue is returned for a variable's value that no series has.
var errValue = errors.New("no series has this value")

// draw asks the engine for a dashboard's panels between two times. chosen has the values of
// variables; only values that series have are accepted, so that no value can change the
// PromQL.
func (v *Viewer) draw(ctx context.Context, b board, chosen url.Values, from, to time.Time) (drawn, error) {
	out := drawn{Title: b.Title, Variables: []variable{}, Panels: []panel{}}
	step := max(to.Sub(from)/points, v.cfg.Interval).Truncate(time.Second)
	to = to.Truncate(step)
	from = from.Truncate(step)
	for at := from; !at.After(to); at = at.Add(step) {
		out.Times = append(out.Times, at.Unix())
	}
	// As Grafana computes it.
	replace := map[string]string{"$__rate_interval": fmt.Sprintf("%ds", int(max(4*v.cfg.Interval, step+v.cfg.Interval).Seconds()))}
	expand := func(expr string) string {
		for name, value := range replace {
			expr = strings.ReplaceAll(expr, name, value)
		}
		return expr
	}
	for _, t := range b.Templating.List {
		if t.Type != "query" {
			continue
		}
		var query struct{ Query string }
		if err := json.Unmarshal(t.Query, &query); err != nil {
			return drawn{}, fmt.Errorf("variable %s: %w", t.Name, err)
		}
		options, err := v.options(ctx, expand(query.Query), from, to)
		if err != nil {
			return drawn{}, fmt.Errorf("variable %s: %w", t.Name, err)
		}
		value := chosen.Get(t.Name)
		if value != "" && !slices.Contains(options, value) {
			return drawn{}, fmt.Errorf("%s %q: %w", t.Name, value, errValue)
		}
		if value == "" && !t.IncludeAll && len(options) > 0 {
			value = options[0]
		}
		out.Variables = append(out.Variables, variable{t.Name, t.Label, options, value, t.IncludeAll})
		switch {
		case value == "":
			replace["$"+t.Name] = ".*"
		case t.IncludeAll: // matched as a regular expression, in a string of PromQL
			replace["$"+t.Name] = strings.ReplaceAll(regexp.QuoteMeta(value), `\`, `\\`)
		default:
			replace["$"+t.Name] = value
		}
	}
	for _, p := range b.Panels {
		shown := panel{p.Title, p.Description, p.FieldConfig.Defaults.Unit, []line{}, []exemplar{}}
		for _, t := range p.Targets {
			lines, err := v.lines(ctx, expand(t.Expr), t.LegendFormat, out.Times, step)
			if err != nil {
				return drawn{}, fmt.Errorf("%s, %s: %w", b.Title, p.Title, err)
			}
			shown.Lines = append(shown.Lines, lines...)
			if len(shown.Exemplars) == 0 { // all quantiles of a panel are of one histogram
				if shown.Exemplars, err = v.exemplars(ctx, expand(t.Expr), from, to); err != nil {
					return drawn{}, fmt.Errorf("%s, %s: %w", b.Title, p.Title, err)
				}
			}
		}
		out.Panels = append(out.Panels, shown)
	}
	return out, nil
}

// lines returns the lines of one expression, without those that have no number.
func (v *Viewer) lines(ctx context.Context, expr, legend string, times []int64, step time.Duration) ([]line, error) {
	q, err := v.engine.PromQL.NewRangeQuery(ctx, v.engine.DB, nil, expr,
		time.Unix(times[0], 0), time.Unix(times[len(times)-1], 0), step)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	matrix, err := q.Exec(ctx).Matrix()
	if err != nil {
		return nil, err
	}
	var out []line
	for _, series := range matrix {
		l := line{legendLabel.ReplaceAllStringFunc(legend, func(m string) string {
			return series.Metric.Get(legendLabel.FindStringSubmatch(m)[1])
		}), make([]*float64, len(times))}
		numbers := 0
		for _, f := range series.Floats {
			i := (f.T/1000 - times[0]) / int64(step.Seconds())
			if !math.IsNaN(f.F) && !math.IsInf(f.F, 0) {
				l.Values[i] = new(f.F)
				numbers++
			}
		}
		if numbers > 0 {
			out = append(out, l)
		}
	}
	slices.SortStableFunc(out, func(a, b line) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// exemplars returns the largest exemplars of the histograms that an expression makes a quantile of.
func (v *Viewer) exemplars(ctx context.Context, expr string, from, to time.Time) ([]exemplar, error) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return nil, err
	}
	out := []exemplar{}
	if call, ok := parsed.(*parser.Call); !ok || call.Func.Name != "histogram_quantile" {
		return out, nil
	}
	querier, err := v.engine.DB.ExemplarQuerier(ctx)
	if err != nil {
		return nil, err
	}
	found, err := querier.Select(from.UnixMilli(), to.UnixMilli(), parser.ExtractSelectors(parsed)...)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, series := range found {
		for _, e := range series.Exemplars {
			if id := e.Labels.Get("trace_id"); !seen[id] && v.traces.has(id) {
				seen[id] = true
				out = append(out, exemplar{float64(e.Ts) / 1000, e.Value, id})
			}
		}
	}
	slices.SortFunc(out, func(a, b exemplar) int { return cmp.Compare(b.Value, a.Value) })
	return out[:min(maxExemplars, len(out))], nil
}

// options returns the values that a variable may have: those of label_values(selector, label).
func (v *Viewer) options(ctx context.Context, query string, from, to time.Time) ([]string, error) {
	m := labelValues.FindStringSubmatch(query)
	if m == nil {
		return nil, fmt.Errorf("%s is not label_values(selector, label)", query)
	}
	matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector(m[1])
	if err != nil {
		return nil, err
	}
	querier, err := v.engine.DB.Querier(from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, err
	}
	values, _, err := querier.LabelValues(ctx, m[2], &storage.LabelHints{}, matchers...)
	return slices.Sorted(slices.Values(values)), errors.Join(err, querier.Close())
}

// up returns how many of the scraped addresses answered the last scrape, and how many there are.
func (v *Viewer) up(ctx context.Context) (answered, all int, err error) {
	q, err := v.engine.PromQL.NewInstantQuery(ctx, v.engine.DB, nil, "up", time.Now())
	if err != nil {
		return 0, 0, err
	}
	defer q.Close()
	vector, err := q.Exec(ctx).Vector()
	for _, s := range vector {
		all++
		if s.F == 1 {
			answered++
		}
	}
	return answered, all, err
}

// alert is a rule with its state: inactive, pending or firing.
type alert struct {
	Name     string     `json:"name"`
	Severity string     `json:"severity"`
	State    string     `json:"state"`
	Since    *time.Time `json:"since,omitempty"`
	For      string     `json:"for"`
	Expr     string     `json:"expr"`
	Summary  string     `json:"summary"`
	Runbook  string     `json:"runbook"`
}

// alerts returns each active alert, and each rule without one.
func (v *Viewer) alerts() []alert {
	out := []alert{}
	for _, g := range v.engine.Groups {
		for _, r := range g.AlertingRules() {
			a := alert{
				Name: r.Name(), Severity: r.Labels().Get("severity"), State: "inactive", For: model.Duration(r.HoldDuration()).String(),
				Expr: r.Query().String(), Summary: r.Annotations().Get("summary"), Runbook: r.Annotations().Get("runbook_url"),
			}
			if window := r.Labels().Get("long"); window != "" {
				a.Name += " " + window
			}
			active := r.ActiveAlerts()
			if len(active) == 0 {
				out = append(out, a)
			}
			for _, now := range active {
				a.State, a.Since, a.Summary = now.State.String(), new(now.ActiveAt), now.Annotations.Get("summary")
				out = append(out, a)
			}
		}
	}
	rank := map[string]int{"firing": 0, "pending": 1, "inactive": 2}
	slices.SortStableFunc(out, func(a, b alert) int {
		if d := rank[a.State] - rank[b.State]; d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}
