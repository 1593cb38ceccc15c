package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/audit"
	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// batchGuardReads adds to b a read of the earlier referrals that the referral guard compares
// with those of the joins. Where the guard is off it adds nothing.
func batchGuardReads(b *pgx.Batch, waitlistID string, joins []*queue.Join, l *queue.Locked) {
	var (
		referrers         []uuid.UUID
		networks, persons [][]byte
	)
	for _, j := range joins {
		from := j.From()
		if !j.HasReferrer || !j.Waitlist.Settings.ReferralGuard.On() {
			continue
		}
		if l.Seen == nil {
			l.Seen = map[queue.ReferralFrom]queue.Seen{}
		}
		if _, ok := l.Seen[from]; !ok {
			l.Seen[from] = queue.Seen{}
			referrers, networks = append(referrers, uuid.UUID(from.Referrer)), append(networks, from.Network[:])
			persons = append(persons, from.Person[:])
		}
	}
	if len(referrers) == 0 {
		return
	}
	b.Queue(db.SeenReferrals, waitlistID, referrers, networks, persons).Query(func(rows pgx.Rows) error {
		var (
			referrer            uuid.UUID
			network, person     []byte
			fromNetwork, lately int
			again               bool
		)
		_, err := pgx.ForEachRow(rows, []any{&referrer, &network, &person, &fromNetwork, &lately, &again}, func() error {
			from := queue.ReferralFrom{
				Referrer: queue.Token(referrer), Network: queue.Network(network), Person: queue.Person(person),
			}
			l.Seen[from] = queue.Seen{FromNetwork: fromNetwork, Lately: lately, Again: again}
			return nil
		})
		return err
	})
}

// batchGuardWrites adds to b the referrals that the guard saw, and its findings.
func batchGuardWrites(b *pgx.Batch, waitlistID string, inserts []queue.Insert) {
	var (
		referrers     []uuid.UUID
		seen, flagged []int64
		networks      [][]byte
		persons       [][]byte
		reasons       []string
	)
	for i := range inserts {
		in := &inserts[i]
		if in.Guarded {
			referrers, seen = append(referrers, uuid.UUID(in.ReferredBy)), append(seen, in.Number)
			networks, persons = append(networks, in.Evidence.Network[:]), append(persons, in.Evidence.Person[:])
		}
		if in.Flagged != "" {
			flagged, reasons = append(flagged, in.Number), append(reasons, in.Flagged)
		}
	}
	if len(seen) > 0 {
		b.Queue(db.InsertSeenReferrals, waitlistID, referrers, seen, networks, persons)
	}
	if len(flagged) > 0 {
		b.Queue(db.InsertFlagged, waitlistID, flagged, reasons)
	}
}

// trimReferralsSQL uses referral_seen_created_at, like trimShiftsSQL. sqlc knows no ctid.
const trimReferralsSQL = `
WITH old AS MATERIALIZED (
    SELECT ctid, waitlist_id, referrer, number FROM referral_seen
    WHERE created_at < now() - interval '30 days' ORDER BY created_at LIMIT $1)
DELETE FROM referral_seen
WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) AND (waitlist_id, referrer, number) IN (SELECT waitlist_id, referrer, number FROM old)`

// TrimReferrals deletes the referrals that the guard no longer compares with new ones. It
// returns how many rows it deleted, at most limit.
func (s *Signups) TrimReferrals(ctx context.Context, limit int) (int64, error) {
	tag, err := s.pool.Exec(ctx, trimReferralsSQL, limit)
	if err != nil {
		return 0, fmt.Errorf("trim referrals: %w", err)
	}
	return tag.RowsAffected(), nil
}

// Credit implements join.Store.
func (s *Signups) Credit(ctx context.Context, w *waitlist.Waitlist, number int64, by audit.Entry) (credited queue.Credited, err error) {
	err = s.locked(ctx, w.ID, func(tx pgx.Tx, st queue.State) error {
		if credited, err = s.credit(ctx, tx, st, w.ID, number); err != nil || credited != queue.CreditGiven {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	if err == nil && credited == queue.CreditGiven {
		s.wake()
		s.changed("credit", 1)
	}
	return credited, err
}

// credit gives a signup's referrer the credit unless it has the credit already. Whatever
// sets a signup's referrer holds the waitlist's lock, as the caller does, so a credit is
// given once.
func (s *Signups) credit(ctx context.Context, tx pgx.Tx, st queue.State, waitlistID string, number int64) (queue.Credited, error) {
	q := s.db.WithTx(tx)
	row, err := q.GetReferral(ctx, waitlistID, number)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, queue.ErrNoSignup()
	case err != nil:
		return 0, fmt.Errorf("read referral: %w", err)
	case row.Credited:
		return queue.CreditBefore, nil
	case row.Referrer == 0:
		return queue.CreditNobody, nil
	}
	if err := q.SetReferrer(ctx, db.SetReferrerParams{Referrer: row.Referrer, WaitlistID: waitlistID, Number: number}); err != nil {
		return 0, fmt.Errorf("set referrer: %w", err)
	}
	// The caller's waitlist may be older than the lock.
	w, err := getWaitlist(ctx, q, waitlistID)
	if err != nil {
		return 0, err
	}
	now := s.now()
	st, c, ev := queue.DecideCredit(st, w, queue.ReferrerRow{Number: row.Referrer, Count: row.ReferralCount}, number, now)
	if _, err := tx.Exec(ctx, changeSQL+creditSQL, append(changeArgs(waitlistID, st, st.LastNumber+1),
		[]int64{c.Number}, []int32{c.Count}, []int64{c.Places}, now)...); err != nil {
		return 0, fmt.Errorf("credit referrer: %w", err)
	}
	return queue.CreditGiven, publish(ctx, tx, waitlistID, ev)
}
