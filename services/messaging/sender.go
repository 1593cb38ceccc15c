package messaging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/telemetry"
)

const (
	scope = "waitlist.internal/services/messaging"

	// sendTimeout bounds one mail.
	sendTimeout = 60 * time.Second
	// claimShare is how many mails are claimed for each worker at a time; with
	// sendTimeout they are done within lease.
	claimShare = 4
	lease      = (claimShare + 1) * sendTimeout
	// poll finds mails whose pause or lease is over.
	poll = 2 * time.Second
	// drain is how long a mail under way may take after the end was asked for.
	drain = 10 * time.Second

	// A mail that the provider defers is tried again after DeferMin, doubled each
	// time up to deferMax, and fails after giveUp.
	deferMax = time.Hour
	giveUp   = 72 * time.Hour
	// A provider or service that is away is tried again after PauseMin, doubled each
	// time up to pauseMax, for ever.
	pauseMax = time.Minute

	// keep is how long the ledger remembers what was sent; the inbox forgets an
	// event earlier.
	keep      = 30 * 24 * time.Hour
	pruneWait = time.Hour
)

// SenderConfig is what a Sender works with.
type SenderConfig struct {
	Ledger   Ledger
	Provider Provider
	Composer *Composer
	// Mailings and Templates are what mails about signups are decided upon and made
	// of.
	Mailings  Mailings
	Templates TemplateReader
	// SMS sends text messages; nil: they are canceled. Suppressions and Senders may
	// be nil: then nobody is suppressed, and every mail has the default sender.
	SMS          SMSProvider
	Suppressions Suppressions
	Senders      Senders
	// Workers send at a time; 0 means 4.
	Workers int
	Log     *slog.Logger
	// Now is the clock of tokens and dates.
	Now func() time.Time
	// DeferMin and PauseMin are the first pauses; 0 means 30 s and 1 s.
	DeferMin, PauseMin time.Duration
}

// Sender works off the ledger. Several processes may, side by side.
type Sender struct {
	SenderConfig
	wake   loop.Signal
	tracer trace.Tracer
	mails  metric.Int64Counter

	provider, sms *breaker
	// sources is what signup says and the database has of templates and senders.
	sources *breaker
}

// NewSender returns a Sender; Run starts it.
func NewSender(cfg SenderConfig) (*Sender, error) {
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	cfg.DeferMin = cmp.Or(cfg.DeferMin, 30*time.Second)
	cfg.PauseMin = cmp.Or(cfg.PauseMin, time.Second)
	s := &Sender{SenderConfig: cfg, wake: loop.NewSignal(), tracer: otel.Tracer(scope)}
	s.provider, s.sms, s.sources = newBreaker(cfg.PauseMin), newBreaker(cfg.PauseMin), newBreaker(cfg.PauseMin)
	var err error
	s.mails, err = otel.Meter(scope).Int64Counter("messaging.mails", metric.WithDescription("Attempts to send, by kind and outcome: sent, deferred, away, failed, canceled."))
	return s, err
}

// Wake says that the ledger has new requests. It never blocks.
func (s *Sender) Wake() { s.wake.Send() }

// Run sends until ctx is done. Then it finishes the mails under way and hands
// back those that were claimed.
func (s *Sender) Run(ctx context.Context) error {
	jobs := make(chan Claimed)
	var workers sync.WaitGroup
	for range s.Workers {
		workers.Go(func() {
			for c := range jobs {
				s.send(ctx, c)
			}
		})
	}
	workers.Go(func() { s.prune(ctx) })
	for ctx.Err() == nil {
		claimed, err := s.claim(ctx)
		if err != nil {
			s.Log.WarnContext(ctx, "mails not claimed", telemetry.Err(err))
		}
		s.hand(ctx, jobs, claimed)
		if away := s.provider.remaining(); away > 0 {
			loop.Wait(ctx, away)
		} else if len(claimed) == 0 {
			loop.Idle(ctx, poll, s.wake)
		}
	}
	close(jobs)
	workers.Wait()
	return nil
}

// claim is not cut short by the end of ctx: a claim that Postgres has committed
// and nobody knows of would hold its mails back for a whole lease.
func (s *Sender) claim(ctx context.Context) ([]Claimed, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return s.Ledger.Claim(ctx, s.Workers*claimShare, lease)
}

// hand gives claimed mails to the workers, and postpones those that wait for
// something that is away, or all when ctx ends.
func (s *Sender) hand(ctx context.Context, jobs chan<- Claimed, claimed []Claimed) {
	postponed := map[*breaker][]string{}
	for _, c := range claimed {
		away := s.missing(c.Kind)
		if away == nil {
			select {
			case jobs <- c:
				continue
			case <-ctx.Done():
				away = s.provider // which is there: due at once
			}
		}
		postponed[away] = append(postponed[away], c.EventID)
	}
	for away, ids := range postponed {
		s.record(ctx, func(ctx context.Context) error { return s.Ledger.Return(ctx, away.remaining(), ids...) })
	}
}

