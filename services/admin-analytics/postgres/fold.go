package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
)

const (
	// foldEvery is how long what was counted waits at most on an idle system.
	foldEvery = 250 * time.Millisecond
	// foldRows bounds one transaction: tens of milliseconds, and far below a
	// statement's time also where each row is of another waitlist on a busy machine.
	foldRows = 1000
	// A fold goes on behind the last one, for the index entries of deleted rows
	// before that may be many while an old snapshot is held. Ids are not in the
	// order of commits, so now and then it begins at the front: sweepEvery, and
	// less often where that takes more than a sweepShare-th of the time.
	sweepEvery = time.Second
	sweepShare = 10
)

// foldSQL moves up to $2 arrivals behind id $1 into the sums. Primary keys, and
// each waitlist's row once.
const foldSQL = `
WITH gone AS (
    DELETE FROM arrival WHERE ctid = ANY (ARRAY(SELECT ctid FROM arrival WHERE id > $1 ORDER BY id LIMIT $2))
    RETURNING *
), list AS MATERIALIZED (
    SELECT l.waitlist_id, coalesce((SELECT built_to FROM waitlist w WHERE w.waitlist_id = l.waitlist_id), 0) AS built_to
    FROM (SELECT DISTINCT waitlist_id FROM gone) l
    WHERE takes_counts(l.waitlist_id)
), fresh AS (
    SELECT gone.* FROM gone JOIN list USING (waitlist_id) WHERE number IS NULL OR number > built_to
), origin AS (
    SELECT waitlist_id, u.field, u.value, sum(signups)::bigint AS count, max(number) AS last_number
    FROM fresh, LATERAL (VALUES ('utm_source', source), ('utm_medium', medium), ('utm_campaign', campaign)) AS u (field, value)
    WHERE u.value <> ''
    GROUP BY waitlist_id, u.field, u.value
), days AS (
    INSERT INTO day AS d (waitlist_id, day, views, signups, referral_signups)
    SELECT waitlist_id, day, sum(views), sum(signups), sum(referral_signups) FROM fresh GROUP BY waitlist_id, day
    ON CONFLICT (waitlist_id, day) DO UPDATE
    SET views = d.views + excluded.views, signups = d.signups + excluded.signups,
        referral_signups = d.referral_signups + excluded.referral_signups
), totals AS (
    INSERT INTO utm_total AS t (waitlist_id, field, count)
    SELECT waitlist_id, field, sum(count) FROM origin GROUP BY waitlist_id, field
    ON CONFLICT (waitlist_id, field) DO UPDATE SET count = t.count + excluded.count
), "values" AS (
    INSERT INTO utm_value AS v (waitlist_id, field, value, count, last_number)
    SELECT waitlist_id, field, value, count, last_number FROM origin
    ON CONFLICT (waitlist_id, field, value) DO UPDATE
    SET count = v.count + excluded.count, last_number = greatest(v.last_number, excluded.last_number)
)
SELECT count(*), coalesce(max(id), 0) FROM gone`

// Folding moves what was counted into the sums, four times a second until ctx is
// done. Failures are logged and tried again; replicas take turns.
func (s *Store) Folding(ctx context.Context, log *slog.Logger) error {
	var (
		behind  int64
		sweep   time.Time // when the next one is due
		failing bool
	)
	for range loop.Every(ctx, foldEvery) {
		began := time.Now()
		sweeps := !began.Before(sweep)
		if sweeps {
			behind = 0
		}
		last, err := s.fold(ctx, behind)
		if err != nil && ctx.Err() == nil && !failing {
			log.WarnContext(ctx, "what was counted is not in the sums yet", telemetry.Err(err))
		}
		failing = err != nil
		behind = max(behind, last)
		if sweeps {
			sweep = time.Now().Add(max(sweepEvery, sweepShare*time.Since(began)))
		}
	}
	return nil
}

// Fold moves all that was counted into the sums, unless somebody else has the
// lock.
func (s *Store) Fold(ctx context.Context) error {
	_, err := s.fold(ctx, 0)
	return err
}

// fold folds what has an id above behind, in pieces, and returns the last id.
func (s *Store) fold(ctx context.Context, behind int64) (int64, error) {
	for {
		var n, last int64
		err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
			n = 0
			var free bool
			if err := tx.QueryRow(ctx, tryLock).Scan(&free); err != nil || !free {
				return err
			}
			return tx.QueryRow(ctx, foldSQL, behind, foldRows).Scan(&n, &last)
		})
		if err != nil {
			return behind, fmt.Errorf("fold counts: %w", err)
		}
		behind = max(behind, last)
		if n < foldRows {
			return behind, nil
		}
	}
}
