package messaging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/telemetry"
)

const (
	// blastLease is how long a batch or plan stays with a process that is not heard
	// of; it is longer than drain. Claims are renewed three times in it.
	blastLease = 15 * time.Second
	// blastPoll finds what a lease or pause held back.
	blastPoll = time.Second
	// A batch with mails that the provider defers, or whose owner's plan has no
	// blasts any more, is tried again after a pause, doubled each time up to
	// blastDeferMax; blastGiveUp after the blast was asked for they fail.
	blastDeferMax = 10 * time.Minute
	blastGiveUp   = 24 * time.Hour
	// batchBytes bounds the bodies of one request to a BatchProvider, roughly.
	batchBytes = 8 << 20
	// recordWait is how long an outcome waits for others that are recorded with it.
	recordWait = 2 * time.Millisecond
	// blastKeep is how long the ledger remembers who got a blast.
	blastKeep = 30 * 24 * time.Hour
)

// Plan is a blast whose recipients are being listed, claimed by this process.
type Plan struct {
	BlastID, WaitlistID string
	// To is the highest number that it has.
	To int64
}

// Batch is a part of a blast, claimed by this process.
type Batch struct {
	BlastID string
	// Number is 0 for the blast's first.
	Number int64
	// Claim tells this claim from earlier and later ones.
	Claim               string
	WaitlistID, OwnerID string
	// First and Last are the numbers that the batch is within.
	First, Last int64
	// Deferrals counts how often the provider put it off.
	Deferrals int
	// CreatedAt is when the blast was asked for, Traceparent the trace of that.
	CreatedAt   time.Time
	Traceparent string
}

// Pending is what a batch is about.
type Pending struct {
	BlastContent
	// Numbers are those of the recipients whose mail has not ended, ascending; Ended
	// is how many others there are.
	Numbers []int64
	Ended   int64
}

// Outcome is how a recipient's mail ended.
type Outcome string

// The outcomes.
const (
	MailSent    Outcome = "sent"
	MailFailed  Outcome = "failed"
	MailSkipped Outcome = "skipped"
)

// Result is one outcome for the ledger.
type Result struct {
	BlastID string
	Number  int64
	Outcome Outcome
}

// BlastLedger keeps the plans, batches and recipients of blasts.
type BlastLedger interface {
	// ClaimPlan returns the blast whose plan has waited longest; it is this process's
	// alone for the time of lease. ok is false where there is none.
	ClaimPlan(ctx context.Context, lease time.Duration) (p Plan, ok bool, err error)
	// Extend adds recipients to a plan, with their batches and the events that these
	// are ready, and gives the plan back. last ends the plan. Where another process has
	// gone on with it, nothing happens.
	Extend(ctx context.Context, p Plan, numbers []int64, last bool) error
	// PausePlan gives a plan back, due after a pause.
	PausePlan(ctx context.Context, p Plan, pause time.Duration) error
	// Gone ends all blasts of a waitlist that has gone, for good.
	Gone(ctx context.Context, waitlistID string) error

	// Claim takes up to limit batches that are due, one of each blast with an id above
	// after, in order of the ids. Each is claim's alone for the time of lease.
	Claim(ctx context.Context, after string, limit int, claim string, lease time.Duration) ([]Batch, error)
	// Renew makes leases begin again and returns, for each batch, whether its claim
	// still holds and the blast goes on.
	Renew(ctx context.Context, batches []Batch, lease time.Duration) ([]bool, error)
	// Pending returns what there is to do of a batch.
	Pending(ctx context.Context, b Batch) (Pending, error)
	// Record stores outcomes. They outlive this process's end at any moment after
	// it; a crash of Postgres itself may lose the last half second of them.
	Record(ctx context.Context, records []Result) error
	// End ends a batch of which nothing is pending, and the blast with its last one.
	End(ctx context.Context, b Batch) error
	// Return gives a batch back, due after a pause. deferred counts that.
	Return(ctx context.Context, b Batch, pause time.Duration, deferred bool) error
	// Pace returns how long to wait before the first of n mails, of which the next
	// ones follow at rate a second, over all processes.
	Pace(ctx context.Context, n int, rate float64) (time.Duration, error)
	// PruneBlasts forgets the recipients of some blasts that ended before a time, and
	// what no trial is bound by any more, and returns how many rows that were.
	PruneBlasts(ctx context.Context, before time.Time) (int64, error)
}

