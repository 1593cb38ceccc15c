package messaging

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
)

const (
	scope = "waitlist.internal/services/messaging"

	// sendTimeout limits the sending of one mail or request.
	sendTimeout = 60 * time.Second
	// claimShare is how many mails are claimed per worker at a time.
	claimShare = 4
	// mailLease is how long a claim outlives the last sign of its process. It is longer than
	// drain; claims are renewed three times per lease.
	mailLease = 15 * time.Second
	// mailPoll is how often an idle Sender looks for expired pauses and leases.
	mailPoll = 2 * time.Second
	// drain is how long a mail in flight may take after the process was told to stop.
	drain = 10 * time.Second

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
	Queue    MailQueue
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
	// Lease replaces mailLease, Poll replaces mailPoll.
	Lease, Poll time.Duration
}

// Sender works through the mail queue. Several processes may run one at the same time.
type Sender struct {
	SenderConfig
	tracer trace.Tracer
	mails  *prometheus.CounterVec
	delay  prometheus.Histogram

	provider, sms *lane
	// accounts stands for the account service, signups for the signup service and for the templates and
	// senders in the database.
	accounts, signups *breaker

	mu sync.Mutex
	// held are the claims whose outcome is not decided yet.
	held map[string]held
}

// lane works off what one provider sends. Nothing waits for the provider of another lane.
type lane struct {
	*breaker
	claim func(ctx context.Context, limit int, lease time.Duration) ([]Claimed, error)
	wake  loop.Signal
}

// held is a claimed request and the end of its lease.
type held struct {
	Claimed
	until time.Time
}

// NewSender returns a Sender; Run starts it.
func NewSender(cfg SenderConfig) *Sender {
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	cfg.DeferMin = cmp.Or(cfg.DeferMin, 30*time.Second)
	cfg.PauseMin = cmp.Or(cfg.PauseMin, time.Second)
	cfg.Lease, cfg.Poll = cmp.Or(cfg.Lease, mailLease), cmp.Or(cfg.Poll, mailPoll)
	s := &Sender{SenderConfig: cfg, tracer: telemetry.Tracer(cfg.Tracers, scope), held: map[string]held{}}
	s.provider = &lane{newBreaker(cfg.PauseMin), cfg.Queue.ClaimMails, loop.NewSignal()}
	s.sms = &lane{newBreaker(cfg.PauseMin), cfg.Queue.ClaimTexts, loop.NewSignal()}
	s.accounts, s.signups = newBreaker(cfg.PauseMin), newBreaker(cfg.PauseMin)
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

// Wake announces new requests. It never blocks.
func (s *Sender) Wake() {
	s.provider.wake.Send()
	s.sms.wake.Send()
}

// Run sends mails until ctx is done. It then finishes the mails in flight and returns the other
// claimed ones.
func (s *Sender) Run(ctx context.Context) error {
	// Claims are renewed until the last mail in flight has ended: an SMTP server may take longer than a lease.
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewer sync.WaitGroup
	renewer.Go(func() { s.renew(renewing) })
	var lanes sync.WaitGroup
	for _, l := range []*lane{s.provider, s.sms} {
		lanes.Go(func() { s.run(ctx, l) })
	}
	lanes.Wait()
	stop()
	renewer.Wait()
	return nil
}

// run works through one lane.
func (s *Sender) run(ctx context.Context, l *lane) {
	jobs := make(chan Claimed)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(jobs)
	for range s.Workers {
		workers.Go(func() {
			for c := range jobs {
				s.send(ctx, c)
			}
		})
	}
	for ctx.Err() == nil {
		claimed, err := s.claim(ctx, l)
		if err != nil {
			s.Log.WarnContext(ctx, "mails not claimed", telemetry.Err(err))
		}
		s.hand(ctx, l, jobs, claimed)
		if away := l.remaining(); away > 0 {
			loop.Wait(ctx, away)
		} else if len(claimed) == 0 {
			loop.Idle(ctx, s.Poll, l.wake)
		}
	}
}

// claim claims what is due in a lane. The end of ctx does not interrupt it: a claim that Postgres committed unnoticed
// would hold its mails up for a whole lease.
func (s *Sender) claim(ctx context.Context, l *lane) ([]Claimed, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	until := time.Now().Add(s.Lease)
	claimed, err := l.claim(ctx, s.Workers*claimShare, s.Lease)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range claimed {
		s.held[c.Claim] = held{c, until}
	}
	return claimed, err
}

// renew keeps the claims of undecided requests alive, also while they wait for a worker.
func (s *Sender) renew(ctx context.Context) {
	for loop.Wait(ctx, s.Lease/3) {
		now := time.Now()
		var claimed []Claimed
		s.mu.Lock()
		for claim, h := range s.held {
			if now.Before(h.until) {
				claimed = append(claimed, h.Claimed)
			} else { // another process may have claimed it
				delete(s.held, claim)
			}
		}
		s.mu.Unlock()
		if len(claimed) == 0 {
			continue
		}
		claims, err := s.Queue.Renew(ctx, s.Lease, claimed...)
		if err != nil {
			if ctx.Err() == nil {
				s.Log.WarnContext(ctx, "claims of mails not renewed", telemetry.Err(err))
			}
			continue
		}
		s.mu.Lock()
		for _, c := range claimed {
			if _, undecided := s.held[c.Claim]; !undecided {
				continue
			}
			if slices.Contains(claims, c.Claim) {
				s.held[c.Claim] = held{c, now.Add(s.Lease)}
			} else {
				delete(s.held, c.Claim)
			}
		}
		s.mu.Unlock()
	}
}

// holds reports whether a claim still holds, as far as this process knows. Otherwise the mail was
// canceled, or another process may send it: one that was held up, or cannot reach Postgres, must not.
func (s *Sender) holds(c Claimed) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[c.Claim]
	if ok = ok && time.Now().Before(h.until); !ok {
		delete(s.held, c.Claim)
	}
	return ok
}

