package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/propagation"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/idempotency"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging"
)

// blastScope is the idempotency scope of requests for blasts.
const blastScope = "blasts.create"

// notGone is the condition that neither the owner nor the waitlist of blast b is deleted. By gone_pkey.
const notGone = `NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[b.owner_id, b.waitlist_id]))`

// counted returns the assignments of an UPDATE that adds n recipients to a blast, f of which failed.
// done is the condition that all its batches have ended. The expressions see the locked row.
func counted(n, f, done string) string {
	return strings.NewReplacer("$n", n, "$f", f, "$done", done).Replace(`
		recipient_count = recipient_count + $n, failed_count = failed_count + $f,
		state = CASE WHEN NOT ($done) THEN 'sending'
			WHEN failed_count + $f > 0 AND failed_count + $f = recipient_count + $n THEN 'failed' ELSE 'sent' END,
		ended_at = CASE WHEN $done THEN now() END,
		html_body = CASE WHEN $done THEN '' ELSE html_body END, text_body = CASE WHEN $done THEN '' ELSE text_body END`)
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Blasts implements messaging.BlastStore, messaging.BlastQueue and kafka.Batches.
type Blasts struct {
	pool *pgxpool.Pool
	now  func() time.Time
}

// NewBlasts returns Blasts over a pool whose search path is the schema.
func NewBlasts(pool *pgxpool.Pool, now func() time.Time) *Blasts { return &Blasts{pool, now} }

// firstAnswer is the response that an Idempotency-Key stores. State is empty until the request has been
// answered.
type firstAnswer struct {
	ID         string               `json:"id"`
	CreatedAt  time.Time            `json:"created_at"`
	State      messaging.BlastState `json:"state,omitempty"`
	Recipients int64                `json:"recipients,omitempty"`
	Failed     int64                `json:"failed,omitempty"`
}

// Create implements messaging.BlastStore.
func (s *Blasts) Create(ctx context.Context, b messaging.NewBlast) (id string, replayed bool, first messaging.Blast, err error) {
	req := idempotency.Request{Scope: blastScope, AccountID: b.AccountID, Key: b.Key, Content: b.Content}
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var response []byte
		response, replayed, err = idempotency.Do(ctx, tx, req, func() ([]byte, error) {
			if err := s.insert(ctx, tx, b); err != nil {
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
		id, first = a.ID, messaging.Blast{}
		switch {
		case a.State != "":
			first = messaging.Blast{ID: a.ID, State: a.State, Recipients: a.Recipients, Failed: a.Failed}
		case replayed && s.now().Sub(a.CreatedAt) < messaging.BlastWait+time.Second:
			return apierr.New(apierr.Conflict, "A request with this "+idempotency.Header+" is still running.").WithRetryAfter(time.Second)
		}
		return nil
	})
	if err != nil {
		return "", false, messaging.Blast{}, err
	}
	return id, replayed, first, nil
}

// insert adds a blast. By gone_pkey and tombstone_pkey.
func (s *Blasts) insert(ctx context.Context, tx pgx.Tx, b messaging.NewBlast) error {
	for _, id := range []string{b.OwnerID, b.WaitlistID} {
		if err := holdOff(ctx, tx, id); err != nil {
			return fmt.Errorf("hold off the purge: %w", err)
		}
	}
	if b.TrialCap > 0 {
		if err := s.reserve(ctx, tx, b); err != nil {
			return err
		}
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	tag, err := tx.Exec(ctx, `
		INSERT INTO blast (id, waitlist_id, owner_id, subject, html_body, text_body, traceparent, created_at)
		SELECT $1::uuid, $2::uuid, $3::uuid, $4::text, $5::text, $6::text, $7::text, $8::timestamptz
		WHERE NOT EXISTS (SELECT FROM gone WHERE id = ANY (ARRAY[$2::uuid, $3::uuid]))
		AND NOT EXISTS (SELECT FROM tombstone WHERE hash = ANY (ARRAY[sha256(uuid_send($2)), sha256(uuid_send($3))]))`,
		b.ID, b.WaitlistID, b.OwnerID, b.Subject, b.HTML, b.Text, carrier["traceparent"], b.CreatedAt)
	if err != nil {
		return fmt.Errorf("insert blast: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return apierr.NotFoundf("There is no such waitlist.")
	}
	return nil
}

// reserve counts a blast towards the cap of its owner's trial. By blast_trial_owner.
func (s *Blasts) reserve(ctx context.Context, tx pgx.Tx, b messaging.NewBlast) error {
	// Concurrent requests of one owner wait for each other, so that they count each other.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", "blast_trial/"+b.OwnerID); err != nil {
		return fmt.Errorf("lock the uses of a trial: %w", err)
	}
	rows, err := tx.Query(ctx, "SELECT recipients, created_at FROM blast_trial WHERE owner_id = $1 AND created_at > $2 ORDER BY created_at",
		b.OwnerID, b.CreatedAt.Add(-messaging.TrialWindow))
	if err != nil {
		return fmt.Errorf("read the uses of a trial: %w", err)
	}
	uses, err := pgx.CollectRows(rows, pgx.RowToStructByPos[messaging.TrialUse])
	if err != nil {
		return fmt.Errorf("read the uses of a trial: %w", err)
	}
	if err := b.WithinTrial(uses); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO blast_trial (blast_id, owner_id, recipients, created_at) VALUES ($1, $2, $3, $4)",
		b.ID, b.OwnerID, b.Reserve, b.CreatedAt); err != nil {
		return fmt.Errorf("insert a use of a trial: %w", err)
	}
	return nil
}

// Answered implements messaging.BlastStore. By idempotency_key_pkey.
func (s *Blasts) Answered(ctx context.Context, b messaging.NewBlast, answer messaging.Blast) error {
	response, err := json.Marshal(firstAnswer{
		ID: answer.ID, CreatedAt: b.CreatedAt, State: answer.State, Recipients: answer.Recipients, Failed: answer.Failed,
	})
	if err != nil {
		return fmt.Errorf("encode the answer about a blast: %w", err)
	}
	if _, err := s.pool.Exec(ctx, "UPDATE idempotency_key SET response = $4 WHERE account_id = $1 AND scope = $2 AND key = $3",
		b.AccountID, blastScope, b.Key, response); err != nil {
		return fmt.Errorf("store the answer about a blast: %w", err)
	}
	return nil
}

// Blast implements messaging.BlastStore. By blast_pkey and gone_pkey.
func (s *Blasts) Blast(ctx context.Context, id string) (messaging.Blast, error) {
	out := messaging.Blast{ID: id}
	err := s.pool.QueryRow(ctx, `
		SELECT subject, CASE WHEN `+notGone+` THEN state ELSE 'failed' END, coalesce(ended_at, created_at),
			recipient_count, failed_count
		FROM blast b WHERE id = $1`, id).Scan(&out.Subject, &out.State, &out.At, &out.Recipients, &out.Failed)
	if errors.Is(err, pgx.ErrNoRows) {
		// The purge deleted it with its waitlist.
		out.State = messaging.BlastFailed
		return out, nil
	}
	if err != nil {
		return messaging.Blast{}, fmt.Errorf("read blast: %w", err)
	}
	return out, nil
}

// Blasts implements messaging.BlastStore. By blast_waitlist.
func (s *Blasts) Blasts(ctx context.Context, waitlistID string) ([]messaging.Blast, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT id, subject, state, coalesce(ended_at, created_at), recipient_count, failed_count
		FROM blast WHERE waitlist_id = $1 ORDER BY id DESC`, waitlistID)
	if err != nil {
		return nil, fmt.Errorf("list blasts: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[messaging.Blast])
	if err != nil {
		return nil, fmt.Errorf("list blasts: %w", err)
	}
	return out, nil
}

// ClaimPlan implements messaging.BlastQueue. By blast_plan and gone_pkey.
func (s *Blasts) ClaimPlan(ctx context.Context, lease time.Duration) (p messaging.Plan, ok bool, err error) {
	err = s.pool.QueryRow(ctx, `
		UPDATE blast SET plan_at = now() + $1 WHERE id = (
			SELECT id FROM blast b WHERE ended_at IS NULL AND NOT planned AND plan_at <= now() AND `+notGone+`
			ORDER BY plan_at LIMIT 1 FOR UPDATE OF b SKIP LOCKED)
		RETURNING id, waitlist_id, planned_to`, lease).Scan(&p.BlastID, &p.WaitlistID, &p.To)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, false, nil
	}
	if err != nil {
		return p, false, fmt.Errorf("claim the plan of a blast: %w", err)
	}
	return p, true, nil
}

// Extend implements messaging.BlastQueue. By blast_pkey and gone_pkey.
func (s *Blasts) Extend(ctx context.Context, p messaging.Plan, numbers []int64, last bool) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var batch int64
		err := tx.QueryRow(ctx, `
			SELECT batches FROM blast b WHERE id = $1 AND planned_to = $2 AND NOT planned AND ended_at IS NULL AND `+notGone+`
			FOR NO KEY UPDATE OF b`,
			p.BlastID, p.To).Scan(&batch)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		var first, to []int64
		var msgs []outbox.Message
		for part := range slices.Chunk(numbers, messaging.MaxBatch) {
			first, to = append(first, part[0]), append(to, part[len(part)-1])
			ev, err := outbox.NewEvent(s.now())
			if err != nil {
				return err
			}
			n := batch + int64(len(msgs))
			ev.Payload = &eventv1.Event_BlastBatchReady{BlastBatchReady: &eventv1.BlastBatchReady{BlastId: p.BlastID, Batch: n}}
			key := p.BlastID + ":" + strconv.FormatInt(n, 10)
			msgs = append(msgs, outbox.Message{Topic: kafka.BlastsTopic, Key: key, Events: []*eventv1.Event{ev}})
		}
		if len(numbers) > 0 {
			if _, err := tx.Exec(ctx, "INSERT INTO blast_recipient (blast_id, number) SELECT $1, unnest($2::bigint[])",
				p.BlastID, numbers); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `
				INSERT INTO blast_batch (blast_id, batch, first_number, last_number)
				SELECT $1, $2 + n - 1, f, l FROM unnest($3::bigint[], $4::bigint[]) WITH ORDINALITY AS b(f, l, n)`,
				p.BlastID, batch, first, to); err != nil {
				return err
			}
			if err := outbox.Insert(ctx, tx, msgs...); err != nil {
				return err
			}
			p.To = numbers[len(numbers)-1]
		}
		_, err = tx.Exec(ctx, "UPDATE blast SET planned_to = $2, planned = $3, plan_at = now(), batches = batches + $4,"+
			counted("0", "0", "$3 AND batches_ended = batches + $4")+" WHERE id = $1", p.BlastID, p.To, last, len(msgs))
		return err
	})
	if err != nil {
		return fmt.Errorf("plan blast: %w", err)
	}
	return nil
}

// PausePlan implements messaging.BlastQueue. By blast_pkey.
func (s *Blasts) PausePlan(ctx context.Context, p messaging.Plan, pause time.Duration) error {
	if _, err := s.pool.Exec(ctx, "UPDATE blast SET plan_at = now() + $3 WHERE id = $1 AND planned_to = $2 AND NOT planned",
		p.BlastID, p.To, pause); err != nil {
		return fmt.Errorf("pause the plan of a blast: %w", err)
	}
	return nil
}

// Gone implements messaging.BlastQueue. It has the effect of the event about the waitlist's deletion. By
// blast_waitlist.
func (s *Blasts) Gone(ctx context.Context, waitlistID string) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := (&Mails{}).Forget(ctx, tx, waitlistID); err != nil {
			return err
		}
		return failBlasts(ctx, tx, "waitlist_id", waitlistID)
	})
	if err != nil {
		return fmt.Errorf("end the blasts of a waitlist: %w", err)
	}
	return nil
}

// failBlasts ends the running blasts of an owner or waitlist. Nothing more is planned, claimed or
// counted for them.
func failBlasts(ctx context.Context, db execer, column, id string) error {
	_, err := db.Exec(ctx, `
		UPDATE blast SET state = 'failed', ended_at = now(), html_body = '', text_body = '' WHERE ended_at IS NULL AND `+column+` = $1`, id)
	return err
}

// Ready implements kafka.Batches. By blast_batch_pkey.
func (*Blasts) Ready(ctx context.Context, tx pgx.Tx, blastID string, batch int64) error {
	if _, err := tx.Exec(ctx, `
		UPDATE blast_batch SET state = 'ready', due_at = now() WHERE blast_id = $1 AND batch = $2 AND state = 'queued'`,
		blastID, batch); err != nil {
		return fmt.Errorf("make a batch ready: %w", err)
	}
	return nil
}

// Claim implements messaging.BlastQueue. By blast_running, blast_batch_due and gone_pkey.
func (s *Blasts) Claim(ctx context.Context, after string, limit int, claim string, lease time.Duration) ([]messaging.Batch, error) {
	rows, err := s.pool.Query(ctx, `
		WITH turn AS (
			SELECT b.id, d.batch, b.waitlist_id, b.owner_id, b.created_at, b.traceparent
			FROM blast b CROSS JOIN LATERAL (
				SELECT batch FROM blast_batch WHERE blast_id = b.id AND state = 'ready' AND due_at <= now()
				ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED) d
			WHERE b.ended_at IS NULL AND b.id > $1 AND `+notGone+`
			ORDER BY b.id LIMIT $2),
		taken AS (
			UPDATE blast_batch t SET due_at = now() + $4, claim = $3 FROM turn
			WHERE t.blast_id = turn.id AND t.batch = turn.batch
			RETURNING t.blast_id, t.batch, t.claim, waitlist_id, owner_id, first_number, last_number, deferrals, created_at,
				traceparent)
		SELECT * FROM taken ORDER BY blast_id`, after, limit, claim, lease)
	if err != nil {
		return nil, fmt.Errorf("claim batches: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[messaging.Batch])
	if err != nil {
		return nil, fmt.Errorf("claim batches: %w", err)
	}
	return out, nil
}

// Renew implements messaging.BlastQueue. By blast_batch_pkey, blast_pkey and gone_pkey. A claimed batch
// is always ready, but a condition on that would allow a plan by blast_batch_due, which may read all
// batches of the blast.
func (s *Blasts) Renew(ctx context.Context, batches []messaging.Batch, lease time.Duration) ([]bool, error) {
	var b pgx.Batch
	holds := make([]bool, len(batches))
	for i, batch := range batches {
		b.Queue(`
			UPDATE blast_batch SET due_at = now() + $4 WHERE blast_id = $1 AND batch = $2 AND claim = $3
			AND EXISTS (SELECT FROM blast b WHERE b.id = $1 AND b.ended_at IS NULL AND `+notGone+`)`,
			batch.BlastID, batch.Number, batch.Claim, lease).
			Exec(func(tag pgconn.CommandTag) error { holds[i] = tag.RowsAffected() == 1; return nil })
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("renew claims: %w", err)
	}
	return holds, nil
}

// Pending implements messaging.BlastQueue. By blast_pkey and blast_recipient_pkey.
func (s *Blasts) Pending(ctx context.Context, batch messaging.Batch) (messaging.Pending, error) {
	var p messaging.Pending
	err := s.pool.QueryRow(ctx, `
		SELECT subject, html_body, text_body, r.pending, r.ended
		FROM blast CROSS JOIN LATERAL (
			SELECT coalesce(array_agg(number ORDER BY number) FILTER (WHERE state = 'queued'), '{}') AS pending,
				count(*) FILTER (WHERE state <> 'queued') AS ended
			FROM blast_recipient WHERE blast_id = $1 AND number BETWEEN $2 AND $3) r
		WHERE id = $1 AND ended_at IS NULL`,
		batch.BlastID, batch.First, batch.Last).Scan(&p.Subject, &p.HTML, &p.Text, &p.Numbers, &p.Ended)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil // the blast ended with its waitlist
	}
	if err != nil {
		return p, fmt.Errorf("read a batch: %w", err)
	}
	return p, nil
}

// Record implements messaging.BlastQueue. By blast_recipient_pkey.
//
// The commit does not wait for the disk, which would slow down every mail of a blast. A crash of this
// process loses nothing. A crash of Postgres loses the outcomes of at most the last half second; these
// mails are sent again, like mails in flight.
func (s *Blasts) Record(ctx context.Context, results []messaging.Result) error {
	// The batch is one implicit transaction. A single statement with an array of numbers could
	// get a plan that reads the whole blast.
	var b pgx.Batch
	b.Queue("SELECT set_config('synchronous_commit', 'off', true)")
	for _, r := range results {
		b.Queue("UPDATE blast_recipient SET state = $3 WHERE blast_id = $1 AND number = $2 AND state = 'queued'",
			r.BlastID, r.Number, r.Outcome)
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("record outcomes: %w", err)
	}
	return nil
}

// End implements messaging.BlastQueue. By blast_batch_pkey, blast_recipient_pkey and blast_pkey.
func (s *Blasts) End(ctx context.Context, batch messaging.Batch) error {
	_, err := s.pool.Exec(ctx, `
		WITH ended AS (
			UPDATE blast_batch SET state = 'ended', claim = NULL WHERE blast_id = $1 AND batch = $2 AND claim = $3
			AND NOT EXISTS (SELECT FROM blast_recipient WHERE blast_id = $1 AND number BETWEEN $4 AND $5 AND state = 'queued')
			RETURNING batch),
		c AS (
			SELECT count(*) FILTER (WHERE state IN ('sent', 'failed')) AS n, count(*) FILTER (WHERE state = 'failed') AS f
			FROM blast_recipient WHERE blast_id = $1 AND number BETWEEN $4 AND $5)
		UPDATE blast SET batches_ended = batches_ended + 1,`+counted("c.n", "c.f", "planned AND batches_ended + 1 = batches")+`
		FROM c WHERE id = $1 AND ended_at IS NULL AND EXISTS (SELECT FROM ended)`,
		batch.BlastID, batch.Number, batch.Claim, batch.First, batch.Last)
	if err != nil {
		return fmt.Errorf("end a batch: %w", err)
	}
	return nil
}

// Return implements messaging.BlastQueue. By blast_batch_pkey.
func (s *Blasts) Return(ctx context.Context, batch messaging.Batch, pause time.Duration, deferred bool) error {
	_, err := s.pool.Exec(ctx, `
		UPDATE blast_batch SET due_at = now() + $4, claim = NULL, deferrals = deferrals + CASE WHEN $5 THEN 1 ELSE 0 END
		WHERE blast_id = $1 AND batch = $2 AND claim = $3`, batch.BlastID, batch.Number, batch.Claim, pause, deferred)
	if err != nil {
		return fmt.Errorf("return a batch: %w", err)
	}
	return nil
}

// Pace implements messaging.BlastQueue. By blast_pace_pkey.
func (s *Blasts) Pace(ctx context.Context, n int, rate float64) (time.Duration, error) {
	var wait time.Duration
	took := time.Duration(float64(n) / rate * float64(time.Second))
	err := s.pool.QueryRow(ctx, `
		INSERT INTO blast_pace (next_at) VALUES (clock_timestamp() + $1)
		ON CONFLICT (one) DO UPDATE SET next_at = greatest(blast_pace.next_at, clock_timestamp()) + $1
		RETURNING next_at - $1 - clock_timestamp()`, took).Scan(&wait)
	if err != nil {
		return 0, fmt.Errorf("reserve places in the stream of mails: %w", err)
	}
	return wait, nil
}

// PruneBlasts implements messaging.BlastQueue. By blast_ended, blast_batch_pkey, blast_recipient_pkey and
// blast_trial_created.
func (s *Blasts) PruneBlasts(ctx context.Context, before time.Time) (int64, error) {
	tag, err := s.pool.Exec(ctx, `
		DELETE FROM blast_trial WHERE blast_id = ANY (ARRAY(
			SELECT blast_id FROM blast_trial WHERE created_at < $1 ORDER BY created_at LIMIT $2))`,
		s.now().Add(-messaging.TrialWindow), pruneRows)
	if err != nil {
		return 0, fmt.Errorf("prune the uses of trials: %w", err)
	}
	total := tag.RowsAffected()
	var id string
	err = s.pool.QueryRow(ctx, "SELECT id FROM blast WHERE ended_at < $1 AND ledger ORDER BY ended_at LIMIT 1", before).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return total, nil
	}
	if err != nil {
		return total, fmt.Errorf("prune a blast: %w", err)
	}
	n, err := forgetRecipients(ctx, s.pool, id)
	if err != nil {
		return total, fmt.Errorf("prune a blast: %w", err)
	}
	if _, err := s.pool.Exec(ctx, "UPDATE blast SET ledger = false WHERE id = $1", id); err != nil {
		return total, fmt.Errorf("prune a blast: %w", err)
	}
	return total + n + 1, nil
}

// forgetRecipients deletes the recipients and batches of an ended blast. By blast_recipient_pkey and
// blast_batch_pkey.
func forgetRecipients(ctx context.Context, pool *pgxpool.Pool, id string) (total int64, err error) {
	for _, sql := range []string{
		`DELETE FROM blast_recipient WHERE blast_id = $1 AND number = ANY (ARRAY(
			SELECT number FROM blast_recipient WHERE blast_id = $1 ORDER BY number LIMIT $2))`,
		`DELETE FROM blast_batch WHERE blast_id = $1 AND batch = ANY (ARRAY(
			SELECT batch FROM blast_batch WHERE blast_id = $1 ORDER BY batch LIMIT $2))`,
	} {
		for {
			tag, err := pool.Exec(ctx, sql, id, purgeRows)
			if err != nil {
				return total, err
			}
			total += tag.RowsAffected()
			if tag.RowsAffected() < purgeRows {
				break
			}
		}
	}
	return total, nil
}

// purgeBlasts deletes the blasts of a deleted owner or waitlist. It first ends the running ones, so that
// a concurrent plan adds nothing more. By blast_owner, blast_waitlist, blast_trial_owner and
// idempotency_key_pkey.
func purgeBlasts(ctx context.Context, pool *pgxpool.Pool, id string) error {
	for _, column := range []string{"owner_id", "waitlist_id"} {
		if err := failBlasts(ctx, pool, column, id); err != nil {
			return err
		}
		for {
			var blast string
			err := pool.QueryRow(ctx, "SELECT id FROM blast WHERE "+column+" = $1 LIMIT 1", id).Scan(&blast)
			if errors.Is(err, pgx.ErrNoRows) {
				break
			}
			if err != nil {
				return err
			}
			if _, err := forgetRecipients(ctx, pool, blast); err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, "DELETE FROM blast WHERE id = $1", blast); err != nil {
				return err
			}
		}
	}
	if _, err := pool.Exec(ctx, "DELETE FROM blast_trial WHERE owner_id = $1", id); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, "DELETE FROM idempotency_key WHERE account_id = $1", id)
	return err
}