// Suppressions are addresses that get no mail any more.
type Suppressions interface {
	// Suppressed returns which of emails are among them.
	Suppressed(ctx context.Context, emails []string) (map[string]bool, error)
}

// BlasterConfig is what a Blaster works with.
type BlasterConfig struct {
	Ledger       BlastLedger
	Lists        Lists
	Provider     Provider
	Composer     *Composer
	Senders      Senders
	Suppressions Suppressions
	// Workers mails (with a BatchProvider: requests) are under way at a time; 0 means 4.
	Workers int
	// Rate bounds the mails a second over all processes; 0: it does not.
	Rate float64
	// Published says that the outbox has new events.
	Published func()
	Log       *slog.Logger
	Now       func() time.Time
	// DeferMin and PauseMin are the first pauses; 0 means 1 s each. Lease replaces
	// blastLease.
	DeferMin, PauseMin, Lease time.Duration
}

// Blaster sends blasts. Several processes may, side by side:
//
//	blast ─► plan: 10,000 recipients a transaction ─► ledger rows, batches, events
//	                                                                     │
//	 ended ◄─ outcomes ◄─ Provider ◄─ addresses ◄─ claim ◄─ ready ◄─ Kafka
//
// Kafka spreads the batches' events over the processes; the claim is in the
// database, one batch of each blast in turn, so that a long blast does not hold
// up a short one. Who is mailed is asked for when a batch's turn has come. Nothing
// of it grows with the number of recipients.
//
// What a crash leaves is found by another process, or the next one, once the
// lease is over. A mail whose outcome was not recorded is then sent again, with the
// same Message-ID, or as the same request where the provider takes each request
// once by its key: these are the mails in flight, at most four a worker.
type Blaster struct {
	BlasterConfig
	provider absence
	batches  BatchProvider // nil: mails are sent one by one
	jobs     chan job
	records  chan record
	wakePlan chan struct{}
	wakeSend chan struct{}
	tracer   trace.Tracer
	mails    metric.Int64Counter
	outcomes map[string]metric.AddOption // attributes, made once: there are millions of mails
	after    string                      // the blast whose batch was claimed last

	mu   sync.Mutex
	held map[string]held // by claim and blast
}

type held struct {
	Batch
	lost context.CancelFunc
}

// NewBlaster returns a Blaster; Run starts it.
func NewBlaster(cfg BlasterConfig) (*Blaster, error) {
	if cfg.Workers == 0 {
		cfg.Workers = 4
	}
	if cfg.DeferMin == 0 {
		cfg.DeferMin = time.Second
	}
	if cfg.PauseMin == 0 {
		cfg.PauseMin = time.Second
	}
	if cfg.Lease == 0 {
		cfg.Lease = blastLease
	}
	b := &Blaster{
		BlasterConfig: cfg, jobs: make(chan job), records: make(chan record, cfg.Workers),
		wakePlan: make(chan struct{}, 1), wakeSend: make(chan struct{}, 1), tracer: otel.Tracer(scope), after: uuid.Nil.String(), held: map[string]held{},
		outcomes: map[string]metric.AddOption{},
	}
	b.provider.first = cfg.PauseMin
	for _, o := range []string{string(MailSent), string(MailFailed), string(MailSkipped), "deferred", "away"} {
		b.outcomes[o] = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", o)))
	}
	b.batches, _ = cfg.Provider.(BatchProvider)
	var err error
	b.mails, err = otel.Meter(scope).Int64Counter("messaging.blast.mails", metric.WithDescription("Mails of blasts, by outcome: sent, deferred, away, failed, skipped."))
	return b, err
}