// hand gives claimed mails to the workers. It returns mails whose dependencies are away to the
// queue, and all remaining mails when ctx is done.
func (s *Sender) hand(ctx context.Context, l *lane, jobs chan<- Claimed, claimed []Claimed) {
	postponed := map[*breaker][]Claimed{}
	for _, c := range claimed {
		away := s.missing(l, c)
		if away == nil {
			select {
			case jobs <- c:
				continue
			case <-ctx.Done():
				away = l.breaker // without a pause: due at once
			}
		}
		if s.holds(c) {
			postponed[away] = append(postponed[away], c)
		}
	}
	for away, all := range postponed {
		s.record(ctx, func(ctx context.Context) error { return s.Queue.Return(ctx, away.remaining(), all...) }, all...)
	}
}

// missing returns the breaker that holds up a request of a lane, or nil.
func (s *Sender) missing(l *lane, c Claimed) *breaker {
	if l.remaining() > 0 {
		return l.breaker
	}
	if source := s.source(c); (s.Facts != nil || c.Kind.ofSignup()) && source.remaining() > 0 {
		return source
	}
	return nil
}

// way returns the lane of mails of a kind.
func (s *Sender) way(k Kind) *lane {
	if k == ReferralSMS {
		return s.sms
	}
	return s.provider
}

// source returns the breaker of the service that knows whether and to whom a mail is sent.
func (s *Sender) source(c Claimed) *breaker {
	if c.WaitlistID == "" {
		return s.accounts
	}
	return s.signups
}

// send makes one attempt and records its outcome. After a crash before the recording, the mail is
// sent again when its lease expires, with the same Message-ID.
func (s *Sender) send(ctx context.Context, c Claimed) {
	work, stop := loop.Drain(ctx, drain)
	defer stop()
	work = propagation.TraceContext{}.Extract(work, propagation.MapCarrier{"traceparent": c.Traceparent})
	work, span := s.tracer.Start(work, "send mail", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("mail.kind", string(c.Kind)), attribute.String("event.id", c.EventID),
		attribute.Int("mail.deferrals", c.Deferrals)))
	defer span.End()
	outcome, err := s.attempt(work, c)
	s.mails.WithLabelValues(string(c.Kind), outcome).Inc()
	if outcome == "sent" {
		telemetry.Observe(work, s.delay, s.Now().Sub(c.RequestedAt).Seconds())
	}
	if err != nil {
		span.SetStatus(codes.Error, outcome)
		s.Log.WarnContext(work, "mail not sent", slog.String("event_id", c.EventID), slog.String("kind", string(c.Kind)),
			slog.Int("deferrals", c.Deferrals), slog.String("outcome", outcome), telemetry.Err(err))
	}
}

