// Package postgres stores the notifier's deliveries. Its queries are in queries/.
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
	"waitlist.internal/services/notifier/postgres/db"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of the service's schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

const (
	// deadAfter is how long a holder without a heartbeat counts as alive. By then each
	// of its attempts has ended.
	deadAfter = 20 * time.Second
	// logRows is how many ended deliveries each waitlist keeps.
	logRows = 100
	// pruneRows bounds one deletion.
	pruneRows = 10_000
)

// Deliveries implements notifier.Deliveries, and kafka.Queue in the transaction of
// an event.
type Deliveries struct {
	db     *db.Queries
	holder string
}

// New returns a Deliveries of a pool whose search path is the schema, with a new holder.
func New(pool *pgxpool.Pool) *Deliveries { return &Deliveries{db.New(pool), uuid.NewString()} }

// Holder returns the holder's id.
func (s *Deliveries) Holder() string { return s.holder }

// Queue adds deliveries of one event in tx. Deliveries that are already there
// stay as they are.
func (s *Deliveries) Queue(ctx context.Context, tx pgx.Tx, ds ...notifier.Delivery) error {
	for _, d := range ds {
		err := s.db.WithTx(tx).QueueDelivery(ctx, db.QueueDeliveryParams{
			EventID: d.EventID, Channel: d.Channel, Event: d.Event, WaitlistID: d.WaitlistID, OwnerID: d.OwnerID,
			Number: d.Number, Position: d.Position, ReferralCount: d.ReferralCount,
			OccurredAt: d.OccurredAt, Traceparent: d.Traceparent, Holder: s.holder,
		})
		if err != nil {
			return fmt.Errorf("queue delivery: %w", err)
		}
	}
	return nil
}

// Forget deletes every delivery of a waitlist in tx. Queued ones are never attempted.
func (s *Deliveries) Forget(ctx context.Context, tx pgx.Tx, waitlistID string) error {
	if err := s.db.WithTx(tx).ForgetWaitlist(ctx, waitlistID); err != nil {
		return fmt.Errorf("delete deliveries of a waitlist: %w", err)
	}
	return nil
}

// Claim implements notifier.Deliveries.
func (s *Deliveries) Claim(ctx context.Context, at time.Time, keys []notifier.Key) (map[notifier.Key]bool, error) {
	keys = slices.SortedFunc(slices.Values(keys), compareKeys)
	ids, channels := columns(keys)
	rows, err := s.db.ClaimDeliveries(ctx, db.ClaimDeliveriesParams{
		At: at.UTC().Truncate(time.Microsecond), Holder: s.holder, EventIDs: ids, Channels: channels,
	})
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	mine := make(map[notifier.Key]bool, len(rows))
	for _, r := range rows {
		mine[notifier.Key(r)] = true
	}
	return mine, nil
}

// compareKeys is the order in which statements lock rows, so that no two of them
// wait for each other. Event ids are UUIDv7, so it is also the order of events.
func compareKeys(a, b notifier.Key) int {
	return cmp.Or(cmp.Compare(a.EventID, b.EventID), cmp.Compare(a.Channel, b.Channel))
}

// columns returns keys as the two arrays that statements unnest.
func columns(keys []notifier.Key) (ids, channels []string) {
	for _, k := range keys {
		ids, channels = append(ids, k.EventID), append(channels, string(k.Channel))
	}
	return ids, channels
}

