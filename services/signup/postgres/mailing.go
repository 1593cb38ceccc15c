package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/access"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/waitlist"
)

// inOrder precedes optedInSQL in its transaction. Without it, a cached plan from when
// the table was small would sort the rest of the waitlist for each page.
const inOrder = `SELECT set_config('enable_sort', 'off', true)`

// optedInSQL uses waitlist_pkey and reads signup_pkey in its order. It skips the
// signups that opted out; all pages together read each of them once.
const optedInSQL = `
SELECT ARRAY(
    SELECT s.number FROM signup s
    WHERE s.waitlist_id = $1 AND s.number > $2 AND s.email_opt_out_at IS NULL
    ORDER BY s.number
    LIMIT $3
)
FROM waitlist WHERE id = $1 AND deleted_at IS NULL`

// OptedIn implements owners.MessageStore.
func (s *Signups) OptedIn(ctx context.Context, waitlistID string, after int64, limit int) ([]int64, error) {
	var numbers []int64
	var b pgx.Batch // one round trip, and one transaction
	b.Queue(inOrder)
	b.Queue(optedInSQL, waitlistID, after, limit).QueryRow(func(row pgx.Row) error { return row.Scan(&numbers) })
	err := s.pool.SendBatch(ctx, &b).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, waitlist.ErrNotFound()
	}
	if err != nil {
		return nil, fmt.Errorf("list recipients: %w", err)
	}
	return numbers, nil
}

// recipientsSQL uses waitlist_pkey, owner_pkey, and signup_pkey number by number, for the
// reason given at presentSQL. Without recipients it returns one row with nulls.
const recipientsSQL = `
SELECT w.name, o.tier, o.status, o.valid_until, r.number, r.email
FROM waitlist w JOIN owner o ON o.id = w.owner_id LEFT JOIN (unnest($2::bigint[]) AS n (number) CROSS JOIN LATERAL (
    SELECT s.number, s.email FROM signup s
    WHERE s.waitlist_id = $1 AND s.number = n.number AND s.email_opt_out_at IS NULL LIMIT 1
) r) ON true
WHERE w.id = $1 AND w.deleted_at IS NULL
ORDER BY r.number`

// Recipients implements owners.MessageStore.
func (s *Signups) Recipients(
	ctx context.Context, waitlistID string, numbers []int64,
) (string, access.Entitlement, []owners.Recipient, error) {
	rows, err := s.pool.Query(ctx, recipientsSQL, waitlistID, numbers)
	if err != nil {
		return "", access.Entitlement{}, nil, fmt.Errorf("read recipients: %w", err)
	}
	var (
		name       string
		owner      access.Entitlement
		validUntil *time.Time
		number     *int64
		email      *string
		out        []owners.Recipient
	)
	tag, err := pgx.ForEachRow(rows, []any{&name, &owner.Tier, &owner.Status, &validUntil, &number, &email}, func() error {
		if number != nil {
			out = append(out, owners.Recipient{Number: *number, Email: *email})
		}
		return nil
	})
	if err != nil {
		return "", access.Entitlement{}, nil, fmt.Errorf("read recipients: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return "", access.Entitlement{}, nil, waitlist.ErrNotFound()
	}
	if validUntil != nil {
		owner.ValidUntil = *validUntil
	}
	return name, owner, out, nil
}