func (s *Sender) attempt(ctx context.Context, c Claimed) (outcome string, err error) {
	now := s.Now()
	fail := func(err error) (string, error) {
		s.record(ctx, func(ctx context.Context) error { return s.Queue.Failed(ctx, c, err.Error()) }, c)
		return "failed", err
	}
	later := func(err error) (string, error) {
		if now.Sub(c.RequestedAt) > giveUp {
			return fail(err)
		}
		wait := deferral(s.DeferMin, deferMax, c.Deferrals)
		s.record(ctx, func(ctx context.Context) error { return s.Queue.Defer(ctx, c, wait, err.Error()) }, c)
		return "deferred", err
	}
	lapsed := func() (string, error) {
		return "lapsed", errors.New("the claim ended before the mail was sent: it was canceled, or another process sends it")
	}
	away := func(a *breaker, err error) (string, error) {
		a.report(false)
		s.record(ctx, func(ctx context.Context) error { return s.Queue.Return(ctx, a.remaining(), c) }, c)
		return "away", err
	}
	if !s.holds(c) {
		return lapsed()
	}
	if !c.ExpiresAt.IsZero() && now.After(c.ExpiresAt) {
		return fail(errors.New("the mail expired before it could be sent"))
	}
	sending, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	send, to, err := s.prepare(sending, c.Request, now)
	if canceled, ok := errors.AsType[*canceledError](err); ok {
		s.source(c).report(true)
		s.record(ctx, func(ctx context.Context) error { return s.Queue.Canceled(ctx, c, canceled.reason) }, c)
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
	s.source(c).report(true)
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("mail.recipient_hash", s.Composer.signups.Pseudonym(to)))
	way := s.way(c.Kind)
	if !s.holds(c) {
		return lapsed()
	}
	err = send(sending)
	if err == nil {
		way.accepted()
		s.record(ctx, func(ctx context.Context) error { return s.Queue.Sent(ctx, c) }, c)
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
	if doubtful, ok := errors.AsType[*DoubtfulError](err); ok && !way.doubt(to) {
		return later(doubtful)
	}
	return away(way.breaker, fmt.Errorf("reach the provider: %w", err))
}

// record repeats write, which decides these requests, until it succeeds or drain has passed,
// even after the end of ctx. If it keeps failing, the lease expires and the mail is sent again.
func (s *Sender) record(ctx context.Context, write func(context.Context) error, decided ...Claimed) {
	s.mu.Lock()
	for _, c := range decided {
		delete(s.held, c.Claim)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	for backoff := (loop.Backoff{Min: 50 * time.Millisecond, Max: drain}); ; {
		err := write(ctx)
		if err == nil {
			return
		}
		if !backoff.Wait(ctx) {
			s.Log.ErrorContext(ctx, "outcome of a mail not recorded", telemetry.Err(err))
			return
		}
	}
}

// Prune deletes mails that ended long ago, until ctx is done.
func (s *Sender) Prune(ctx context.Context) error {
	prune(ctx, func() (int64, error) {
		n, err := s.Queue.Prune(ctx, s.Now().Add(-keep))
		if err != nil {
			s.Log.WarnContext(ctx, "mail queue not pruned", telemetry.Err(err))
		}
		return n, err
	})
	return nil
}

// prune calls some every pruneWait, each time until nothing is left to delete.
func prune(ctx context.Context, some func() (int64, error)) {
	for loop.Wait(ctx, pruneWait) {
		for n, err := some(); n > 0 && err == nil; n, err = some() {
		}
	}
}
