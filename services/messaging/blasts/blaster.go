package blasts

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/work"
	"waitlist.internal/services/messaging/mails"
)

// BlasterConfig configures a Blaster.
type BlasterConfig struct {
	Queue    Queue
	Lists    Lists
	Provider mails.Provider
	Composer *mails.Composer
	// Senders and Suppressions are optional. If nil, every mail has the default sender,
	// and no address is suppressed.
	Senders      mails.Senders
	Suppressions mails.Suppressions
	Limits       mails.Limits
	// Workers is how many mails (BatchProvider: requests) are in flight at a time; 0 means 4.
	Workers int
	// Rate limits the mails per second of all processes together; 0 means no limit.
	Rate float64
	// Registerer takes the metrics, Tracers the spans; nil means none.
	Registerer prometheus.Registerer
	Tracers    trace.TracerProvider
	Log        *slog.Logger
	Now        func() time.Time
	// DeferMin and PauseMin are the shortest pauses, doubled on repetition; 0 means 1 s.
	// Lease replaces work.Lease, Poll replaces work.Poll.
	DeferMin, PauseMin, Lease, Poll time.Duration
}

// Blaster sends blasts. Several processes may run one at the same time:
//
//	blast ─► plan: pages of recipients ─► recipient rows, batches
//	                                                        │
//	 ended ◄─ record ◄─ send: Provider ◄─ recipients ◄─ claim
//
// Each phase has its file:
//
//   - plan.go lists the recipients, one page per transaction.
//   - send.go runs a batch that a work.Engine has claimed: it asks for the recipients' addresses at that
//     moment, and hands their mails to the provider. Blasts take turns, so a long one does not hold up a short one.
//     The process that plans begins at once, the others when they look for work.
//   - record.go stores the outcomes.
//
// Memory does not grow with the number of recipients. A process that crashes leaves this:
//
//   - A page whose transaction did not commit leaves nothing. The plan is due again when its
//     lease expires.
//   - A claimed batch is due again when its lease expires. The next claim sends to the
//     recipients without an outcome only.
//     A process that was only held up hands out no mail after its lease.
//   - A mail that the provider took but that has no recorded outcome is sent again: with the
//     same Message-ID, or as a request with the same key, which a BatchProvider takes once.
//     At most four mails per worker are in this state.
//   - A batch whose outcomes are all recorded is claimed again, and ended without a mail. Ending
//     it and counting its outcomes is one statement, so nothing is counted twice.
type Blaster struct {
	BlasterConfig
	provider *mails.ProviderBreaker
	batches  mails.BatchProvider // nil if the provider takes single mails only
	engine   *work.Engine[Batch]
	jobs     chan job // to the workers
	ended    chan job // to the recorder
	wakePlan loop.Signal
	tracer   trace.Tracer
	mails    *prometheus.CounterVec
}

// NewBlaster returns a Blaster; Run, Plan and Prune are its goroutines.
func NewBlaster(cfg BlasterConfig) *Blaster {
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	cfg.DeferMin = cmp.Or(cfg.DeferMin, time.Second)
	cfg.PauseMin = cmp.Or(cfg.PauseMin, time.Second)
	cfg.Lease, cfg.Poll = cmp.Or(cfg.Lease, work.Lease), cmp.Or(cfg.Poll, work.Poll)
	b := &Blaster{
		BlasterConfig: cfg, provider: mails.NewProviderBreaker(cfg.PauseMin), jobs: make(chan job), ended: make(chan job, cfg.Workers),
		wakePlan: loop.NewSignal(), tracer: telemetry.Tracer(cfg.Tracers, "waitlist.internal/services/messaging/blasts"),
	}
	b.engine = work.New(work.Config[Batch]{
		Name: "batches of blasts", Renew: cfg.Queue.Renew, Do: b.run, Key: func(batch Batch) string { return batch.BlastID },
		Claim: func(ctx context.Context, after string, limit int, lease time.Duration) ([]Batch, error) {
			return cfg.Queue.Claim(ctx, cmp.Or(after, uuid.Nil.String()), limit, uuid.NewString(), lease)
		},
		Return: func(ctx context.Context, pause time.Duration, batches []Batch) (err error) {
			for _, batch := range batches {
				err = errors.Join(err, cfg.Queue.Return(ctx, batch, pause, false))
			}
			return err
		},
		Provider: b.provider.Breaker, Workers: cfg.Workers, Ahead: 1, Lease: cfg.Lease, Poll: cfg.Poll, Registerer: cfg.Registerer, Log: cfg.Log,
	})
	b.batches, _ = cfg.Provider.(mails.BatchProvider)
	b.mails = promauto.With(cfg.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "messaging_blast_mails_total", Help: "Mails of blasts, by outcome: sent, deferred, away, failed, skipped.",
	}, []string{"outcome"})
	for _, o := range []string{string(MailSent), string(MailFailed), string(MailSkipped), "deferred", "away"} {
		b.mails.WithLabelValues(o)
	}
	return b
}

func (b *Blaster) count(outcome string) {
	b.mails.WithLabelValues(outcome).Inc()
}

// Wake announces new blasts. It never blocks.
func (b *Blaster) Wake() { b.wakePlan.Send() }

// Run sends blasts until ctx is done; some replica must run Plan. It then finishes the mails in flight and
// releases the batches that remain.
func (b *Blaster) Run(ctx context.Context) error {
	var workers, recorder sync.WaitGroup
	recorder.Go(func() { b.record(ctx) })
	for range b.Workers {
		workers.Go(func() { //nolint:contextcheck // each job carries its attempt's context
			for j := range b.jobs {
				b.send(j)
			}
		})
	}
	b.engine.Run(ctx)
	close(b.jobs)
	workers.Wait()
	close(b.ended)
	recorder.Wait()
	return nil
}
