package join

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// Receipt is the answer to a signup. Position and Total are shown only if
// ShowPosition is set.
type Receipt struct {
	Created       bool
	Email         string
	FirstName     string
	LastName      string
	Token         string
	ShowPosition  bool
	Position      int64
	Total         int64
	ReferralCount int64
	CreatedAt     time.Time
	RedirectURL   string
}

// Join signs up the person whom the request body raw describes. It checks, in
// this order: JSON, waitlist, open or closed, honeypot, fields, the rules about
// email domains. An address that is on the list already is not an error.
func (s *Service) Join(ctx context.Context, waitlistID string, raw []byte, h Header) (Receipt, error) {
	form, err := body.Parse(raw)
	if err != nil {
		return Receipt{}, err
	}
	w := s.cache.get(waitlistID)
	cached := w != nil
	if !cached {
		if w, err = s.fresh(ctx, waitlistID); err != nil {
			return Receipt{}, err
		}
	}
	// People leave the honeypot field empty; bots fill it.
	if website, ok := form.Raw("website"); ok && string(website) != `""` {
		return s.fakeReceipt(ctx, waitlistID, form)
	}
	join, err := s.validate(w, form, h)
	if err != nil && cached {
		// The cached settings may be outdated. Only the stored ones refuse a signup.
		if w, err = s.fresh(ctx, waitlistID); err != nil {
			return Receipt{}, err
		}
		join, err = s.revalidate(w, raw, h)
	}
	if err != nil {
		return Receipt{}, err
	}
	e := &entry{join: join, raw: raw, header: h, queued: s.now(), done: make(chan struct{})}
	e.caller, join.Traceparent = caller(ctx)
	if err := s.decide(ctx, waitlistID, e); err != nil {
		return Receipt{}, Unavailable(err)
	}
	return s.receipt(ctx, waitlistID, e)
}

// decide commits e: at once if nothing waits, else in a batch of its lane.
func (s *Service) decide(ctx context.Context, waitlistID string, e *entry) error {
	if ln := s.lanes.tryServeInline(waitlistID); ln != nil {
		s.serve(ln, []*entry{e}) //nolint:contextcheck // it goes on when the caller leaves, as every batch does
		return e.err
	}
	if err := s.lanes.submit(waitlistID, e); err != nil {
		return err
	}
	return s.lanes.wait(ctx, e)
}

func (s *Service) receipt(ctx context.Context, waitlistID string, e *entry) (Receipt, error) {
	o, join := e.outcome, e.join
	if !o.Existing && o.Position != 0 {
		eff := s.Effective(join.Waitlist)
		return Receipt{
			Created: true, Email: join.Email, FirstName: join.FirstName, LastName: join.LastName,
			Token: join.Token.String(), ShowPosition: !eff.HidePosition, Position: eff.Displayed(o.Position),
			Total: o.Total, CreatedAt: join.CreatedAt, RedirectURL: eff.RedirectURL,
		}, nil
	}
	w, v, err := s.place(ctx, waitlistID, join.Email)
	if err != nil {
		return Receipt{}, err
	}
	eff := s.Effective(w)
	return Receipt{
		Created: !o.Existing, Email: v.Signup.Email, FirstName: v.Signup.FirstName, LastName: v.Signup.LastName,
		Token: v.Signup.Token.String(), ShowPosition: !eff.HidePosition, Position: eff.Displayed(v.Rank),
		Total: v.Total, ReferralCount: v.Signup.ReferralCount, CreatedAt: v.Signup.CreatedAt, RedirectURL: eff.RedirectURL,
	}, nil
}

// fakeReceipt answers a bot that filled the honeypot field as if it had signed up.
func (s *Service) fakeReceipt(ctx context.Context, waitlistID string, form *body.Object) (Receipt, error) {
	w, v, err := s.view(ctx, waitlistID, "")
	if err != nil {
		return Receipt{}, err
	}
	eff := s.Effective(w)
	if eff.Status == waitlist.Closed {
		return Receipt{}, errClosed()
	}
	email, _ := form.String("email", emailaddr.MaxLength)
	email = strings.TrimSpace(email)
	if parsed, err := emailaddr.Parse(email); err == nil {
		email = parsed
	}
	return Receipt{
		Created: true, Email: email,
		FirstName: readText(form, "first_name", queue.MaxName, eff.NameField),
		LastName:  readText(form, "last_name", queue.MaxName, eff.NameField),
		Token:     queue.NewToken().String(), ShowPosition: !eff.HidePosition, Position: eff.Displayed(v.Total + 1),
		Total: v.Total + 1, CreatedAt: s.timestamp(), RedirectURL: eff.RedirectURL,
	}, nil
}

