package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
	waitlist "waitlist.internal/tools/sdk/go"
)

const (
	// listName is the name of the prober's waitlist.
	listName = "Prober"
	// leftoverAge is long enough for every round under way to end.
	leftoverAge = 10 * time.Minute
	// roundTimeout bounds a round; so does PROBER_EVERY.
	roundTimeout = 30 * time.Second
	// cleanupTimeout bounds the deletions after a round, which happen even if the round
	// failed.
	cleanupTimeout = 10 * time.Second
	// looks is how often places are compared before they count as wrong: two requests are
	// not one snapshot, and another prober may be at work.
	looks = 3
)

// Steps of a round, in their order. Each is a value of the metrics' label step.
const (
	stepWaitlist = "waitlist" // the owner's list is there, with the settings that the round needs
	stepConfig   = "config"   // the form's configuration is public
	stepSignup   = "signup"   // somebody signs up
	stepReferral = "referral" // a friend signs up by their link
	stepStatus   = "status"   // the referral counts and the places are right
	stepWebhook  = "webhook"  // all of it has arrived at the owner's webhook
	stepDelete   = "delete"   // both are deleted, and gone
)

var steps = []string{stepWaitlist, stepConfig, stepSignup, stepReferral, stepStatus, stepWebhook, stepDelete}

// prober makes rounds. It is a collector of their metrics.
type prober struct {
	cfg Config
	// public calls as a person does, owner as the prober's account. Neither tries twice: a
	// person would have seen the failure.
	public, owner *waitlist.Client
	log           *slog.Logger

	list string // id of the waitlist, once known
	// leftover is the age from which people of earlier rounds are deleted.
	leftover time.Duration

	mu sync.Mutex
	// awaited has the webhooks that the round under way waits for.
	awaited map[hook]time.Time

	rounds   *prometheus.CounterVec
	failures *prometheus.CounterVec
	took     *prometheus.HistogramVec
	last     prometheus.Gauge
}

// hook names a webhook: what happened to whom. Its value in prober.awaited is when it
// arrived, or zero.
type hook struct{ event, email string }

func newProber(cfg Config, client *http.Client, log *slog.Logger) (*prober, error) {
	common := []waitlist.Option{waitlist.HTTPClient(client), waitlist.Attempts(1)}
	public, err := waitlist.New(cfg.API, common...)
	if err != nil {
		return nil, err
	}
	owner, err := waitlist.New(cfg.API, append(common, waitlist.APIKey(cfg.APIKey))...)
	if err != nil {
		return nil, err
	}
	p := &prober{
		cfg: cfg, public: public, owner: owner, log: log, leftover: leftoverAge, awaited: map[hook]time.Time{},
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_rounds_total", Help: "Rounds by result: ok or failed.",
		}, []string{"result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_step_failures_total", Help: "Rounds that failed, by the step that did.",
		}, []string{"step"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_step_duration_seconds", Help: "How long the steps that succeeded took.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"step"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prober_last_success_timestamp_seconds", Help: "When the last round succeeded; 0 before the first.",
		}),
	}
	// A series that begins with its first failure shows no rise.
	for _, step := range steps {
		if step != stepWebhook || cfg.WebhookURL != "" {
			p.failures.WithLabelValues(step)
		}
	}
	p.rounds.WithLabelValues("ok")
	p.rounds.WithLabelValues("failed")
	return p, nil
}

func (p *prober) collectors() []prometheus.Collector {
	return []prometheus.Collector{p.rounds, p.failures, p.took, p.last}
}

// Describe implements prometheus.Collector.
func (p *prober) Describe(to chan<- *prometheus.Desc) {
	for _, c := range p.collectors() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (p *prober) Collect(to chan<- prometheus.Metric) {
	for _, c := range p.collectors() {
		c.Collect(to)
	}
}

// run makes a round at once and then one each Config.Every until ctx ends.
func (p *prober) run(ctx context.Context) error {
	p.count(ctx)
	for range loop.Every(ctx, p.cfg.Every) {
		p.count(ctx)
	}
	return nil
}

// stepError is the failure of a step.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

func (p *prober) count(ctx context.Context) {
	start := time.Now()
	err := p.round(ctx)
	var failed *stepError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &failed):
		p.rounds.WithLabelValues("failed").Inc()
		p.failures.WithLabelValues(failed.step).Inc()
		p.log.ErrorContext(ctx, "round failed", slog.String("step", failed.step), telemetry.Err(failed.err))
	default:
		p.rounds.WithLabelValues("ok").Inc()
		p.last.SetToCurrentTime()
		p.log.InfoContext(ctx, "round succeeded", slog.Duration("took", time.Since(start)))
	}
}

// round returns a *stepError, or nil.
func (p *prober) round(parent context.Context) (err error) {
	ctx, cancel := context.WithTimeout(parent, min(p.cfg.Every, roundTimeout))
	defer cancel()
	if err := p.step(stepWaitlist, func() error { return p.prepare(ctx) }); err != nil {
		return err
	}
	name, domain, _ := strings.Cut(p.cfg.Email, "@")
	tag := strings.ToLower(rand.Text())
	ann, bob := name+"+"+tag+"-a@"+domain, name+"+"+tag+"-b@"+domain
	begin := time.Now()
	if p.cfg.WebhookURL != "" {
		defer p.await(hook{"signup.created", ann}, hook{"signup.created", bob}, hook{"referral.credited", ann})()
	}
	defer func() {
		// A round that failed leaves nobody behind, either.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), cleanupTimeout)
		defer cancel()
		deleted := p.step(stepDelete, func() error { return p.remove(ctx, err == nil, ann, bob) })
		if err == nil {
			err = deleted
		}
	}()

	err = p.step(stepConfig, func() error { _, err := p.public.Form(ctx, p.list); return err })
	if err != nil {
		return err
	}
	var place waitlist.Place
	err = p.step(stepSignup, func() error {
		place, err = p.public.SignUp(ctx, p.list, waitlist.NewSignup{Email: ann})
		return err
	})
	if err != nil {
		return err
	}
	err = p.step(stepReferral, func() error {
		_, err := p.public.SignUp(ctx, p.list, waitlist.NewSignup{Email: bob, ReferredBy: place.ReferralToken})
		return err
	})
	if err != nil {
		return err
	}
	if err := p.step(stepStatus, func() error { return p.compare(ctx, ann, bob) }); err != nil {
		return err
	}
	if p.cfg.WebhookURL == "" {
		return nil
	}
	arrived, err := p.arrival(ctx)
	if err != nil {
		return &stepError{stepWebhook, err}
	}
	p.took.WithLabelValues(stepWebhook).Observe(arrived.Sub(begin).Seconds())
	return nil
}

