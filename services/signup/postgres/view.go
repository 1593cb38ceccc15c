package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
LEFT JOIN `

// addressesSQL completes viewSQL for addresses, one a line. It looks up each by itself: with = ANY, a cached plan from when the table
// was small reads the whole waitlist. Of an array, Postgres would know the length, and plan each execution anew.
const addressesSQL = `(string_to_table($2, E'\n') AS e (email) CROSS JOIN LATERAL (
    SELECT s.* FROM signup s WHERE s.waitlist_id = $1 AND s.email = e.email LIMIT 1
) s) ON true
WHERE w.id = $1 AND w.deleted_at IS NULL`

// addressSQL completes viewSQL for one address, numberSQL for a number.
const (
	addressSQL = `signup s ON s.waitlist_id = w.id AND s.email = $2
WHERE w.id = $1 AND w.deleted_at IS NULL`
	numberSQL = `signup s ON s.waitlist_id = w.id AND s.number = $2
WHERE w.id = $1 AND w.deleted_at IS NULL`
)

// Views implements join.Store.
func (s *Signups) Views(ctx context.Context, waitlistID string, emails []string, rankUpTo int64) ([]queue.View, error) {
	wanted := slices.Compact(slices.Sorted(slices.Values(emails)))
	sql := viewSQL + addressesSQL
	if len(wanted) == 1 {
		sql = viewSQL + addressSQL // a tenth less of Postgres's time
	}
	rows, err := s.views(ctx, sql, waitlistID, strings.Join(wanted, "\n"), rankUpTo)
	if err != nil {
		return nil, err
	}
	found := make(map[string]queue.View, len(rows))
	for _, v := range rows {
		if v.Signup != nil {
			found[v.Signup.Email] = v
		}
	}
	views := make([]queue.View, len(emails))
	for i, email := range emails {
		v, ok := found[email]
		if !ok {
			v = rows[0]
			v.Signup, v.Rank = nil, 0
		}
		views[i] = v
	}
	return views, nil
}

// Numbered implements owners.MessageStore. It uses waitlist_pkey, signup_pkey and
// change_pkey, and to rank also signup_queue_key and queue_bucket_pkey.
func (s *Signups) Numbered(ctx context.Context, waitlistID string, number, rankUpTo int64) (queue.View, error) {
	rows, err := s.views(ctx, viewSQL+numberSQL, waitlistID, number, rankUpTo)
	if err != nil {
		return queue.View{}, err
	}
	return rows[0], nil
}

// views returns a view for each signup that is found, or one without a signup.
func (s *Signups) views(ctx context.Context, sql, waitlistID string, arg any, rankUpTo int64) ([]queue.View, error) {
	rows, err := s.pool.Query(ctx, sql, waitlistID, arg, rankUpTo)
	if err != nil {
		return nil, fmt.Errorf("read waitlist and signups: %w", err)
	}
	views, err := pgx.CollectRows(rows, scanView)
	if err != nil {
		return nil, fmt.Errorf("read waitlist and signups: %w", err)
	}
	if len(views) == 0 {
		return nil, waitlist.ErrNotFound()
	}
	return views, nil
}

func scanView(row pgx.CollectableRow) (v queue.View, err error) {
	var (
		number, key, referrals, rank    *int64
		email, first, last, phone       *string
		token                           *uuid.UUID
		createdAt, verifiedAt, optOutAt *time.Time
		uncredited                      bool
	)
	if err := row.Scan(
		&v.SettingsVersion, &v.OwnerVersion, &v.Change, &v.Nonce, &v.Live, &v.Total,
		&number, &key, &email, &first, &last, &phone, &token, &referrals, &createdAt, &verifiedAt, &optOutAt, &uncredited,
		&rank); err != nil || number == nil {
		return v, err // the caller wraps it
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