// Wake says that there are new blasts, or batches that are ready. It never
// blocks.
func (b *Blaster) Wake() {
	for _, c := range []chan struct{}{b.wakePlan, b.wakeSend} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Run plans and sends until ctx is done. Then it finishes the mails under way and
// gives the rest back.
func (b *Blaster) Run(ctx context.Context) error {
	var loops, workers, recorder sync.WaitGroup
	// Claims are renewed, and outcomes recorded, for as long as batches are under way.
	rest, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	recorder.Go(func() { b.record(ctx) })
	for range b.Workers {
		workers.Go(func() { //nolint:contextcheck // a job has its attempt's
			for j := range b.jobs {
				b.send(j)
			}
		})
	}
	loops.Go(func() { b.plan(ctx) })
	loops.Go(func() { b.renew(rest) })
	loops.Go(func() { b.prune(ctx) })
	b.dispatch(ctx)
	stop()
	close(b.jobs)
	workers.Wait()
	close(b.records)
	recorder.Wait()
	loops.Wait()
	return nil
}

// plan lists recipients, a page of each blast in turn.
func (b *Blaster) plan(ctx context.Context) {
	for ctx.Err() == nil {
		p, ok, err := b.Ledger.ClaimPlan(ctx, b.Lease)
		if err == nil && ok {
			err = b.page(ctx, p)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			b.Log.WarnContext(ctx, "blast not planned", slog.String("blast_id", p.BlastID), telemetry.Err(err))
			if ok {
				// Else the lease holds it back for longer.
				_ = b.Ledger.PausePlan(ctx, p, b.PauseMin)
			}
			outage.Wait(ctx, b.PauseMin)
		case !ok:
			idle(ctx, b.wakePlan)
		}
	}
}

func (b *Blaster) page(ctx context.Context, p Plan) error {
	limit := recipientPage
	if p.To == 0 {
		limit = firstPage
	}
	numbers, err := b.Lists.Numbers(ctx, p.WaitlistID, p.To, limit)
	if apierr.Is(err, apierr.NotFound) {
		return b.Ledger.Gone(ctx, p.WaitlistID)
	}
	if err != nil {
		return fmt.Errorf("list recipients: %w", err)
	}
	if err := b.Ledger.Extend(ctx, p, numbers, len(numbers) < limit); err != nil {
		return err
	}
	b.Published()
	return nil
}

// idle waits for wake, at most blastPoll.
func idle(ctx context.Context, wake <-chan struct{}) {
	t := time.NewTimer(blastPoll)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-wake:
	}
}

// dispatch claims batches, as many as there are workers, and runs them. It
// returns when ctx is done and all have ended.
func (b *Blaster) dispatch(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, b.Workers)
	for ctx.Err() == nil {
		if away := b.provider.left(); away > 0 {
			outage.Wait(ctx, away)
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		free := 1
		for ; free < b.Workers; free++ {
			select {
			case slots <- struct{}{}:
				continue
			default:
			}
			break
		}
		batches, err := b.claim(ctx, free)
		if err != nil {
			b.Log.WarnContext(ctx, "batches not claimed", telemetry.Err(err))
		}
		for _, batch := range batches {
			running.Go(func() {
				defer func() { <-slots }()
				b.run(ctx, batch)
			})
		}
		for range free - len(batches) {
			<-slots
		}
		if len(batches) == 0 {
			idle(ctx, b.wakeSend)
		}
	}
}

// claim takes a batch of each blast after the last one, and goes on with the
// first. It is not cut short by the end of ctx: nobody would know of the claims.
func (b *Blaster) claim(ctx context.Context, limit int) ([]Batch, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	out, err := b.Ledger.Claim(ctx, b.after, limit, uuid.NewString(), b.Lease)
	if err != nil {
		return nil, err
	}
	if len(out) == 0 && b.after != uuid.Nil.String() {
		b.after = uuid.Nil.String()
		if out, err = b.Ledger.Claim(ctx, b.after, limit, uuid.NewString(), b.Lease); err != nil {
			return nil, err
		}
	}
	if len(out) > 0 {
		b.after = out[len(out)-1].BlastID
	}
	return out, nil
}

// renew keeps the claims of batches under way. Those that were lost stop.
func (b *Blaster) renew(ctx context.Context) {
	for outage.Wait(ctx, b.Lease/3) {
		var batches []Batch
		var lost []context.CancelFunc
		b.mu.Lock()
		for _, h := range b.held {
			batches, lost = append(batches, h.Batch), append(lost, h.lost)
		}
		b.mu.Unlock()
		if len(batches) == 0 {
			continue
		}
		holds, err := b.Ledger.Renew(ctx, batches, b.Lease)
		if err != nil {
			if ctx.Err() == nil {
				b.Log.WarnContext(ctx, "claims of batches not renewed", telemetry.Err(err))
			}
			continue
		}
		for i, ok := range holds {
			if !ok {
				lost[i]()
			}
		}
	}
}

