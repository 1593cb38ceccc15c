package stripesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stripe/stripe-go/v76/webhook"
)

// deliverers is the number of concurrent deliveries; maxEvents is how many events are kept.
const (
	deliverers = 4
	maxEvents  = 10_000
)

// hooks holds the webhook's address, the faults on the way to it, and the state of deliveries.
type hooks struct {
	url, secret  string
	request, key string // of the call in progress
	chaos        Chaos
	random       *rand.Rand
	draining     int
	wake         chan struct{}
	settled      *sync.Cond // signaled when a delivery leaves the queue
}

// Chaos describes faults in the delivery of events. The zero value delivers each event once and without delay; even then the
// order is not guaranteed.
type Chaos struct {
	// Hold keeps new events back until Release, ReleaseAll or Drain.
	Hold bool `json:"hold"`
	// Seed makes the random choices below repeatable.
	Seed uint64 `json:"seed"`
	// Drop and Duplicate are probabilities from 0 to 1. A dropped event stays in the list of events.
	Drop      float64 `json:"drop"`
	Duplicate float64 `json:"duplicate"`
	// MaxDelay bounds the random delay of each delivery. Delays also reorder deliveries.
	MaxDelay time.Duration `json:"max_delay"`
}

// delivery is a queued delivery of an event.
type delivery struct {
	Event  string `json:"event"`
	Tries  int    `json:"tries"`
	Held   bool   `json:"held"`
	due    time.Time
	flying bool
}

// Delivery is a pending delivery of an event.
type Delivery struct {
	Event string `json:"event"`
	Type  string `json:"type"`
	// Tries is the number of failed attempts.
	Tries int  `json:"tries"`
	Held  bool `json:"held"`
}

func (s *Server) eventRoutes() []route {
	return []route{
		{"GET /v1/events", pageParams + " type types delivery_success", s.listEvents},
		{"GET /v1/events/{id}", "", func(rq *request) (any, error) {
			e, ok := s.state.Events.byID[rq.id]
			if !ok {
				return nil, noSuch("event", rq.id, "id")
			}
			return e, nil
		}},
	}
}

func (s *Server) listEvents(rq *request) (any, error) {
	types := rq.all("types")
	if t := rq.form["type"]; t != "" {
		types = append(types, t)
	}
	bad := error(nil)
	l, err := page(rq, &s.state.Events, func(e *event) bool {
		ok, err := rq.created(e.Created)
		if err != nil {
			bad = err
		}
		return ok && (len(types) == 0 || slices.ContainsFunc(types, func(t string) bool {
			prefix, all := strings.CutSuffix(t, "*")
			return t == e.Type || all && strings.HasPrefix(e.Type, prefix)
		}))
	})
	if bad != nil {
		return nil, bad
	}
	return l, err
}

// emit creates an event with the object's present state and queues its delivery. The caller holds the lock.
func (s *Server) emit(kind string, o object, now int64) {
	if sub, ok := o.(*subscription); ok {
		s.remember(sub, now)
	}
	shown, err := s.render(o, nil)
	if err != nil {
		return // cannot happen: the simulator's own structs always encode
	}
	raw, err := json.Marshal(shown)
	if err != nil {
		return
	}
	e := &event{
		ID: s.cfg.ID("evt_"), Object: "event", APIVersion: APIVersion, Created: now,
		Data: eventData{Object: raw}, Type: kind,
		Request: eventRequest{ID: ref(s.hooks.request), IdempotencyKey: ref(s.hooks.key)},
	}
	s.state.Events.add(e)
	if len(s.state.Events.rows) > 2*maxEvents {
		for _, old := range s.state.Events.rows[:maxEvents] {
			delete(s.state.Events.byID, old.ID)
		}
		s.state.Events.rows = slices.Clone(s.state.Events.rows[maxEvents:])
	}
	s.dirty = true
	if s.hooks.url == "" || s.cfg.WebhookEvents != nil && !slices.Contains(s.cfg.WebhookEvents, kind) {
		return
	}
	copies := 1
	if s.chance(s.hooks.chaos.Drop) {
		copies = 0
	} else if s.chance(s.hooks.chaos.Duplicate) {
		copies = 2
	}
	e.PendingWebhooks = min(copies, 1)
	for range copies {
		d := &delivery{Event: e.ID, Held: s.hooks.chaos.Hold}
		if m := s.hooks.chaos.MaxDelay; m > 0 {
			d.due = time.Now().Add(time.Duration(s.random().Int64N(int64(m))))
		}
		s.state.Queue = append(s.state.Queue, d)
	}
	s.wake()
}

func (s *Server) chance(p float64) bool { return p > 0 && s.random().Float64() < p }

func (s *Server) random() *rand.Rand {
	if s.hooks.random == nil {
		s.hooks.random = rand.New(rand.NewPCG(s.hooks.chaos.Seed, 1))
	}
	return s.hooks.random
}

func (s *Server) wake() {
	select {
	case s.hooks.wake <- struct{}{}:
	default:
	}
}

// SetWebhook sets the webhook and its signing secret from now on. An empty url turns delivery off.
func (s *Server) SetWebhook(url, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks.url, s.hooks.secret = url, secret
	s.wake()
}

// SetChaos sets the delivery faults from now on.
func (s *Server) SetChaos(c Chaos) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks.chaos, s.hooks.random = c, nil
}

