package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/propagation"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/idempotency"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres/db"
)

// blastScope is the idempotency scope of requests for blasts.
const blastScope = "blasts.create"

// Blasts implements blasts.Store and blasts.Queue.
type Blasts struct {
	pool *pgxpool.Pool
	db   *db.Queries
	now  func() time.Time
}

// NewBlasts returns Blasts over a pool whose search path is the schema.
func NewBlasts(pool *pgxpool.Pool, now func() time.Time) *Blasts {
	return &Blasts{pool, db.New(pool), now}
}

// firstAnswer is the response that an Idempotency-Key stores. State is empty until the request has been
// answered.
type firstAnswer struct {
	ID         string       `json:"id"`
	CreatedAt  time.Time    `json:"created_at"`
	State      blasts.State `json:"state,omitempty"`
	Recipients int64        `json:"recipients,omitempty"`
	Failed     int64        `json:"failed,omitempty"`
}

// Create implements blasts.Store.
func (s *Blasts) Create(ctx context.Context, b blasts.NewBlast) (id string, replayed bool, first blasts.Blast, err error) {
	req := idempotency.Request{
		Scope: blastScope, AccountID: b.AccountID, Key: b.Key, Content: append([]byte(b.WaitlistID+"\n"), b.Fingerprint...),
	}
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var response []byte
		response, replayed, err = idempotency.Do(ctx, tx, req, func() ([]byte, error) {
			if err := insert(ctx, tx, b); err != nil {
				return nil, err
			}
			return json.Marshal(firstAnswer{ID: b.ID, CreatedAt: b.CreatedAt})
		})
		if err != nil {
			return err
		}
		var a firstAnswer
		if err := json.Unmarshal(response, &a); err != nil {
			return fmt.Errorf("decode stored response: %w", err)
		}
		id, first = a.ID, blasts.Blast{}
		switch {
		case a.State != "":
			first = blasts.Blast{ID: a.ID, State: a.State, Recipients: a.Recipients, Failed: a.Failed}
		case replayed && s.now().Sub(a.CreatedAt) < blasts.Wait+time.Second:
			return apierr.New(apierr.Conflict, "A request with this "+idempotency.Header+" is still running.").WithRetryAfter(time.Second)
		}
		return nil
	})
	if err != nil {
		return "", false, blasts.Blast{}, err
	}
	return id, replayed, first, nil
}

func insert(ctx context.Context, tx pgx.Tx, b blasts.NewBlast) error {
	for _, id := range []string{b.OwnerID, b.WaitlistID} {
		if err := holdOff(ctx, tx, id); err != nil {
			return fmt.Errorf("hold off the purge: %w", err)
		}
	}
	if b.MaxBlasts > 0 {
		if err := db.New(tx).LockBound(ctx, b.OwnerID); err != nil {
			return fmt.Errorf("lock the bound: %w", err)
		}
		have, err := db.New(tx).CountBlasts(ctx, b.OwnerID)
		if err != nil {
			return fmt.Errorf("count blasts: %w", err)
		}
		if have >= b.MaxBlasts {
			return blasts.ErrTooMany(b.MaxBlasts)
		}
	}
	var most *int64
	if b.Use.Most > 0 {
		most = &b.Use.N
		if err := takeOne(ctx, db.New(tx), b.CreatedAt, b.Use); err != nil {
			return err
		}
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	n, err := db.New(tx).InsertBlast(ctx, db.InsertBlastParams{
		ID: b.ID, WaitlistID: b.WaitlistID, OwnerID: b.OwnerID, Subject: b.Subject, HTML: b.HTML, Text: b.Text,
		Traceparent: carrier["traceparent"], CreatedAt: b.CreatedAt, Most: most,
	})
	if err != nil {
		return fmt.Errorf("insert blast: %w", err)
	}
	if n == 0 {
		return apierr.NotFoundf("There is no such waitlist.")
	}
	return audit.Insert(ctx, tx, b.By)
}

// Answered implements blasts.Store.
func (s *Blasts) Answered(ctx context.Context, b blasts.NewBlast, answer blasts.Blast) error {
	response, err := json.Marshal(firstAnswer{
		ID: answer.ID, CreatedAt: b.CreatedAt, State: answer.State, Recipients: answer.Recipients, Failed: answer.Failed,
	})
	if err != nil {
		return fmt.Errorf("encode the answer about a blast: %w", err)
	}
	if err := s.db.StoreAnswer(ctx, db.StoreAnswerParams{
		AccountID: b.AccountID, Scope: blastScope, Key: b.Key, Response: response,
	}); err != nil {
		return fmt.Errorf("store the answer about a blast: %w", err)
	}
	return nil
}

// Blast implements blasts.Store.
func (s *Blasts) Blast(ctx context.Context, id string) (blasts.Blast, error) {
	row, err := s.db.GetBlast(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		// The purge deleted it with its waitlist.
		return blasts.Blast{ID: id, State: blasts.Failed}, nil
	}
	if err != nil {
		return blasts.Blast{}, fmt.Errorf("read blast: %w", err)
	}
	return blasts.Blast{
		ID: id, Subject: row.Subject, State: blasts.State(row.State), At: row.At,
		Recipients: row.RecipientCount, Failed: row.FailedCount,
	}, nil
}

// Blasts implements blasts.Store.
func (s *Blasts) Blasts(ctx context.Context, waitlistID string) ([]blasts.Blast, error) {
	rows, err := s.db.ListBlasts(ctx, waitlistID)
	if err != nil {
		return nil, fmt.Errorf("list blasts: %w", err)
	}
	out := make([]blasts.Blast, len(rows))
	for i, row := range rows {
		out[i] = blasts.Blast(row)
	}
	return out, nil
}

// ClaimPlan implements blasts.Queue.
func (s *Blasts) ClaimPlan(ctx context.Context, lease time.Duration) (p blasts.Plan, ok bool, err error) {
	row, err := s.db.ClaimPlan(ctx, lease)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, false, nil
	}
	if err != nil {
		return p, false, fmt.Errorf("claim the plan of a blast: %w", err)
	}
	return blasts.Plan(row), true, nil
}

