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
	"waitlist.internal/services/admin-analytics/postgres/db"
)

const (
	// foldEvery is the shortest pause between two folds.
	foldEvery = 250 * time.Millisecond
	// foldRows bounds one transaction to tens of milliseconds, far below the
	// statement timeout even if each row belongs to another waitlist.
	foldRows = 1000
	// A fold starts after the last folded id: while an old snapshot is held, the
	// index may have many entries of deleted rows before it. Transactions do not
	// commit in the order of their ids, and another replica's commits do not wake this
	// one, so a fold starts from the first id every sweepEvery, or less often if such
	// folds would take more than 1/sweepShare of the time.
	sweepEvery = time.Second
	sweepShare = 10
)

// Wake says that arrivals have been committed. It never blocks.
func (s *Store) Wake() { s.arrived.Send() }

// Folding adds arrivals to the sums after each Wake, and every sweepEvery, until ctx is
// done. It logs failures and tries again; replicas take turns.
func (s *Store) Folding(ctx context.Context, log *slog.Logger) error {
	var (
		behind  int64
		sweep   time.Time // when the next one is due
		failing bool
	)
	for loop.Wait(ctx, foldEvery) && loop.Idle(ctx, time.Until(sweep), s.arrived) {
		began := time.Now()
		sweeps := !began.Before(sweep)
		if sweeps {
			behind = 0
		}
		last, err := s.fold(ctx, behind)
		if err != nil && ctx.Err() == nil && !failing {
			log.WarnContext(ctx, "counts not folded; trying again", telemetry.Err(err))
		}
		failing = err != nil
		behind = max(behind, last)
		if sweeps {
			sweep = time.Now().Add(max(sweepEvery, sweepShare*time.Since(began)))
		}
	}
	return nil
}

// Fold adds all arrivals to the sums, unless another transaction holds the lock.
func (s *Store) Fold(ctx context.Context) error {
	_, err := s.fold(ctx, 0)
	return err
}

// fold adds the arrivals with an id above behind to the sums, foldRows at a time,
// and returns the last id.
func (s *Store) fold(ctx context.Context, behind int64) (int64, error) {
	for {
		// No transaction: an idle system runs only this query, again and again.
		wait, err := s.db.ArrivalsWait(ctx, behind)
		if err != nil {
			return behind, fmt.Errorf("look for counts to fold: %w", err)
		}
		if !wait {
			return behind, nil
		}
		var folded db.FoldArrivalsRow
		err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
			folded = db.FoldArrivalsRow{}
			q := s.db.WithTx(tx)
			free, err := q.TryLockSums(ctx)
			if err != nil || !free {
				return err
			}
			folded, err = q.FoldArrivals(ctx, behind, foldRows)
			return err
		})
		if err != nil {
			return behind, fmt.Errorf("fold counts: %w", err)
		}
		behind = max(behind, folded.LastID)
		if folded.Folded < foldRows {
			return behind, nil
		}
	}
}