func (b *Blaster) hold(h held) (release func()) {
	key := h.Claim + h.BlastID
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[key] = h
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.held, key)
	}
}

// attempt is one run of a batch.
type attempt struct {
	Batch
	Pending
	waitlist string // its name
	signer   signer
	expired  bool // what is deferred now fails
	// going ends when no further mail is to be handed out: at the end of the process,
	// or of the claim. work lasts for the mails under way.
	going, work context.Context //nolint:containedctx // the attempt's own, as are its jobs

	open sync.WaitGroup // mails handed out and not recorded yet

	mu       sync.Mutex
	deferred bool
	stopped  bool // by a provider, or ledger, that is away
	// unsent counts mails that the provider did not take, reason is why, of the last.
	unsent int
	reason error
}

func (a *attempt) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
}

func (a *attempt) state() (deferred, stopped bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.deferred, a.stopped
}

// run sends what is pending of a batch, and ends it or gives it back.
func (b *Blaster) run(ctx context.Context, batch Batch) {
	going, lost := context.WithCancel(ctx)
	defer lost()
	defer b.hold(held{batch, lost})()
	work, stop := drainContext(ctx)
	defer stop()
	work = propagation.TraceContext{}.Extract(work, propagation.MapCarrier{"traceparent": batch.Traceparent})
	work, span := b.tracer.Start(work, "send blast batch", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("blast.id", batch.BlastID), attribute.Int64("blast.batch", batch.Number), attribute.Int("blast.deferrals", batch.Deferrals)))
	defer span.End()
	a := &attempt{Batch: batch, going: going, work: work, expired: b.Now().Sub(batch.CreatedAt) > blastGiveUp}
	err := b.try(a) //nolint:contextcheck // it has those of the attempt
	a.open.Wait()
	if err != nil {
		span.SetStatus(codes.Error, "not finished")
		b.Log.WarnContext(work, "batch not finished", slog.String("blast_id", batch.BlastID), slog.Int64("batch", batch.Number), telemetry.Err(err))
	}
	if a.unsent > 0 {
		b.Log.InfoContext(work, "mails of a blast not sent", slog.String("blast_id", batch.BlastID), slog.Int64("batch", batch.Number), slog.Int("mails", a.unsent), telemetry.Err(a.reason))
	}
	finish := func(ctx context.Context) error { return b.Ledger.End(ctx, batch) }
	deferred, stopped := a.state()
	switch {
	case apierr.Is(err, apierr.NotFound):
		finish = func(ctx context.Context) error { return b.Ledger.Gone(ctx, batch.WaitlistID) }
	case err != nil, stopped, going.Err() != nil:
		pause := b.provider.left()
		if err != nil {
			pause = max(pause, b.PauseMin)
		}
		finish = func(ctx context.Context) error { return b.Ledger.Return(ctx, batch, pause, false) }
	case deferred:
		pause := min(b.DeferMin<<min(batch.Deferrals, 20), blastDeferMax)
		// Spread, so that batches deferred together do not come back together.
		pause += rand.N(pause/4 + 1) //nolint:gosec // no secret
		finish = func(ctx context.Context) error { return b.Ledger.Return(ctx, batch, pause, true) }
	}
	// Where this fails the lease runs out, and the ledger says what is left to do.
	if err := finish(work); err != nil {
		b.Log.WarnContext(work, "batch not recorded", slog.String("blast_id", batch.BlastID), slog.Int64("batch", batch.Number), telemetry.Err(err))
	}
}

