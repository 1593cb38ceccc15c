// Package postgres keeps the notifier's deliveries.
package postgres

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/services/notifier"
)

// Schema is the service's schema.
const Schema = "notifier"

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of Schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

const (
	// deadAfter is how long a holder may be silent. Each attempt of a holder that is
	// silent for so long has ended.
	deadAfter = 20 * time.Second
	// logRows is how many ended deliveries stay of each waitlist.
	logRows = 100
	// pruneRows bounds one deletion.
	pruneRows = 10_000
)

// Ledger implements notifier.Ledger, and what happens to it in the transaction
// of an event.
type Ledger struct {
	pool   *pgxpool.Pool
	holder uuid.UUID
}

// New returns a Ledger of a pool whose search path is Schema, with a holder of
// its own.
func New(pool *pgxpool.Pool) *Ledger { return &Ledger{pool, uuid.New()} }

// Holder is the holder's id.
func (l *Ledger) Holder() string { return l.holder.String() }

// Queue adds deliveries of one event in tx; those that are there already stay as
// they are. By delivery_pkey.
func (l *Ledger) Queue(ctx context.Context, tx pgx.Tx, ds ...notifier.Delivery) error {
	for _, d := range ds {
		_, err := tx.Exec(ctx, `
			INSERT INTO delivery (event_id, channel, event, waitlist_id, owner_id, number, position, referral_count, occurred_at, traceparent, holder)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (event_id, channel) DO NOTHING`,
			d.EventID, d.Channel, d.Event, d.WaitlistID, d.OwnerID, d.Number, d.Position, d.ReferralCount, d.OccurredAt, d.Traceparent, l.holder)
		if err != nil {
			return fmt.Errorf("queue delivery: %w", err)
		}
	}
	return nil
}

// Forget deletes everything about a waitlist in tx; what is queued is never
// attempted then. By delivery_log.
func (*Ledger) Forget(ctx context.Context, tx pgx.Tx, waitlistID string) error {
	if _, err := tx.Exec(ctx, "DELETE FROM delivery WHERE waitlist_id = $1", waitlistID); err != nil {
		return fmt.Errorf("delete deliveries of a waitlist: %w", err)
	}
	return nil
}

// Claim implements notifier.Ledger. By delivery_pkey.
func (l *Ledger) Claim(ctx context.Context, at time.Time, keys []notifier.Key) (map[notifier.Key]bool, error) {
	// In one order, so that no two statements wait for each other.
	keys = slices.SortedFunc(slices.Values(keys), compareKeys)
	ids, channels := make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		ids[i], channels[i] = k.EventID, string(k.Channel)
	}
	// attempted_at = at: the same claim, whose first answer was lost.
	rows, err := l.pool.Query(ctx, `
		UPDATE delivery d SET attempted_at = $3
		FROM unnest($1::uuid[], $2::text[]) k (event_id, channel)
		WHERE d.event_id = k.event_id AND d.channel = k.channel
		AND d.holder = $4 AND d.ended_at IS NULL AND (d.attempted_at IS NULL OR d.attempted_at = $3)
		RETURNING d.event_id, d.channel`, ids, channels, at.UTC().Truncate(time.Microsecond), l.holder)
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	mine := make(map[notifier.Key]bool, len(keys))
	var k notifier.Key
	if _, err := pgx.ForEachRow(rows, []any{&k.EventID, &k.Channel}, func() error { mine[k] = true; return nil }); err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	return mine, nil
}

func compareKeys(a, b notifier.Key) int {
	return cmp.Or(cmp.Compare(a.EventID, b.EventID), cmp.Compare(a.Channel, b.Channel))
}

// End implements notifier.Ledger. By delivery_pkey.
func (l *Ledger) End(ctx context.Context, ended []notifier.Ended) error {
	ended = slices.SortedFunc(slices.Values(ended), func(a, b notifier.Ended) int { return compareKeys(a.Key, b.Key) })
	var rows struct {
		ids, channels, outcomes, reasons, hosts []string
		attempted                               []bool
		status                                  []int32
		took                                    []int64
	}
	var goneIDs, goneChannels []string
	for _, e := range ended {
		if e.Outcome == notifier.Gone {
			goneIDs, goneChannels = append(goneIDs, e.EventID), append(goneChannels, string(e.Channel))
			continue
		}
		rows.ids, rows.channels = append(rows.ids, e.EventID), append(rows.channels, string(e.Channel))
		rows.outcomes, rows.reasons, rows.hosts = append(rows.outcomes, string(e.Outcome)), append(rows.reasons, e.Reason), append(rows.hosts, e.Host)
		rows.attempted, rows.status, rows.took = append(rows.attempted, e.Attempted), append(rows.status, int32(e.Status)), append(rows.took, e.Took.Milliseconds())
	}
	b := new(pgx.Batch)
	if len(rows.ids) > 0 {
		// What came of an attempt that somebody took for lost is known after all.
		b.Queue(`
			UPDATE delivery d SET ended_at = clock_timestamp(), outcome = k.outcome, reason = k.reason, host = k.host, status = k.status, took_ms = k.took_ms
			FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bool[], $7::int[], $8::bigint[])
				k (event_id, channel, outcome, reason, host, attempted, status, took_ms)
			WHERE d.event_id = k.event_id AND d.channel = k.channel
			AND CASE WHEN k.attempted THEN d.attempted_at IS NOT NULL AND d.outcome IN ('', 'unknown')
				ELSE d.attempted_at IS NULL AND d.ended_at IS NULL AND d.holder = $9 END`,
			rows.ids, rows.channels, rows.outcomes, rows.reasons, rows.hosts, rows.attempted, rows.status, rows.took, l.holder)
	}
	if len(goneIDs) > 0 {
		b.Queue(`
			DELETE FROM delivery d USING unnest($1::uuid[], $2::text[]) k (event_id, channel)
			WHERE d.event_id = k.event_id AND d.channel = k.channel
			AND d.attempted_at IS NULL AND d.ended_at IS NULL AND d.holder = $3`, goneIDs, goneChannels, l.holder)
	}
	if err := l.pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("end deliveries: %w", err)
	}
	return nil
}