// missing returns what a mail of that kind needs and is away, or nil.
func (s *Sender) missing(k Kind) *breaker {
	if way := s.way(k); way.remaining() > 0 {
		return way
	}
	if k.ofSignup() && s.sources.remaining() > 0 {
		return s.sources
	}
	return nil
}

// way is whether what takes mails of that kind is there.
func (s *Sender) way(k Kind) *breaker {
	if k == ReferralSMS {
		return s.sms
	}
	return s.provider
}

// send makes one attempt and records what came of it. A crash before the record
// sends the mail again after its lease, with the same Message-ID.
func (s *Sender) send(ctx context.Context, c Claimed) {
	work, stop := loop.Drain(ctx, drain)
	defer stop()
	work = propagation.TraceContext{}.Extract(work, propagation.MapCarrier{"traceparent": c.Traceparent})
	work, span := s.tracer.Start(work, "send mail", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("mail.kind", string(c.Kind)), attribute.String("event.id", c.EventID), attribute.Int("mail.deferrals", c.Deferrals)))
	defer span.End()
	outcome, err := s.attempt(work, c)
	s.mails.Add(work, 1, metric.WithAttributes(attribute.String("kind", string(c.Kind)), attribute.String("outcome", outcome)))
	if err != nil {
		span.SetStatus(codes.Error, outcome)
		s.Log.WarnContext(work, "mail not sent", slog.String("event_id", c.EventID), slog.String("kind", string(c.Kind)), slog.Int("deferrals", c.Deferrals), slog.String("outcome", outcome), telemetry.Err(err))
	}
}

func (s *Sender) attempt(ctx context.Context, c Claimed) (outcome string, err error) {
	now := s.Now()
	fail := func(err error) (string, error) {
		s.record(ctx, func(ctx context.Context) error { return s.Ledger.Failed(ctx, c.EventID, err.Error()) })
		return "failed", err
	}
	later := func(err error) (string, error) {
		if now.Sub(c.RequestedAt) > giveUp {
			return fail(err)
		}
		wait := deferral(s.DeferMin, deferMax, c.Deferrals)
		s.record(ctx, func(ctx context.Context) error { return s.Ledger.Defer(ctx, c.EventID, wait, err.Error()) })
		return "deferred", err
	}
	away := func(a *breaker, err error) (string, error) {
		a.report(false)
		s.record(ctx, func(ctx context.Context) error { return s.Ledger.Return(ctx, a.remaining(), c.EventID) })
		return "away", err
	}
	if !c.ExpiresAt.IsZero() && now.After(c.ExpiresAt) {
		return fail(errors.New("expired before it could be sent"))
	}
	sending, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	send, to, err := s.prepare(sending, c.Request, now)
	if canceled, ok := errors.AsType[*canceledError](err); ok {
		s.sources.report(true)
		s.record(ctx, func(ctx context.Context) error { return s.Ledger.Canceled(ctx, c.EventID, canceled.reason) })
		return "canceled", nil
	}
	if source, ok := errors.AsType[*sourceError](err); ok {
		if outage.Is(source.err) {
			return away(s.sources, source)
		}
		return later(source)
	}
	if err != nil {
		return fail(err)
	}
	if c.Kind.ofSignup() {
		s.sources.report(true)
	}
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("mail.recipient_hash", telemetry.HashAddress(to)))
	way := s.way(c.Kind)
	err = send(sending)
	if err == nil {
		way.report(true)
		s.record(ctx, func(ctx context.Context) error { return s.Ledger.Sent(ctx, c.EventID) })
		return "sent", nil
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		way.report(true)
		return fail(refused)
	}
	if deferred, ok := errors.AsType[*DeferredError](err); ok {
		way.report(true)
		return later(deferred)
	}
	return away(way, fmt.Errorf("provider is away: %w", err))
}

// record writes to the ledger, also when ctx ends meanwhile. If it fails for
// good the lease runs out, and the mail is sent again.
func (s *Sender) record(ctx context.Context, write func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	for backoff := (loop.Backoff{Min: 50 * time.Millisecond, Max: drain}); ; {
		err := write(ctx)
		if err == nil {
			return
		}
		if !backoff.Wait(ctx) {
			s.Log.ErrorContext(ctx, "mail ledger not written", telemetry.Err(err))
			return
		}
	}
}

func (s *Sender) prune(ctx context.Context) {
	prune(ctx, func() (int64, error) {
		n, err := s.Ledger.Prune(ctx, s.Now().Add(-keep))
		if err != nil {
			s.Log.WarnContext(ctx, "mail ledger not pruned", telemetry.Err(err))
		}
		return n, err
	})
}

// prune calls some now and then until nothing is left to delete.
func prune(ctx context.Context, some func() (int64, error)) {
	for loop.Wait(ctx, pruneWait) {
		for n, err := some(); n > 0 && err == nil; n, err = some() {
		}
	}
}