// Pending returns the pending deliveries in the order in which their events were created. A duplicated event appears twice.
func (s *Server) Pending() []Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Delivery, 0, len(s.state.Queue))
	for _, d := range s.state.Queue {
		out = append(out, Delivery{Event: d.Event, Type: s.typeOf(d.Event), Tries: d.Tries, Held: d.Held})
	}
	return out
}

func (s *Server) typeOf(id string) string {
	if e, ok := s.state.Events.byID[id]; ok {
		return e.Type
	}
	return ""
}

// Release delivers a held or delayed event now. It returns false if the event is not pending.
func (s *Server) Release(event string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for _, d := range s.state.Queue {
		if d.Event == event {
			d.Held, d.due, found = false, time.Time{}, true
		}
	}
	s.wake()
	return found
}

// ReleaseAll delivers all pending events now.
func (s *Server) ReleaseAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.state.Queue {
		d.Held, d.due = false, time.Time{}
	}
	s.wake()
}

// Drop discards the pending deliveries of an event. It reports whether there were any.
func (s *Server) Drop(event string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.state.Queue)
	s.state.Queue = slices.DeleteFunc(s.state.Queue, func(d *delivery) bool { return d.Event == event && !d.flying })
	s.hooks.settled.Broadcast()
	return len(s.state.Queue) < n
}

// Send delivers an event once, immediately and without changing the queue. It returns the webhook's status.
func (s *Server) Send(ctx context.Context, event string) (int, error) {
	s.mu.Lock()
	e, ok := s.state.Events.byID[event]
	url, secret := s.hooks.url, s.hooks.secret
	s.mu.Unlock()
	if !ok {
		return 0, fmt.Errorf("find event %s: there is no such event", event)
	}
	return s.hand(ctx, e, url, secret)
}

// Drain releases all held and delayed events and waits until none is pending. It requires a running Run. Deliveries that the
// webhook refuses are repeated after their pause.
func (s *Server) Drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hooks.settled.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks.draining++
	defer func() { s.hooks.draining-- }()
	s.wake()
	for len(s.state.Queue) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("drain %d pending deliveries: %w", len(s.state.Queue), err)
		}
		s.hooks.settled.Wait()
	}
	return nil
}

// deliver delivers events that are due until ctx ends, then waits for the deliveries in progress.
func (s *Server) deliver(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, deliverers)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		d, e, url, secret, ok := s.next(ctx)
		if !ok {
			return
		}
		group.Go(func() {
			defer func() { <-slots }()
			status, err := s.hand(ctx, e, url, secret)
			s.delivered(ctx, d, e, err == nil && status/100 == 2)
		})
	}
}

// next waits for a delivery that is due and takes it. It returns false when ctx has ended.
func (s *Server) next(ctx context.Context) (*delivery, *event, string, string, bool) {
	for {
		if ctx.Err() != nil {
			return nil, nil, "", "", false
		}
		s.mu.Lock()
		now, wait := time.Now(), time.Hour
		for i := 0; i < len(s.state.Queue); i++ {
			d := s.state.Queue[i]
			e, ok := s.state.Events.byID[d.Event]
			if !ok { // no longer kept; the provider drops old events, too
				s.state.Queue = slices.Delete(s.state.Queue, i, i+1)
				i--
				continue
			}
			drained := s.hooks.draining > 0 && d.Tries == 0
			if d.flying || s.hooks.url == "" || d.Held && !drained {
				continue
			}
			if left := d.due.Sub(now); left > 0 && !drained {
				wait = min(wait, left)
				continue
			}
			d.flying = true
			url, secret := s.hooks.url, s.hooks.secret
			s.mu.Unlock()
			return d, e, url, secret, true
		}
		s.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-s.hooks.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// delivered records the outcome of a delivery. A failed one is repeated after a pause; one that the simulator's end
// interrupted is repeated after the next start.
func (s *Server) delivered(ctx context.Context, d *delivery, e *event, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.flying = false
	again := !ok
	if !ok && ctx.Err() == nil {
		var pause time.Duration
		d.Tries++
		d.Held = false
		pause, again = s.cfg.Backoff(d.Tries)
		d.due = time.Now().Add(pause)
	}
	if !again {
		s.state.Queue = slices.DeleteFunc(s.state.Queue, func(q *delivery) bool { return q == d })
		e.PendingWebhooks = 0
	}
	s.dirty = true
	_ = s.save() // if this fails, an event is delivered once more at worst
	s.wake()
	s.hooks.settled.Broadcast()
}

// hand posts a signed event to the webhook and returns the webhook's status.
func (s *Server) hand(ctx context.Context, e *event, url, secret string) (int, error) {
	s.mu.Lock()
	payload, err := json.Marshal(e)
	s.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("encode the event: %w", err)
	}
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{
		Payload: payload, Secret: secret, Timestamp: s.cfg.SignedAt(),
	})
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WebhookTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(payload))
	if err != nil {
		return 0, fmt.Errorf("call the webhook: %w", err)
	}
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	r.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	r.Header.Set("Stripe-Signature", signed.Header)
	resp, err := s.post.Do(r)
	if err != nil {
		return 0, fmt.Errorf("call the webhook: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
	return resp.StatusCode, nil
}