// commitBatches commits batches until the lanes are stopped and empty.
func (s *Service) commitBatches() {
	for {
		ln, batch := s.lanes.nextBatch()
		if ln == nil {
			return
		}
		s.serve(ln, batch)
	}
}

// serve commits a batch of a lane and puts the lane back.
func (s *Service) serve(ln *lane, batch []*entry) {
	// A batch has many callers. It goes on when one of them leaves.
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	start := time.Now()
	defer func() {
		took := time.Since(start)
		s.cfg.Committed(len(batch), took)
		s.lanes.putBack(ln, len(batch), took)
	}()
	for _, e := range batch {
		s.cfg.Waited(s.now().Sub(e.queued))
	}
	var callers []trace.Span
	for _, e := range batch {
		if e.caller != nil {
			callers = append(callers, e.caller)
		}
	}
	ctx, span := traceTogether(ctx, "signup commit", ln.id, len(batch), callers)
	defer span.End()
	s.commit(ctx, ln.id, batch)
}

// commit decides and finishes every entry of a batch.
func (s *Service) commit(ctx context.Context, waitlistID string, batch []*entry) {
	outcomes, err := s.tryJoin(ctx, waitlistID, batch)
	if err == nil {
		if slices.ContainsFunc(outcomes, func(o queue.Outcome) bool { return o.Position > s.cfg.SmallList }) {
			s.Hint(waitlistID)
		}
		for i, e := range batch {
			e.outcome = outcomes[i]
			e.finish(outcomes[i].Err)
		}
		return
	}
	if _, one := errors.AsType[*RowError](err); one && len(batch) > 1 && ctx.Err() == nil {
		s.log.WarnContext(ctx, "batch rejected; splitting it", slog.String("waitlist_id", waitlistID), slog.Int("size", len(batch)),
			telemetry.Err(err))
		half := len(batch) / 2
		s.commit(ctx, waitlistID, batch[:half])
		s.commit(ctx, waitlistID, batch[half:])
		return
	}
	for _, e := range batch {
		e.finish(Unavailable(err))
	}
}

// tryJoin stores a batch and retries where that may help.
func (s *Service) tryJoin(ctx context.Context, waitlistID string, batch []*entry) ([]queue.Outcome, error) {
	joins := make([]*queue.Join, len(batch))
	for i, e := range batch {
		joins[i] = e.join
	}
	decide := func(l *queue.Locked) *queue.Batch {
		return l.Decide(joins, s.revalidateOutdated(l, batch, joins), queue.NewEventID)
	}
	b, err := Retry(ctx, s.log, "batch", waitlistID, len(batch), func() (*queue.Batch, error) {
		return s.store.Join(ctx, waitlistID, joins, decide)
	})
	if err != nil {
		return nil, err
	}
	return b.Outcomes, nil
}

// revalidateOutdated validates the outdated joins again, against the stored settings, and
// puts the results into batch and joins. It returns why joins are refused now, nil
// if none is.
func (s *Service) revalidateOutdated(l *queue.Locked, batch []*entry, joins []*queue.Join) (refused []error) {
	for i, e := range batch {
		if !l.Outdated(joins[i]) {
			continue
		}
		s.cache.put(l.Waitlist)
		j, err := s.revalidate(l.Waitlist, e.raw, e.header)
		if err != nil {
			if refused == nil {
				refused = make([]error, len(batch))
			}
			refused[i] = err
			continue
		}
		// The token identifies the row to a later attempt.
		j.Token, j.CreatedAt, j.Traceparent = joins[i].Token, joins[i].CreatedAt, joins[i].Traceparent
		joins[i], e.join = j, j
	}
	return refused
}

// Run commits batches until ctx ends. Then it commits the waiting signups and returns.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range s.cfg.Workers {
		wg.Go(s.commitBatches)
	}
	if s.index != nil {
		wg.Go(func() { s.index.Run(ctx) })
	}
	<-ctx.Done()
	s.lanes.stop()
	wg.Wait()
	return nil
}

// QueueDepth returns how many signups wait for their batch.
func (s *Service) QueueDepth() int { return s.lanes.depth() }
