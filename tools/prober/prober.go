package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

const (
	// listName is the name of the prober's waitlist.
	listName = "Prober"
	// leftoverAge is long enough for every round under way to end.
	leftoverAge = 10 * time.Minute
	// cleanupTimeout bounds the deletions after a round, which happen whatever became of it.
	cleanupTimeout = 10 * time.Second
	// maxAnswer bounds the body of an answer, in bytes.
	maxAnswer = 8 << 20
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
	cfg    Config
	client *http.Client
	log    *slog.Logger

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

func newProber(cfg Config, client *http.Client, log *slog.Logger) *prober {
	p := &prober{
		cfg: cfg, client: client, log: log, leftover: leftoverAge, awaited: map[hook]time.Time{},
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
	return p
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

// signedUp is what the suite says of somebody who signs up.
type signedUp struct {
	ReferralToken string `json:"referral_token"`
	Position      int64  `json:"position"`
	ReferralCount int64  `json:"referral_count"`
	TotalSignups  int64  `json:"total_signups"`
}

// round returns a *stepError, or nil.
func (p *prober) round(parent context.Context) (err error) {
	ctx, cancel := context.WithTimeout(parent, p.cfg.Timeout)
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

	public := "/public/waitlists/" + p.list
	err = p.step(stepConfig, func() error { return p.call(ctx, http.MethodGet, public+"/config", nil, nil, http.StatusOK) })
	if err != nil {
		return err
	}
	var a, b signedUp
	err = p.step(stepSignup, func() error {
		return p.call(ctx, http.MethodPost, public+"/signups", map[string]string{"email": ann}, &a, http.StatusCreated)
	})
	if err != nil {
		return err
	}
	err = p.step(stepReferral, func() error {
		body := map[string]string{"email": bob, "referred_by_token": a.ReferralToken}
		return p.call(ctx, http.MethodPost, public+"/signups", body, &b, http.StatusCreated)
	})
	if err != nil {
		return err
	}
	if err := p.step(stepStatus, func() error { return p.compare(ctx, public, ann, bob) }); err != nil {
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

// step does a step and observes how long it took.
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
	var all struct {
		Waitlists []struct {
			ID   string `json:"waitlist_id"`
			Name string `json:"name"`
		} `json:"waitlists"`
	}
	if err := p.call(ctx, http.MethodGet, "/waitlists", nil, &all, http.StatusOK); err != nil {
		return err
	}
	id := ""
	for _, l := range all.Waitlists {
		if l.Name == listName {
			id = l.ID
			break
		}
	}
	if id == "" {
		var made struct {
			ID string `json:"waitlist_id"`
		}
		if err := p.call(ctx, http.MethodPost, "/waitlists", map[string]string{"name": listName}, &made, http.StatusCreated); err != nil {
			return err
		}
		id = made.ID
	}
	if p.cfg.WebhookURL != "" {
		settings := map[string]any{"webhook_url": p.cfg.WebhookURL, "webhook_events": []string{"signup.created", "referral.credited"}}
		body := map[string]any{"settings": settings}
		if err := p.call(ctx, http.MethodPatch, "/waitlists/"+id, body, nil, http.StatusOK); err != nil {
			return err
		}
	}
	p.list = id
	return p.sweep(ctx)
}

func (p *prober) sweep(ctx context.Context) error {
	var page struct {
		Signups []struct {
			Email     string    `json:"email"`
			CreatedAt time.Time `json:"created_at"`
		} `json:"signups"`
	}
	err := p.call(ctx, http.MethodGet, "/waitlists/"+p.list+"/signups?limit=100", nil, &page, http.StatusOK)
	var answer *answerError
	if errors.As(err, &answer) && answer.status == http.StatusNotFound {
		p.list = "" // somebody deleted it; the next round makes a new one
	}
	if err != nil {
		return err
	}
	for _, s := range page.Signups {
		if time.Since(s.CreatedAt) < p.leftover {
			continue
		}
		if err := p.delete(ctx, s.Email); err != nil {
			return err
		}
	}
	return nil
}

// compare checks that the friend's signup counts for ann and that she stands before him.
func (p *prober) compare(ctx context.Context, public, ann, bob string) error {
	for look := 1; ; look++ {
		var a, b signedUp
		for who, to := range map[string]*signedUp{ann: &a, bob: &b} {
			if err := p.call(ctx, http.MethodGet, public+"/signups/"+url.PathEscape(who), nil, to, http.StatusOK); err != nil {
				return err
			}
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
		if existed {
			errs = append(errs, p.call(ctx, http.MethodGet, "/public/waitlists/"+p.list+"/signups/"+url.PathEscape(email), nil, nil,
				http.StatusNotFound))
		}
	}
	return errors.Join(errs...)
}

func (p *prober) delete(ctx context.Context, email string) error {
	return p.call(ctx, http.MethodDelete, "/waitlists/"+p.list+"/signups/"+url.PathEscape(email), nil, nil,
		http.StatusNoContent, http.StatusNotFound)
}

// await makes hooks the awaited ones until done is called.
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

// answerError is an answer that was not expected.
type answerError struct {
	method, path string
	status       int
	body         string
	requestID    string
}

func (e *answerError) Error() string {
	return fmt.Sprintf("%s %s was answered %d %s (request %s)", e.method, e.path, e.status, e.body, e.requestID)
}

// call makes a request and decodes the answer into out unless that is nil. It returns an
// *answerError for a status that is not among want.
func (p *prober) call(ctx context.Context, method, path string, body, out any, want ...int) error {
	var send io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("marshal request: %w", err)
		}
		send = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(p.cfg.API, "/")+path, send)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("User-Agent", "waitlist-prober/"+telemetry.Version())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if !strings.HasPrefix(path, "/public/") {
		req.Header.Set("X-Api-Key", p.cfg.APIKey)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("call the API: %w", err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	for _, status := range want {
		if res.StatusCode != status {
			continue
		}
		if out == nil || status == http.StatusNoContent {
			return nil
		}
		if err := json.Unmarshal(raw, out); err != nil {
			return fmt.Errorf("read answer to %s %s: %w", method, path, err)
		}
		return nil
	}
	return &answerError{method, path, res.StatusCode, string(raw[:min(len(raw), 500)]), res.Header.Get("X-Request-Id")}
}
