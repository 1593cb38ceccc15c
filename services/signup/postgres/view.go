package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

const signupColumns = `s.number, s.queue_key, s.email, s.first_name, s.last_name, s.phone, s.token,
       s.referral_count, s.created_at, s.email_verified_at, s.email_opt_out_at,
       s.referrer_token IS NOT NULL AND s.referrer_number IS NULL`

const viewSQL = `
SELECT w.version, coalesce(o.version, 0), coalesce(c.no, 0), coalesce(c.nonce, 0), coalesce(c.live, 0), coalesce(c.total, 0),
       ` + signupColumns + `,
       CASE WHEN s.number IS NOT NULL AND c.live <= $3 THEN queue_rank(w.id, s.queue_key) END
FROM waitlist w
LEFT JOIN owner o ON o.id = w.owner_id
LEFT JOIN LATERAL (
    SELECT no, nonce, live, total FROM change WHERE waitlist_id = w.id ORDER BY no DESC LIMIT 1
) c ON true
LEFT JOIN signup s ON s.waitlist_id = w.id AND s.`

// View implements join.Store.
func (s *Signups) View(ctx context.Context, waitlistID, email string, rankUpTo int64) (queue.View, error) {
	return s.view(ctx, viewSQL+`email = $2
WHERE w.id = $1 AND w.deleted_at IS NULL`, waitlistID, email, rankUpTo)
}

// Numbered implements owners.MessageStore. It uses waitlist_pkey, signup_pkey and
// change_pkey, and to rank also signup_queue_key and queue_bucket_pkey.
func (s *Signups) Numbered(ctx context.Context, waitlistID string, number, rankUpTo int64) (queue.View, error) {
	return s.view(ctx, viewSQL+`number = $2
WHERE w.id = $1 AND w.deleted_at IS NULL`, waitlistID, number, rankUpTo)
}

func (s *Signups) view(ctx context.Context, sql, waitlistID string, arg any, rankUpTo int64) (queue.View, error) {
	var (
		v                               queue.View
		number, key, referrals, rank    *int64
		email, first, last, phone       *string
		token                           *uuid.UUID
		createdAt, verifiedAt, optOutAt *time.Time
		uncredited                      bool
	)
	err := s.pool.QueryRow(ctx, sql, waitlistID, arg, rankUpTo).Scan(
		&v.SettingsVersion, &v.OwnerVersion, &v.Change, &v.Nonce, &v.Live, &v.Total,
		&number, &key, &email, &first, &last, &phone, &token, &referrals, &createdAt, &verifiedAt, &optOutAt, &uncredited,
		&rank)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, waitlist.ErrNotFound()
	}
	if err != nil {
		return v, fmt.Errorf("read waitlist and signup: %w", err)
	}
	if number == nil {
		return v, nil
	}
	v.Signup = &queue.Signup{
		Number: *number, QueueKey: *key, Email: *email, FirstName: *first, LastName: *last, Phone: *phone,
		Token: queue.Token(*token), ReferralCount: *referrals, CreatedAt: createdAt.UTC(),
		EmailVerifiedAt: moment(verifiedAt), EmailOptOutAt: moment(optOutAt),
		Uncredited: uncredited,
	}
	if rank != nil {
		v.Rank = *rank
	}
	return v, nil
}

// Leaderboard implements join.Store.
func (s *Signups) Leaderboard(ctx context.Context, waitlistID string, limit int) ([]int64, error) {
	counts, err := s.db.Leaderboard(ctx, waitlistID, int32(limit))
	if err != nil {
		return nil, fmt.Errorf("read leaderboard: %w", err)
	}
	return counts, nil
}

// Waitlist implements join.Store.
func (s *Signups) Waitlist(ctx context.Context, id string) (*waitlist.Waitlist, error) {
	return getWaitlist(ctx, s.db, id)
}