// try hands out the mails of a batch.
func (b *Blaster) try(a *attempt) error {
	var err error
	if a.Pending, err = b.Ledger.Pending(a.work, a.Batch); err != nil || len(a.Numbers) == 0 {
		return err
	}
	start := b.Now()
	if b.Rate > 0 {
		wait, err := b.Ledger.Pace(a.work, len(a.Numbers), b.Rate)
		if err != nil {
			return err
		}
		start = start.Add(wait)
	}
	if !b.until(a.going, start) {
		return nil
	}
	if a.signer, err = b.signer(a.work, a.OwnerID); err != nil {
		return err
	}
	audience, err := b.Lists.Recipients(a.work, a.WaitlistID, a.Numbers)
	if err != nil {
		return fmt.Errorf("read recipients: %w", err)
	}
	if !audience.Pro && !a.expired {
		// The rest waits for the owner to subscribe again, as long as for a provider.
		a.deferred = true
		return nil
	}
	a.waitlist = audience.WaitlistName
	there := make(map[int64]string, len(audience.Recipients))
	emails := make([]string, 0, len(audience.Recipients))
	for _, r := range audience.Recipients {
		there[r.Number] = r.Email
		emails = append(emails, r.Email)
	}
	suppressed := map[string]bool{}
	if b.Suppressions != nil && len(emails) > 0 {
		if suppressed, err = b.Suppressions.Suppressed(a.work, emails); err != nil {
			return err
		}
	}
	all := make([]job, len(a.Numbers))
	for i, n := range a.Numbers {
		email, ok := there[n]
		switch {
		case !ok:
			all[i] = job{a: a, number: n, ended: MailSkipped}
		case suppressed[email], !audience.Pro:
			all[i] = job{a: a, number: n, ended: MailFailed}
		default:
			all[i] = job{a: a, number: n, email: email}
		}
	}
	if b.batches != nil {
		b.request(a, all)
		return nil
	}
	mails := 0
	for _, j := range all {
		if j.ended != "" {
			a.open.Add(1)
			b.end(j, j.ended)
			continue
		}
		if b.Rate > 0 && !b.until(a.going, start.Add(time.Duration(float64(mails)/b.Rate*float64(time.Second)))) {
			return nil
		}
		mails++
		if _, stopped := a.state(); stopped {
			return nil
		}
		a.open.Add(1)
		select {
		case b.jobs <- j:
		case <-a.going.Done():
			a.open.Done()
			return nil
		}
	}
	return nil
}

// until waits for a moment and reports whether ctx is still alive.
func (b *Blaster) until(ctx context.Context, t time.Time) bool {
	if wait := t.Sub(b.Now()); wait > 0 {
		return outage.Wait(ctx, wait)
	}
	return ctx.Err() == nil
}

// signer is in whose name a blast goes out.
type signer = func(Mail) Mail

func (b *Blaster) signer(ctx context.Context, ownerID string) (signer, error) {
	if b.Senders == nil {
		return func(m Mail) Mail { return m }, nil
	}
	from, dkim, err := b.Senders.Sender(ctx, ownerID)
	if err != nil {
		return nil, fmt.Errorf("find the sender: %w", err)
	}
	return func(m Mail) Mail { m.From, m.DKIM = from, dkim; return m }, nil
}

// job is one mail to send.
type job struct {
	a      *attempt
	number int64
	email  string
	// ended is set where there is none to send.
	ended Outcome
}

// mail writes a job's mail. Its date and id are the same each time.
func (b *Blaster) mail(j job) Mail {
	m := b.Composer.Blast(j.a.BlastContent, j.a.WaitlistID, j.a.waitlist, Recipient{j.number, j.email})
	m.ID, m.Date = uuid.NewSHA1(uuid.Nil, []byte(j.a.BlastID+":"+strconv.FormatInt(j.number, 10))).String(), j.a.CreatedAt
	return j.a.signer(m)
}

// Blast writes the mail of a blast to one recipient; it has no id and date yet.
func (c *Composer) Blast(content BlastContent, waitlistID, waitlistName string, to Recipient) Mail {
	return c.footer(waitlistID, waitlistName, to.Number, to.Email).under(Mail{To: to.Email, Subject: content.Subject, Text: content.Text, HTML: content.HTML})
}

// send sends one mail.
func (b *Blaster) send(j job) {
	ctx, cancel := context.WithTimeout(j.a.work, sendTimeout)
	defer cancel()
	if o := b.judge(j.a, b.Provider.Send(ctx, b.mail(j))); o != "" {
		b.end(j, o)
	} else {
		j.a.open.Done()
	}
}

