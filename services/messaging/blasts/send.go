package blasts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/work"
	"waitlist.internal/services/messaging/mails"
)

const (
	// A batch is deferred if the provider defers mails of it, or if the owner's plan no longer
	// includes blasts. It is due again after a pause that starts at DeferMin and doubles up to
	// deferMax. Mails deferred after giveUp, counted from the request, fail.
	deferMax = 10 * time.Minute
	giveUp   = 24 * time.Hour
	// batchBytes is the approximate limit of the bodies in one request to a BatchProvider.
	batchBytes = 8 << 20
)

// attempt is one run of a claimed batch.
type attempt struct {
	Batch
	Pending
	waitlistName string
	sign         func(mails.Mail) mails.Mail // sets the sender
	expired      bool                        // a deferral is a failure now
	claim        *work.Claim[Batch]
	// dispatchCtx ends with the process or the claim: no further mail is handed out. drainCtx
	// outlasts it for the mails in flight.
	dispatchCtx, drainCtx context.Context // jobs carry their attempt through channels

	open sync.WaitGroup // mails handed out whose outcome is not recorded
	progress
}

// progress is what the workers and the recorder report about an attempt.
type progress struct {
	mu       sync.Mutex
	deferred bool // the batch is due again after a pause
	stopped  bool // the provider or the database is away
	// unsent counts mails that the provider did not take; reason is its last error.
	unsent int
	reason error
}

func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

func (p *progress) state() (deferred, stopped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deferred, p.stopped
}

// job is one recipient's mail in an attempt.
type job struct {
	a      *attempt
	number int64
	email  string
	// outcome is empty until the mail has ended. A job that begins with an outcome is not sent.
	outcome Outcome
}

func (j job) result() Result { return Result{j.a.BlastID, j.number, j.outcome} }

// run sends the pending mails of a batch, and ends or returns it.
func (b *Blaster) run(ctx context.Context, claim *work.Claim[Batch]) {
	batch := claim.Work
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": batch.Traceparent})
	ctx, span := b.tracer.Start(ctx, "send blast batch", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("blast.id", batch.BlastID), attribute.Int64("blast.batch", batch.Number),
		attribute.Int("blast.deferrals", batch.Deferrals)))
	defer span.End()
	a := &attempt{
		Batch: batch, claim: claim, dispatchCtx: claim.Context, drainCtx: ctx, expired: b.Now().Sub(batch.CreatedAt) > giveUp,
	}
	log := b.Log.With(slog.String("blast_id", batch.BlastID), slog.Int64("batch", batch.Number))
	err := b.try(a) //nolint:contextcheck // it has the attempt's contexts
	a.open.Wait()
	if err != nil {
		span.SetStatus(codes.Error, "not finished")
		log.WarnContext(ctx, "batch not finished", telemetry.Err(err))
	}
	if a.unsent > 0 {
		log.InfoContext(ctx, "mails of a blast not sent", slog.Int("mails", a.unsent), telemetry.Err(a.reason))
	}
	claim.Settle(ctx, func(ctx context.Context) error { return b.finish(ctx, a, err) })
}

// finish ends the batch of an attempt that returned err, or returns it.
func (b *Blaster) finish(ctx context.Context, a *attempt, err error) error {
	deferred, stopped := a.state()
	switch {
	case apierr.Is(err, apierr.NotFound):
		return b.Queue.Gone(ctx, a.WaitlistID)
	case err != nil:
		return b.Queue.Return(ctx, a.Batch, max(b.provider.Remaining(), b.PauseMin), false)
	case stopped, a.dispatchCtx.Err() != nil:
		return b.Queue.Return(ctx, a.Batch, b.provider.Remaining(), false)
	case deferred:
		return b.Queue.Return(ctx, a.Batch, mails.Deferral(b.DeferMin, deferMax, a.Deferrals), true)
	}
	return b.Queue.End(ctx, a.Batch)
}