// Beat implements notifier.Ledger. By holder_pkey and holder_seen_at.
func (l *Ledger) Beat(ctx context.Context) error {
	_, err := l.pool.Exec(ctx, "INSERT INTO holder (id, seen_at) VALUES ($1, now()) ON CONFLICT (id) DO UPDATE SET seen_at = now()", l.holder)
	if err != nil {
		return fmt.Errorf("say that the holder lives: %w", err)
	}
	return nil
}

// Leave implements notifier.Ledger.
func (l *Ledger) Leave(ctx context.Context) error {
	if _, err := l.pool.Exec(ctx, "DELETE FROM holder WHERE id = $1", l.holder); err != nil {
		return fmt.Errorf("end the holder: %w", err)
	}
	return nil
}

// deadSQL jumps from holder to holder of what is open, and keeps the dead. By
// delivery_open and holder_pkey.
const deadSQL = `
	WITH RECURSIVE h (id) AS (
		(SELECT holder FROM delivery WHERE ended_at IS NULL ORDER BY holder LIMIT 1)
		UNION ALL
		SELECT (SELECT d.holder FROM delivery d WHERE d.ended_at IS NULL AND d.holder > h.id ORDER BY d.holder LIMIT 1)
		FROM h WHERE h.id IS NOT NULL
	)
	SELECT id FROM h WHERE id IS NOT NULL AND id <> $1
	AND NOT EXISTS (SELECT FROM holder WHERE holder.id = h.id AND seen_at > now() - $2::interval)`

// Adopt implements notifier.Ledger.
func (l *Ledger) Adopt(ctx context.Context, limit int) (queued []notifier.Delivery, unknown int64, err error) {
	rows, err := l.pool.Query(ctx, deadSQL, l.holder, deadAfter)
	if err != nil {
		return nil, 0, fmt.Errorf("look for dead holders: %w", err)
	}
	dead, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, 0, fmt.Errorf("look for dead holders: %w", err)
	}
	for _, id := range dead {
		// By delivery_open, both.
		tag, err := l.pool.Exec(ctx, `
			UPDATE delivery SET ended_at = clock_timestamp(), outcome = 'unknown'
			WHERE holder = $1 AND ended_at IS NULL AND attempted_at IS NOT NULL`, id)
		if err != nil {
			return queued, unknown, fmt.Errorf("end attempts of the dead: %w", err)
		}
		unknown += tag.RowsAffected()
		rows, err := l.pool.Query(ctx, `
			UPDATE delivery d SET holder = $1
			FROM (
				SELECT event_id, channel FROM delivery
				WHERE holder = $2 AND ended_at IS NULL AND attempted_at IS NULL
				ORDER BY event_id LIMIT $3 FOR UPDATE SKIP LOCKED) k
			WHERE d.event_id = k.event_id AND d.channel = k.channel
			RETURNING d.event_id, d.channel, event, waitlist_id, owner_id, number, position, referral_count, occurred_at, traceparent`,
			l.holder, id, limit-len(queued))
		if err != nil {
			return queued, unknown, fmt.Errorf("adopt deliveries: %w", err)
		}
		taken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d notifier.Delivery, err error) {
			err = row.Scan(&d.EventID, &d.Channel, &d.Event, &d.WaitlistID, &d.OwnerID, &d.Number, &d.Position, &d.ReferralCount, &d.OccurredAt, &d.Traceparent)
			return d, err
		})
		if err != nil {
			return queued, unknown, fmt.Errorf("adopt deliveries: %w", err)
		}
		if queued = append(queued, taken...); len(queued) == limit {
			break
		}
	}
	// UUIDv7: in the order of their events.
	slices.SortFunc(queued, func(a, b notifier.Delivery) int { return compareKeys(a.Key, b.Key) })
	return queued, unknown, nil
}

// Trim implements notifier.Ledger. By delivery_log.
func (l *Ledger) Trim(ctx context.Context, waitlistIDs []string) error {
	_, err := l.pool.Exec(ctx, `
		DELETE FROM delivery d USING unnest($1::uuid[]) w (id), LATERAL (
			SELECT ended_at FROM delivery WHERE waitlist_id = w.id AND ended_at IS NOT NULL
			ORDER BY ended_at DESC OFFSET $2 LIMIT 1) oldest
		WHERE d.waitlist_id = w.id AND d.ended_at < oldest.ended_at`, waitlistIDs, logRows-1)
	if err != nil {
		return fmt.Errorf("trim log of deliveries: %w", err)
	}
	return nil
}

// Prune implements notifier.Ledger. By delivery_ended and holder_seen_at.
func (l *Ledger) Prune(ctx context.Context, before time.Time) (int64, error) {
	if _, err := l.pool.Exec(ctx, "DELETE FROM holder WHERE seen_at < now() - interval '1 hour'"); err != nil {
		return 0, fmt.Errorf("prune holders: %w", err)
	}
	tag, err := l.pool.Exec(ctx, `
		DELETE FROM delivery WHERE (event_id, channel) IN (SELECT event_id, channel FROM delivery WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)`, before, pruneRows)
	if err != nil {
		return 0, fmt.Errorf("prune log of deliveries: %w", err)
	}
	return tag.RowsAffected(), nil
}