// request sends what is pending of a batch by requests of several mails. Which
// recipients a request is about, and its key, follow from the ledger alone, and
// it is recorded as a whole: after a crash it is the same one.
func (b *Blaster) request(a *attempt, all []job) {
	part := max(1, min(MaxBatch, batchBytes/(len(a.Text)+len(a.HTML)+4<<10)))
	for len(all) > 0 && a.going.Err() == nil {
		now := all[:min(part, len(all))]
		all = all[len(now):]
		var mails []Mail
		for _, j := range now {
			if j.ended != "" {
				continue
			}
			mails = append(mails, b.mail(j))
		}
		var errs []error
		if len(mails) > 0 {
			ctx, cancel := context.WithTimeout(a.work, sendTimeout)
			errs = b.batches.SendBatch(ctx, fmt.Sprintf("%s:%d:%d", a.BlastID, a.Number, a.Ended), mails)
			cancel()
		}
		var rows, silent []Result
		for _, j := range now {
			if j.ended != "" {
				silent = append(silent, Result{a.BlastID, j.number, j.ended})
				continue
			}
			if o := b.judge(a, errs[0]); o != "" {
				rows = append(rows, Result{a.BlastID, j.number, o})
			}
			errs = errs[1:]
		}
		if len(rows) > 0 || len(mails) == 0 {
			// Else the request is made again, under the same key: it may have been taken.
			rows = append(rows, silent...)
		}
		for _, r := range rows {
			b.count(a, string(r.Outcome))
		}
		if len(rows) > 0 && !b.store(a.going, rows) {
			a.stop()
		}
		a.Ended += int64(len(rows))
		// The key of the next request counts on every mail of this one.
		if deferred, stopped := a.state(); deferred || stopped {
			break
		}
	}
}

// judge decides what an answer of the provider means for a mail; "": it has not
// ended.
func (b *Blaster) judge(a *attempt, err error) Outcome {
	_, refused := errors.AsType[*RefusedError](err)
	_, deferred := errors.AsType[*DeferredError](err)
	b.provider.reached(err == nil || refused || deferred)
	if err == nil {
		return MailSent
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unsent++
	a.reason = err
	switch {
	case refused, deferred && a.expired:
		return MailFailed
	case deferred:
		b.count(a, "deferred")
		a.deferred = true
	default:
		b.count(a, "away")
		a.stopped = true
	}
	return ""
}

func (b *Blaster) count(a *attempt, outcome string) {
	b.mails.Add(a.work, 1, b.outcomes[outcome])
}

// end hands an outcome to the recorder. It waits while that is behind, so that
// few mails are sent and not recorded.
func (b *Blaster) end(j job, o Outcome) {
	b.count(j.a, string(o))
	b.records <- record{Result{j.a.BlastID, j.number, o}, j.a}
}

type record struct {
	Result
	a *attempt
}

// record stores outcomes until there are no more to come, those that come within
// a moment together.
func (b *Blaster) record(ctx context.Context) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for first := range b.records {
		group := []record{first}
		wait.Reset(recordWait)
	fill:
		for len(group) < 2*b.Workers {
			select {
			case r, ok := <-b.records:
				if !ok {
					break fill
				}
				group = append(group, r)
			case <-wait.C:
				break fill
			}
		}
		rows := make([]Result, len(group))
		for i, r := range group {
			rows[i] = r.Result
		}
		stored := b.store(ctx, rows)
		for _, r := range group {
			if !stored {
				r.a.stop()
			}
			r.a.open.Done()
		}
	}
}

// store writes to the ledger, for as long as it takes; after the end of ctx for
// the time of drain.
func (b *Blaster) store(ctx context.Context, rows []Result) bool {
	work, stop := drainContext(ctx)
	defer stop()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := b.Ledger.Record(work, rows)
		if err == nil {
			return true
		}
		b.Log.WarnContext(work, "outcomes of blasts not recorded", telemetry.Err(err))
		if !outage.Wait(work, wait) {
			return false
		}
	}
}

func (b *Blaster) prune(ctx context.Context) {
	prune(ctx, func() (int64, error) {
		n, err := b.Ledger.PruneBlasts(ctx, b.Now().Add(-blastKeep))
		if err != nil {
			b.Log.WarnContext(ctx, "ledger of blasts not pruned", telemetry.Err(err))
		}
		return n, err
	})
}