// try hands out the pending mails of a batch.
func (b *Blaster) try(a *attempt) error {
	var err error
	if a.Pending, err = b.Queue.Pending(a.drainCtx, a.Batch); err != nil || len(a.Numbers) == 0 {
		return err
	}
	start := b.Now()
	if b.Rate > 0 {
		wait, err := b.Queue.Pace(a.drainCtx, len(a.Numbers), b.Rate)
		if err != nil {
			return err
		}
		start = start.Add(wait)
	}
	if !b.until(a.dispatchCtx, start) {
		return nil
	}
	jobs, err := b.prepare(a)
	if err != nil {
		return err
	}
	if b.batches != nil {
		b.request(a, jobs)
	} else {
		b.handOut(a, jobs, start)
	}
	return nil
}

// until waits for a moment and reports whether ctx is still alive.
func (b *Blaster) until(ctx context.Context, t time.Time) bool {
	if wait := t.Sub(b.Now()); wait > 0 {
		return loop.Wait(ctx, wait)
	}
	return ctx.Err() == nil
}

// prepare looks up the sender and the recipients of an attempt. It returns a job for each
// pending number, or none if the batch is deferred because the owner's plan has lapsed.
func (b *Blaster) prepare(a *attempt) ([]job, error) {
	a.sign = func(m mails.Mail) mails.Mail { return m }
	if b.Senders != nil {
		from, dkim, err := b.Senders.Sender(a.drainCtx, a.OwnerID)
		if err != nil {
			return nil, fmt.Errorf("find the sender: %w", err)
		}
		a.sign = func(m mails.Mail) mails.Mail { m.From, m.DKIM = from, dkim; return m }
	}
	audience, err := b.Lists.Recipients(a.drainCtx, a.WaitlistID, a.Numbers)
	if err != nil {
		return nil, fmt.Errorf("read recipients: %w", err)
	}
	if !audience.Pro && !a.expired {
		// The owner may subscribe again until giveUp.
		a.deferred = true
		return nil, nil
	}
	a.waitlistName = audience.WaitlistName
	if a.Text == "" {
		a.Text = mails.PlainText(a.HTML)
	}
	byNumber := make(map[int64]string, len(audience.Recipients))
	emails := make([]string, 0, len(audience.Recipients))
	for _, r := range audience.Recipients {
		byNumber[r.Number] = r.Email
		emails = append(emails, r.Email)
	}
	var suppressed map[string]bool
	if b.Suppressions != nil && len(emails) > 0 {
		if suppressed, err = b.Suppressions.Suppressed(a.drainCtx, emails); err != nil {
			return nil, err
		}
	}
	if b.Limits.MailsPerRecipient > 0 && audience.Pro {
		if err := b.charge(a, byNumber, suppressed); err != nil {
			return nil, err
		}
	}
	jobs := make([]job, len(a.Numbers))
	for i, n := range a.Numbers {
		email, live := byNumber[n]
		jobs[i] = job{a: a, number: n, email: email}
		switch {
		case !live:
			jobs[i].outcome = MailSkipped
		case suppressed[email], !audience.Pro:
			jobs[i].outcome = MailFailed
		}
	}
	return jobs, nil
}

// charge counts the mails of an attempt towards the quotas of their recipients. It ends the mails beyond a quota as failed
// before the first mail of the batch is sent, so that the keys of its requests stay the same.
func (b *Blaster) charge(a *attempt, byNumber map[int64]string, suppressed map[string]bool) error {
	var to []Recipient
	for _, n := range a.Numbers {
		if email, live := byNumber[n]; live && !suppressed[email] {
			to = append(to, Recipient{n, email})
		}
	}
	over, err := b.Queue.Charge(a.drainCtx, a.Batch, b.Limits.MailsPerRecipient, to)
	if err != nil {
		return fmt.Errorf("charge a batch: %w", err)
	}
	for range over {
		b.count(string(MailFailed))
	}
	a.Numbers = slices.DeleteFunc(a.Numbers, func(n int64) bool { return slices.Contains(over, n) })
	a.Ended += int64(len(over))
	return nil
}

