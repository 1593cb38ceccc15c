package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/queue"
)

// pageSQL reads the first $4 signups behind the key $2 of change $3, the rank of the
// first one, and the number of the newest change. The STABLE functions share the
// statement's snapshot. It reads signup_queue_key from the key on, and flagged_pkey once, or for each row if $5 or if
// any signup is flagged. If nobody is behind the key, or the key is lost (column 1 is false), it returns one row
// without a signup.
const pageSQL = `
WITH since AS MATERIALIZED (
    SELECT queue_key_since($1, $2, $3) AS key
), page AS MATERIALIZED (
    SELECT number, queue_key, email, first_name, last_name, phone, token, referral_count, created_at, email_verified_at,
           email_opt_out_at, referrer_token, utm_source, utm_medium, utm_campaign, utm_term, utm_content, custom_answers, device_type,
           CASE WHEN $5 OR EXISTS (SELECT FROM flagged WHERE waitlist_id = $1)
               THEN coalesce((SELECT reasons FROM flagged f WHERE f.waitlist_id = $1 AND f.number = s.number), '') END AS flagged
    FROM signup s
    WHERE waitlist_id = $1 AND queue_key > (SELECT key FROM since)
    ORDER BY queue_key
    LIMIT $4
)
SELECT since.key IS NOT NULL,
       coalesce((SELECT no FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1), 0),
       (SELECT queue_rank($1, min(queue_key)) FROM page),
       page.*
FROM since LEFT JOIN page ON true
ORDER BY page.queue_key`

// Page implements owners.AdminStore.
func (s *Signups) Page(ctx context.Context, waitlistID string, after *queue.PageEnd, limit int, guarded bool) (owners.Page, error) {
	// Start before every key, as of the newest change.
	begin := queue.PageEnd{Key: math.MinInt64, Change: math.MaxInt64}
	if after != nil {
		begin = *after
	}
	var page owners.Page
	rows, err := s.pool.Query(ctx, pageSQL, waitlistID, begin.Key, begin.Change, limit, guarded)
	if err != nil {
		return page, fmt.Errorf("read page: %w", err)
	}
	var (
		found                                              bool
		first, number, key, referrals                      *int64
		email, firstName, lastName, phone, device, flagged *string
		token, referrer                                    *uuid.UUID
		createdAt, verifiedAt, optOutAt                    *time.Time
		source, medium, campaign, term, content            *string
		answers                                            []byte
	)
	_, err = pgx.ForEachRow(rows, []any{
		&found, &page.Change, &first, &number, &key, &email, &firstName, &lastName, &phone, &token, &referrals, &createdAt, &verifiedAt,
		&optOutAt, &referrer, &source, &medium, &campaign, &term, &content, &answers, &device, &flagged,
	}, func() error {
		// A change with a higher number belongs to a history that a restore undid.
		page.Lost = !found || (after != nil && after.Change > page.Change)
		if number == nil || page.Lost {
			return nil
		}
		page.Rows = append(page.Rows, owners.Row{
			Signup: queue.Signup{
				Number: *number, QueueKey: *key, Email: *email, FirstName: *firstName, LastName: *lastName, Phone: *phone,
				Token: queue.Token(*token), ReferralCount: *referrals, CreatedAt: createdAt.UTC(),
				EmailVerifiedAt: moment(verifiedAt), EmailOptOutAt: moment(optOutAt),
			},
			Position: *first + int64(len(page.Rows)), ReferredBy: (*queue.Token)(referrer),
			UTMSource: *source, UTMMedium: *medium, UTMCampaign: *campaign, UTMTerm: *term, UTMContent: *content,
			Answers: append([]byte(nil), answers...), Device: *device, Flagged: flagged,
		})
		return nil
	})
	if err != nil {
		return owners.Page{}, fmt.Errorf("read page: %w", err)
	}
	return page, nil
}

// Counters implements owners.AdminStore.
func (s *Signups) Counters(ctx context.Context, waitlistID string) (total, credited int64, err error) {
	st, err := scanState(s.pool.QueryRow(ctx, stateSQL, waitlistID))
	if err != nil {
		return 0, 0, fmt.Errorf("read counters: %w", err)
	}
	return st.Total, st.Credited, nil
}

// trimShiftsSQL uses queue_shift_created_at. By the key alone it may be planned to read
// the whole table.
const trimShiftsSQL = `
WITH old AS MATERIALIZED (
    SELECT ctid, waitlist_id, no, id FROM queue_shift WHERE created_at < now() - interval '25 hours' ORDER BY created_at LIMIT $1)
DELETE FROM queue_shift
WHERE ctid = ANY (ARRAY(SELECT ctid FROM old)) AND (waitlist_id, no, id) IN (SELECT waitlist_id, no, id FROM old)`

// TrimShifts deletes the queue's shifts that no cursor needs: a cursor lives 24 hours.
// It returns how many rows it deleted, at most limit.
func (s *Signups) TrimShifts(ctx context.Context, limit int) (int64, error) {
	tag, err := s.pool.Exec(ctx, trimShiftsSQL, limit)
	if err != nil {
		return 0, fmt.Errorf("trim queue shifts: %w", err)
	}
	return tag.RowsAffected(), nil
}
