package mails

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/work"
)

const (
	// SendTimeout limits the sending of one mail or request.
	SendTimeout = 60 * time.Second
	// claimAhead is how many mails are claimed per worker at a time.
	claimAhead = 4

	// A mail that the provider defers is due again after a pause that starts at DeferMin and
	// doubles up to deferMax. It fails after giveUp.
	deferMax = time.Hour
	giveUp   = 72 * time.Hour
	// pauseMax is the longest pause of a breaker. Mails wait for a provider or service without limit.
	pauseMax = time.Minute

	// keep is how long ended requests are kept: longer than the inbox remembers their events.
	keep      = 30 * 24 * time.Hour
	pruneWait = time.Hour
)

// SenderConfig configures a Sender.
type SenderConfig struct {
	Queue    Queue
	Provider Provider
	Composer *Composer
	// Mailings and Templates provide the data of mails about signups.
	Mailings  Mailings
	Templates TemplateReader
	// SMS, Suppressions, Senders and Facts are optional: without them, text messages are canceled,
	// no address is suppressed, every mail has the default sender, and events are believed.
	SMS          SMSProvider
	Suppressions Suppressions
	Senders      Senders
	Facts        Facts
	// Limits applies to mails and to text messages.
	Limits Limits
	// Registerer takes the metrics, Tracers the spans; nil means none.
	Registerer prometheus.Registerer
	Tracers    trace.TracerProvider
	// Workers is how many mails are in flight at a time, and how many text messages; 0 means 4.
	Workers int
	Log     *slog.Logger
	// Now is the clock for tokens and dates.
	Now func() time.Time
	// DeferMin and PauseMin are the shortest pauses; 0 means 30 s and 1 s.
	DeferMin, PauseMin time.Duration
	// Lease and Poll replace work.Lease and work.Poll.
	Lease, Poll time.Duration
}

// Sender works through the mail queue. Several processes may run one at the same time.
type Sender struct {
	SenderConfig
	tracer trace.Tracer
	mails  *prometheus.CounterVec
	delay  prometheus.Histogram

	// mailQueue and textQueue work off what one provider sends. Nothing waits for the provider of the other.
	mailQueue, textQueue *work.Engine[Claimed]
	mailProvider, sms    *ProviderBreaker
	// accounts stands for the account service, signups for the signup service and for the templates and
	// senders in the database.
	accounts, signups *work.Breaker
}

// NewSender returns a Sender; Run starts it.
func NewSender(cfg SenderConfig) *Sender {
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	cfg.DeferMin = cmp.Or(cfg.DeferMin, 30*time.Second)
	cfg.PauseMin = cmp.Or(cfg.PauseMin, time.Second)
	s := &Sender{
		SenderConfig: cfg, tracer: telemetry.Tracer(cfg.Tracers, "waitlist.internal/services/messaging/mails"),
		mailProvider: NewProviderBreaker(cfg.PauseMin), sms: NewProviderBreaker(cfg.PauseMin),
		accounts: work.NewBreaker(cfg.PauseMin, pauseMax), signups: work.NewBreaker(cfg.PauseMin, pauseMax),
	}
	s.mailQueue = s.queue("mails", cfg.Queue.ClaimMails, s.mailProvider)
	s.textQueue = s.queue("text messages", cfg.Queue.ClaimTexts, s.sms)
	auto := promauto.With(cfg.Registerer)
	s.mails = auto.NewCounterVec(prometheus.CounterOpts{
		Name: "messaging_mails_total", Help: "Attempts to send, by kind and outcome: sent, deferred, away, lapsed, failed, canceled.",
	}, []string{"kind", "outcome"})
	s.delay = auto.NewHistogram(prometheus.HistogramOpts{
		Name: "messaging_mail_delay_seconds", Help: "Time from the request of a mail to its acceptance by the provider.",
		Buckets: telemetry.Delays,
	})
	return s
}

func (s *Sender) queue(
	name string, claim func(ctx context.Context, limit int, lease time.Duration) ([]Claimed, error), provider *ProviderBreaker,
) *work.Engine[Claimed] {
	return work.New(work.Config[Claimed]{
		Name: name, Renew: s.Queue.Renew, Return: s.Queue.Return, Do: s.send, Provider: provider.Breaker, Source: s.needed,
		Claim: func(ctx context.Context, _ string, limit int, lease time.Duration) ([]Claimed, error) {
			return claim(ctx, limit, lease)
		},
		Workers: s.Workers, Ahead: claimAhead, Lease: s.Lease, Poll: s.Poll, Registerer: s.Registerer, Log: s.Log,
	})
}

// Wake announces new requests. It never blocks.
func (s *Sender) Wake() {
	s.mailQueue.Wake()
	s.textQueue.Wake()
}

// Run sends mails until ctx is done. It then finishes the mails in flight and returns the other
// claimed ones.
func (s *Sender) Run(ctx context.Context) error {
	var texts sync.WaitGroup
	texts.Go(func() { s.textQueue.Run(ctx) })
	s.mailQueue.Run(ctx)
	texts.Wait()
	return nil
}