// handOut gives jobs to the workers at the configured rate, until the attempt is stopped.
func (b *Blaster) handOut(a *attempt, jobs []job, start time.Time) {
	mails := 0
	for _, j := range jobs {
		if j.outcome != "" {
			a.open.Add(1)
			b.end(j)
			continue
		}
		if b.Rate > 0 && !b.until(a.dispatchCtx, start.Add(time.Duration(float64(mails)/b.Rate*float64(time.Second)))) {
			return
		}
		mails++
		if _, stopped := a.state(); stopped {
			return
		}
		a.open.Add(1)
		select {
		case b.jobs <- j:
		case <-a.dispatchCtx.Done():
			a.open.Done()
			return
		}
	}
}

// send sends one mail.
func (b *Blaster) send(j job) {
	if !j.a.claim.Holds() {
		j.a.open.Done()
		return
	}
	ctx, cancel := context.WithTimeout(j.a.drainCtx, mails.SendTimeout)
	defer cancel()
	if j.outcome = b.judge(j, b.Provider.Send(ctx, b.mail(j))); j.outcome == "" {
		j.a.open.Done()
		return
	}
	b.end(j)
}

// request sends jobs as requests of several mails each. Every request and its key follow from
// the recorded outcomes alone, and its outcomes are recorded together: after a crash, the next
// attempt makes the same request again.
func (b *Blaster) request(a *attempt, jobs []job) {
	size := max(1, min(mails.MaxBatch, batchBytes/(len(a.Text)+len(a.HTML)+4<<10)))
	for len(jobs) > 0 && a.dispatchCtx.Err() == nil && a.claim.Holds() {
		part := jobs[:min(size, len(jobs))]
		jobs = jobs[len(part):]
		var composed []mails.Mail
		for _, j := range part {
			if j.outcome == "" {
				composed = append(composed, b.mail(j))
			}
		}
		var errs []error
		if len(composed) > 0 {
			ctx, cancel := context.WithTimeout(a.drainCtx, mails.SendTimeout)
			errs = b.batches.SendBatch(ctx, fmt.Sprintf("%s:%d:%d", a.BlastID, a.Number, a.Ended), composed)
			cancel()
		}
		var results, unsendable []Result
		for _, j := range part {
			if j.outcome != "" {
				unsendable = append(unsendable, j.result())
				continue
			}
			if j.outcome = b.judge(j, errs[0]); j.outcome != "" {
				results = append(results, j.result())
			}
			errs = errs[1:]
		}
		// A request without any outcome is repeated with the same key, because the provider may
		// have taken it. Recording the unsendable mails would change the key.
		if len(results) > 0 || len(composed) == 0 {
			results = append(results, unsendable...)
		}
		for _, r := range results {
			b.count(string(r.Outcome))
		}
		if len(results) > 0 && !b.store(a.dispatchCtx, results) {
			a.stop()
		}
		a.Ended += int64(len(results))
		// The next key is right only if all mails of this request have ended.
		if deferred, stopped := a.state(); deferred || stopped {
			return
		}
	}
}

// judge derives a mail's outcome from the provider's answer; it is empty if the mail has to be
// sent again.
func (b *Blaster) judge(j job, err error) Outcome {
	a := j.a
	if err == nil {
		b.provider.Accepted()
		return MailSent
	}
	_, refused := errors.AsType[*mails.RefusedError](err)
	_, deferred := errors.AsType[*mails.DeferredError](err)
	if _, doubtful := errors.AsType[*mails.DoubtfulError](err); doubtful {
		deferred = !b.provider.Doubt(j.email)
	} else {
		b.provider.Report(refused || deferred)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unsent++
	a.reason = err
	switch {
	case refused, deferred && a.expired:
		return MailFailed
	case deferred:
		b.count("deferred")
		a.deferred = true
	default:
		b.count("away")
		a.stopped = true
	}
	return ""
}

// mail composes a job's mail. Its id and date are the same in every attempt.
func (b *Blaster) mail(j job) mails.Mail {
	m := mails.Mail{
		ID: uuid.NewSHA1(uuid.Nil, []byte(j.a.BlastID+":"+strconv.FormatInt(j.number, 10))).String(),
		To: j.email, Subject: j.a.Subject, Text: j.a.Text, HTML: j.a.HTML, Date: j.a.CreatedAt,
	}
	return j.a.sign(b.Composer.WithFooter(m, j.a.WaitlistID, j.a.waitlistName, j.number))
}