// Extend implements blasts.Queue.
func (s *Blasts) Extend(ctx context.Context, p blasts.Plan, numbers []int64, last bool) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		q := db.New(tx)
		batch, err := q.LockPlan(ctx, p.BlastID, p.To)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		var first, to []int64
		for part := range slices.Chunk(numbers, mails.MaxBatch) {
			first, to = append(first, part[0]), append(to, part[len(part)-1])
		}
		if len(numbers) > 0 {
			if err := q.InsertRecipients(ctx, p.BlastID, numbers); err != nil {
				return err
			}
			batches := db.InsertBatchesParams{BlastID: p.BlastID, Batch: batch, Firsts: first, Lasts: to}
			if err := q.InsertBatches(ctx, batches); err != nil {
				return err
			}
			p.To = numbers[len(numbers)-1]
		}
		return q.ExtendPlan(ctx, db.ExtendPlanParams{
			ID: p.BlastID, PlannedTo: p.To, Planned: last, Added: int64(len(first)), Recipients: int64(len(numbers)),
		})
	})
	if err != nil {
		return fmt.Errorf("plan blast: %w", err)
	}
	return nil
}

// PausePlan implements blasts.Queue.
func (s *Blasts) PausePlan(ctx context.Context, p blasts.Plan, pause time.Duration) error {
	if err := s.db.PausePlan(ctx, db.PausePlanParams{ID: p.BlastID, PlannedTo: p.To, Pause: pause}); err != nil {
		return fmt.Errorf("pause the plan of a blast: %w", err)
	}
	return nil
}

// Gone implements blasts.Queue. It has the effect of the event about the waitlist's deletion.
// Nothing more is planned, claimed or counted for the waitlist's running blasts.
func (s *Blasts) Gone(ctx context.Context, waitlistID string) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		q := db.New(tx)
		if err := q.MarkGone(ctx, waitlistID); err != nil {
			return err
		}
		return q.FailBlastsOfWaitlist(ctx, waitlistID)
	})
	if err != nil {
		return fmt.Errorf("end the blasts of a waitlist: %w", err)
	}
	return nil
}

// Claim implements blasts.Queue.
func (s *Blasts) Claim(ctx context.Context, after string, limit int, claim string, lease time.Duration) ([]blasts.Batch, error) {
	rows, err := s.db.ClaimBatches(ctx, db.ClaimBatchesParams{After: after, Most: int64(limit), Claim: claim, Lease: lease})
	if err != nil {
		return nil, fmt.Errorf("claim batches: %w", err)
	}
	out := make([]blasts.Batch, len(rows))
	for i, r := range rows {
		out[i] = blasts.Batch{
			BlastID: r.BlastID, Number: r.Number, Claim: claim, WaitlistID: r.WaitlistID, OwnerID: r.OwnerID,
			First: r.First, Last: r.Last, Deferrals: int(r.Deferrals), CreatedAt: r.CreatedAt, Traceparent: r.Traceparent,
		}
	}
	return out, nil
}

// Renew implements blasts.Queue.
func (s *Blasts) Renew(ctx context.Context, lease time.Duration, batches []blasts.Batch) ([]bool, error) {
	var b pgx.Batch
	holds := make([]bool, len(batches))
	for i, batch := range batches {
		b.Queue(db.RenewBatch, lease, batch.BlastID, batch.Number, batch.Claim).
			Exec(func(tag pgconn.CommandTag) error { holds[i] = tag.RowsAffected() == 1; return nil })
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("renew claims: %w", err)
	}
	return holds, nil
}