// step does a step and, if it succeeds, observes how long it took.
func (p *prober) step(name string, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		return &stepError{name, err}
	}
	p.took.WithLabelValues(name).Observe(time.Since(start).Seconds())
	return nil
}

// prepare finds or makes the waitlist, and deletes people whom a killed prober left there.
func (p *prober) prepare(ctx context.Context) error {
	if p.list != "" {
		return p.sweep(ctx)
	}
	all, err := p.owner.Waitlists(ctx)
	if err != nil {
		return err
	}
	var id string
	if i := slices.IndexFunc(all, func(l waitlist.ListedWaitlist) bool { return l.Name == listName }); i >= 0 {
		id = all[i].ID
	} else {
		made, err := p.owner.CreateWaitlist(ctx, listName, nil)
		if err != nil {
			return err
		}
		id = made.ID
	}
	if p.cfg.WebhookURL != "" {
		settings := waitlist.Settings{"webhook_url": p.cfg.WebhookURL, "webhook_events": []string{"signup.created", "referral.credited"}}
		if _, err := p.owner.ChangeWaitlist(ctx, id, "", settings); err != nil {
			return err
		}
	}
	p.list = id
	return p.sweep(ctx)
}

func (p *prober) sweep(ctx context.Context) error {
	var left []string
	for s, err := range p.owner.Signups(ctx, p.list) {
		if waitlist.Is(err, waitlist.NotFound) {
			p.list = "" // somebody deleted it; the next round makes a new one
		}
		if err != nil {
			return err
		}
		if time.Since(s.CreatedAt) >= p.leftover {
			left = append(left, s.Email)
		}
	}
	for _, email := range left {
		if err := p.delete(ctx, email); err != nil {
			return err
		}
	}
	return nil
}

// compare checks that the friend's signup counts for ann and that she stands before him.
func (p *prober) compare(ctx context.Context, ann, bob string) error {
	for look := 1; ; look++ {
		a, err := p.public.Place(ctx, p.list, ann)
		if err != nil {
			return err
		}
		b, err := p.public.Place(ctx, p.list, bob)
		if err != nil {
			return err
		}
		switch {
		case a.ReferralCount != 1:
			return fmt.Errorf("a referral was made, %d are counted", a.ReferralCount)
		case a.Position >= 1 && a.Position < b.Position:
			return nil
		case look == looks:
			return fmt.Errorf("the referrer is at place %d, the friend at %d", a.Position, b.Position)
		}
	}
}

// remove deletes people and, if they must have existed, checks that they are gone.
func (p *prober) remove(ctx context.Context, existed bool, people ...string) error {
	var errs []error
	for _, email := range people {
		if err := p.delete(ctx, email); err != nil {
			errs = append(errs, err)
			continue
		}
		if !existed {
			continue
		}
		if _, err := p.public.Place(ctx, p.list, email); err == nil {
			errs = append(errs, errors.New("somebody who was deleted is still there"))
		} else if !waitlist.Is(err, waitlist.NotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// delete removes somebody, who may be gone already.
func (p *prober) delete(ctx context.Context, email string) error {
	err := p.owner.RemoveSignup(ctx, p.list, email)
	if waitlist.Is(err, waitlist.NotFound) {
		return nil
	}
	return err
}

// await adds hooks to the awaited ones. done clears them all.
func (p *prober) await(hooks ...hook) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range hooks {
		p.awaited[h] = time.Time{}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		clear(p.awaited)
	}
}

// hooked takes the body of a webhook. It ignores what nobody awaits: anybody may post here.
func (p *prober) hooked(raw []byte, at time.Time) {
	var body struct {
		Event      string `json:"event"`
		WaitlistID string `json:"waitlist_id"`
		Data       struct {
			Email string `json:"email"`
		} `json:"data"`
	}
	if json.Unmarshal(raw, &body) != nil {
		return
	}
	h := hook{body.Event, body.Data.Email}
	p.mu.Lock()
	defer p.mu.Unlock()
	if was, ok := p.awaited[h]; ok && was.IsZero() {
		p.awaited[h] = at
	}
}

// arrival waits for the awaited webhooks and returns when the last one arrived.
func (p *prober) arrival(ctx context.Context) (last time.Time, err error) {
	for {
		var missing []string
		p.mu.Lock()
		for h, at := range p.awaited {
			if at.IsZero() {
				missing = append(missing, h.event)
			} else if at.After(last) {
				last = at
			}
		}
		p.mu.Unlock()
		if len(missing) == 0 {
			return last, nil
		}
		if !loop.Wait(ctx, 20*time.Millisecond) {
			return last, fmt.Errorf("no webhook in time: %s", strings.Join(missing, ", "))
		}
	}
}