// End implements notifier.Deliveries.
func (s *Deliveries) End(ctx context.Context, ended []notifier.Ended) error {
	ended = slices.SortedFunc(slices.Values(ended), func(a, b notifier.Ended) int { return compareKeys(a.Key, b.Key) })
	rows := db.EndDeliveriesParams{Holder: s.holder}
	var keys, gone []notifier.Key
	for _, e := range ended {
		if e.Outcome == notifier.Gone {
			gone = append(gone, e.Key)
			continue
		}
		keys = append(keys, e.Key)
		rows.Outcomes, rows.Reasons = append(rows.Outcomes, string(e.Outcome)), append(rows.Reasons, e.Reason)
		rows.Hosts, rows.Attempted = append(rows.Hosts, e.Host), append(rows.Attempted, e.Attempted)
		rows.Statuses, rows.TookMs = append(rows.Statuses, int32(e.Status)), append(rows.TookMs, e.Took.Milliseconds())
	}
	// Both statements may run again: the caller repeats a failed call.
	if len(keys) > 0 {
		rows.EventIDs, rows.Channels = columns(keys)
		if err := s.db.EndDeliveries(ctx, rows); err != nil {
			return fmt.Errorf("end deliveries: %w", err)
		}
	}
	if len(gone) > 0 {
		ids, channels := columns(gone)
		err := s.db.DeleteQueued(ctx, db.DeleteQueuedParams{EventIDs: ids, Channels: channels, Holder: s.holder})
		if err != nil {
			return fmt.Errorf("delete deliveries about what was deleted: %w", err)
		}
	}
	return nil
}

// Beat implements notifier.Deliveries.
func (s *Deliveries) Beat(ctx context.Context) error {
	if err := s.db.Beat(ctx, s.holder); err != nil {
		return fmt.Errorf("record the holder's heartbeat: %w", err)
	}
	return nil
}

// Leave implements notifier.Deliveries.
func (s *Deliveries) Leave(ctx context.Context) error {
	if err := s.db.Leave(ctx, s.holder); err != nil {
		return fmt.Errorf("delete the holder: %w", err)
	}
	return nil
}

// Adopt implements notifier.Deliveries.
func (s *Deliveries) Adopt(ctx context.Context, limit int) (queued []notifier.Delivery, unknown int64, err error) {
	dead, err := s.db.DeadHolders(ctx, s.holder, deadAfter)
	if err != nil {
		return nil, 0, fmt.Errorf("look for dead holders: %w", err)
	}
	for _, id := range dead {
		n, err := s.db.EndAttemptsOf(ctx, id)
		if err != nil {
			return queued, unknown, fmt.Errorf("end attempts of a dead holder: %w", err)
		}
		unknown += n
		rows, err := s.db.AdoptDeliveries(ctx, db.AdoptDeliveriesParams{Holder: s.holder, Dead: id, Most: int32(limit - len(queued))})
		if err != nil {
			return queued, unknown, fmt.Errorf("adopt deliveries: %w", err)
		}
		for _, r := range rows {
			queued = append(queued, notifier.Delivery{
				Key: notifier.Key{EventID: r.EventID, Channel: r.Channel}, Event: r.Event, WaitlistID: r.WaitlistID, OwnerID: r.OwnerID,
				Number: r.Number, Position: r.Position, ReferralCount: r.ReferralCount, OccurredAt: r.OccurredAt, Traceparent: r.Traceparent,
			})
		}
		if len(queued) == limit {
			break
		}
	}
	slices.SortFunc(queued, func(a, b notifier.Delivery) int { return compareKeys(a.Key, b.Key) })
	return queued, unknown, nil
}

// Trim implements notifier.Deliveries.
func (s *Deliveries) Trim(ctx context.Context, waitlistIDs []string) error {
	if err := s.db.TrimLog(ctx, waitlistIDs, logRows-1); err != nil {
		return fmt.Errorf("trim log of deliveries: %w", err)
	}
	return nil
}

// Prune implements notifier.Deliveries.
func (s *Deliveries) Prune(ctx context.Context, before time.Time) (int64, error) {
	if err := s.db.PruneHolders(ctx); err != nil {
		return 0, fmt.Errorf("prune holders: %w", err)
	}
	n, err := s.db.PruneLog(ctx, before, pruneRows)
	if err != nil {
		return 0, fmt.Errorf("prune log of deliveries: %w", err)
	}
	return n, nil
}