// Pending implements blasts.Queue.
func (s *Blasts) Pending(ctx context.Context, batch blasts.Batch) (blasts.Pending, error) {
	row, err := s.db.PendingOfBatch(ctx, db.PendingOfBatchParams{BlastID: batch.BlastID, First: batch.First, Last: batch.Last})
	if errors.Is(err, pgx.ErrNoRows) {
		return blasts.Pending{}, nil // the blast ended with its waitlist
	}
	if err != nil {
		return blasts.Pending{}, fmt.Errorf("read a batch: %w", err)
	}
	return blasts.Pending{
		Content: blasts.Content{Subject: row.Subject, HTML: row.HTML, Text: row.Text}, Numbers: row.Pending, Ended: row.Ended,
	}, nil
}

// Record implements blasts.Queue.
//
// The commit does not wait for the disk, which would slow down every mail of a blast. A crash of this
// process loses nothing. A crash of Postgres loses the outcomes of at most the last half second; these
// mails are sent again, like mails in flight.
func (s *Blasts) Record(ctx context.Context, results []blasts.Result) error {
	// The batch is one implicit transaction. A single statement with an array of numbers could
	// get a plan that reads the whole blast.
	var b pgx.Batch
	b.Queue("SELECT set_config('synchronous_commit', 'off', true)")
	for _, r := range results {
		b.Queue(db.RecordOutcome, r.BlastID, r.Number, r.Outcome)
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("record outcomes: %w", err)
	}
	return nil
}

// End implements blasts.Queue.
func (s *Blasts) End(ctx context.Context, batch blasts.Batch) error {
	err := s.db.EndBatch(ctx, db.EndBatchParams{
		BlastID: batch.BlastID, Batch: batch.Number, Claim: batch.Claim, First: batch.First, Last: batch.Last,
	})
	if err != nil {
		return fmt.Errorf("end a batch: %w", err)
	}
	return nil
}

// Return implements blasts.Queue.
func (s *Blasts) Return(ctx context.Context, batch blasts.Batch, pause time.Duration, deferred bool) error {
	err := s.db.ReturnBatch(ctx, db.ReturnBatchParams{
		BlastID: batch.BlastID, Batch: batch.Number, Claim: batch.Claim, Pause: pause, Deferred: deferred,
	})
	if err != nil {
		return fmt.Errorf("return a batch: %w", err)
	}
	return nil
}

// Pace implements blasts.Queue.
func (s *Blasts) Pace(ctx context.Context, n int, rate float64) (time.Duration, error) {
	wait, err := s.db.Pace(ctx, time.Duration(float64(n)/rate*float64(time.Second)))
	if err != nil {
		return 0, fmt.Errorf("reserve places in the stream of mails: %w", err)
	}
	return wait, nil
}

// PruneBlasts implements blasts.Queue.
func (s *Blasts) PruneBlasts(ctx context.Context, before time.Time) (int64, error) {
	id, err := s.db.EndedBlast(ctx, before)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find a blast to prune: %w", err)
	}
	n, err := forgetRecipients(ctx, s.db, id)
	if err != nil {
		return 0, fmt.Errorf("prune a blast: %w", err)
	}
	if err := s.db.MarkPruned(ctx, id); err != nil {
		return 0, fmt.Errorf("mark a blast as pruned: %w", err)
	}
	return n + 1, nil
}

// forgetRecipients deletes the recipients and batches of an ended blast.
func forgetRecipients(ctx context.Context, q *db.Queries, id string) (total int64, err error) {
	for _, del := range []func(ctx context.Context, blastID string, most int64) (int64, error){q.DeleteRecipients, q.DeleteBatches} {
		for n := int64(purgeRows); n == purgeRows; total += n {
			if n, err = del(ctx, id, purgeRows); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// purgeBlasts deletes the blasts of a deleted owner or waitlist. It first ends the running ones, so that
// a concurrent plan adds nothing more.
func purgeBlasts(ctx context.Context, q *db.Queries, id string) error {
	for _, of := range []struct {
		fail func(ctx context.Context, id string) error
		one  func(ctx context.Context, id string) (string, error)
	}{{q.FailBlastsOfOwner, q.BlastOfOwner}, {q.FailBlastsOfWaitlist, q.BlastOfWaitlist}} {
		if err := of.fail(ctx, id); err != nil {
			return err
		}
		for {
			blast, err := of.one(ctx, id)
			if errors.Is(err, pgx.ErrNoRows) {
				break
			}
			if err != nil {
				return err
			}
			if _, err := forgetRecipients(ctx, q, blast); err != nil {
				return err
			}
			if err := q.DeleteBlast(ctx, blast); err != nil {
				return err
			}
		}
	}
	return q.DeleteAnswers(ctx, id)
}
