// Package engine is Prometheus as a library: its storage, its PromQL and the chart's rules.
// Its user owns the clock: Eval takes the time, so that a test of a month takes seconds.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/tsdb"
)

// exemplars is how many exemplars are kept, of all series together.
const exemplars = 20_000

// Engine holds everything in one folder until Close. It is safe for concurrent use, except Eval.
type Engine struct {
	DB     *tsdb.DB
	PromQL *promql.Engine
	// Groups are the chart's, in the order in which Eval takes them.
	Groups []*rules.Group
}

// Open opens an engine in a folder, with the rules of the repository at root for the label
// namespace. It deletes samples older than retention; 0 keeps all.
func Open(ctx context.Context, dir, root, namespace string, retention time.Duration) (_ *Engine, err error) {
	quiet := slog.New(slog.DiscardHandler)
	options := tsdb.DefaultOptions()
	options.RetentionDuration = retention.Milliseconds()
	options.EnableExemplarStorage, options.MaxExemplars = true, exemplars
	if retention == 0 { // one block, so that a test may go through months
		options.MinBlockDuration = (100 * 24 * time.Hour).Milliseconds()
		options.MaxBlockDuration = options.MinBlockDuration
	}
	db, err := tsdb.Open(filepath.Join(dir, "tsdb"), quiet, nil, options, nil)
	if err != nil {
		return nil, fmt.Errorf("open the storage: %w", err)
	}
	e := &Engine{DB: db, PromQL: promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	body, err := os.ReadFile(filepath.Join(root, "charts/waitlist/files/rules.yaml"))
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(body), "NAMESPACE", namespace)), 0o600); err != nil {
		return nil, err
	}
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(e.PromQL, db), Context: ctx, AppendableV2: db, Queryable: db, Logger: quiet,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
	})
	groups, errs := m.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, file)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	// Evaluate recorded ratios before the alerts on them; the map has no order.
	for _, name := range []string{"waitlist-objectives", "waitlist-budgets", "waitlist-alerts"} {
		for _, g := range groups {
			if g.Name() == name {
				e.Groups = append(e.Groups, g)
			}
		}
	}
	if len(e.Groups) != len(groups) {
		return nil, fmt.Errorf("%d groups of rules, of which %d are known", len(groups), len(e.Groups))
	}
	return e, nil
}

// Close closes the storage.
func (e *Engine) Close() error { return errors.Join(e.PromQL.Close(), e.DB.Close()) }

// Eval evaluates all rules at a time, which never goes back. It is not safe for concurrent use.
func (e *Engine) Eval(ctx context.Context, now time.Time) error {
	var errs []error
	for _, g := range e.Groups {
		g.Eval(ctx, now)
		for _, r := range g.Rules() {
			if err := r.LastError(); err != nil {
				errs = append(errs, fmt.Errorf("rule %s: %w", r.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}