// needed returns the breaker of the service without which a request cannot be sent, or nil.
func (s *Sender) needed(c Claimed) *work.Breaker {
	if s.Facts != nil || kinds[c.Kind].needsMailing {
		return s.source(c)
	}
	return nil
}

// providerBreaker returns the breaker of the provider of mails of a kind.
func (s *Sender) providerBreaker(k Kind) *ProviderBreaker {
	if k == ReferralSMS {
		return s.sms
	}
	return s.mailProvider
}

// source returns the breaker of the service that knows whether and to whom a mail is sent.
func (s *Sender) source(c Claimed) *work.Breaker {
	if c.WaitlistID == "" {
		return s.accounts
	}
	return s.signups
}

// send makes one attempt and records its outcome. After a crash before the recording, the mail is
// sent again when its lease expires, with the same Message-ID.
func (s *Sender) send(ctx context.Context, claim *work.Claim[Claimed]) {
	c := claim.Work
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": c.Traceparent})
	ctx, span := s.tracer.Start(ctx, "send mail", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("mail.kind", string(c.Kind)), attribute.String("event.id", c.EventID),
		attribute.Int("mail.deferrals", c.Deferrals)))
	defer span.End()
	outcome, err := s.attempt(ctx, claim)
	s.mails.WithLabelValues(string(c.Kind), outcome).Inc()
	if outcome == "sent" {
		telemetry.Observe(ctx, s.delay, s.Now().Sub(c.RequestedAt).Seconds())
	}
	if err != nil {
		span.SetStatus(codes.Error, outcome)
		s.Log.WarnContext(ctx, "mail not sent", slog.String("event_id", c.EventID), slog.String("kind", string(c.Kind)),
			slog.Int("deferrals", c.Deferrals), slog.String("outcome", outcome), telemetry.Err(err))
	}
}

func (s *Sender) attempt(ctx context.Context, claim *work.Claim[Claimed]) (outcome string, err error) {
	c, now := claim.Work, s.Now()
	fail := func(err error) (string, error) {
		claim.Settle(ctx, func(ctx context.Context) error { return s.Queue.Failed(ctx, c, err.Error()) })
		return "failed", err
	}
	later := func(err error) (string, error) {
		if now.Sub(c.RequestedAt) > giveUp {
			return fail(err)
		}
		wait := Deferral(s.DeferMin, deferMax, c.Deferrals)
		claim.Settle(ctx, func(ctx context.Context) error { return s.Queue.Defer(ctx, c, wait, err.Error()) })
		return "deferred", err
	}
	lapsed := func() (string, error) {
		return "lapsed", errors.New("the claim ended before the mail was sent: it was canceled, or another process sends it")
	}
	away := func(b *work.Breaker, err error) (string, error) {
		b.Report(false)
		claim.Settle(ctx, func(ctx context.Context) error { return s.Queue.Return(ctx, b.Remaining(), []Claimed{c}) })
		return "away", err
	}
	if !claim.Holds() {
		return lapsed()
	}
	if !c.ExpiresAt.IsZero() && now.After(c.ExpiresAt) {
		return fail(errors.New("the mail expired before it could be sent"))
	}
	sending, cancel := context.WithTimeout(ctx, SendTimeout)
	defer cancel()
	send, to, err := s.prepare(sending, c.Request, now)
	if canceled, ok := errors.AsType[*canceledError](err); ok {
		s.source(c).Report(true)
		claim.Settle(ctx, func(ctx context.Context) error { return s.Queue.Canceled(ctx, c, canceled.reason) })
		return "canceled", nil
	}
	if source, ok := errors.AsType[*sourceError](err); ok {
		if outage.Is(source.err) {
			return away(s.source(c), source)
		}
		return later(source)
	}
	if err != nil {
		return fail(err)
	}
	s.source(c).Report(true)
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("mail.recipient_hash", s.Composer.signups.Pseudonym(to)))
	provider := s.providerBreaker(c.Kind)
	if !claim.Holds() {
		return lapsed()
	}
	err = send(sending)
	if err == nil {
		provider.Accepted()
		claim.Settle(ctx, func(ctx context.Context) error { return s.Queue.Sent(ctx, c) })
		return "sent", nil
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		provider.Report(true)
		return fail(refused)
	}
	if deferred, ok := errors.AsType[*DeferredError](err); ok {
		provider.Report(true)
		return later(deferred)
	}
	if doubtful, ok := errors.AsType[*DoubtfulError](err); ok && !provider.Doubt(to) {
		return later(doubtful)
	}
	return away(provider.Breaker, fmt.Errorf("reach the provider: %w", err))
}

// Prune deletes mails that ended long ago, until ctx is done.
func (s *Sender) Prune(ctx context.Context) error {
	PruneHourly(ctx, func() (int64, error) {
		n, err := s.Queue.Prune(ctx, s.Now().Add(-keep))
		if err != nil {
			s.Log.WarnContext(ctx, "mail queue not pruned", telemetry.Err(err))
		}
		return n, err
	})
	return nil
}

// PruneHourly calls some every pruneWait, each time until nothing is left to delete.
func PruneHourly(ctx context.Context, some func() (int64, error)) {
	for loop.Wait(ctx, pruneWait) {
		for n, err := some(); n > 0 && err == nil; n, err = some() {
		}
	}
}
