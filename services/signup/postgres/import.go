package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/outbox"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup"
)

// importSQL gives the rows the numbers after $2 and keys $3 apart after $4.
const importSQL = `
INSERT INTO signup (waitlist_id, number, queue_key, created_at, email, token, first_name, last_name, phone)
SELECT $1, $2::bigint + r.n, $4::bigint + r.n * $3, $5, r.email, r.token, r.first_name, r.last_name, r.phone
FROM unnest($6::text[], $7::uuid[], $8::text[], $9::text[], $10::text[])
  WITH ORDINALITY AS r (email, token, first_name, last_name, phone, n)`

// importColumns are the rows of a chunk that are new.
type importColumns struct {
	email, first, last, phone []string
	token                     []uuid.UUID
	key                       []int64
}

// Import implements signup.ImportStore. Under the waitlist's lock it reads who
// is there in one round trip, and writes in another.
func (s *Signups) Import(ctx context.Context, w *signup.Waitlist, rows []signup.ImportRow) (imported int64, err error) {
	emails := make([]string, len(rows))
	for i, r := range rows {
		emails[i] = r.Email
	}
	err = s.locked(ctx, w.ID, func(tx pgx.Tx, st state) error {
		present, lastKey, err := readImported(ctx, tx, w.ID, emails)
		if err != nil {
			return err
		}
		imported = 0
		var c importColumns
		for _, r := range rows {
			if token, there := present[r.Email]; there {
				if token == r.Token {
					imported++
				}
				continue
			}
			present[r.Email] = signup.Token{} // for an equal one behind it
			c.email, c.first, c.last, c.phone = append(c.email, r.Email), append(c.first, r.FirstName), append(c.last, r.LastName), append(c.phone, r.Phone)
			c.token = append(c.token, uuid.UUID(r.Token))
			c.key = append(c.key, lastKey+spacing*int64(len(c.email)))
		}
		imported += int64(len(c.email))
		if len(c.email) == 0 {
			return nil
		}
		return s.writeImported(ctx, tx, w, st, lastKey, c)
	})
	if err != nil {
		return 0, classify(err)
	}
	s.wake()
	return imported, nil
}

// readImported returns the tokens of those of emails that are on the list, and
// the key of its last signup.
func readImported(ctx context.Context, tx pgx.Tx, waitlistID string, emails []string) (present map[string]signup.Token, lastKey int64, err error) {
	present = make(map[string]signup.Token, len(emails))
	var b pgx.Batch
	b.Queue("SET LOCAL plan_cache_mode = force_generic_plan") // see lockAndRead
	b.Queue(lastKeySQL, waitlistID).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&lastKey}, func() error { return nil })
		return err
	})
	b.Queue(presentSQL, waitlistID, emails).Query(func(rows pgx.Rows) error {
		var (
			email  string
			token  uuid.UUID
			number int64
		)
		_, err := pgx.ForEachRow(rows, []any{&email, &token, &number}, func() error {
			present[email] = signup.Token(token)
			return nil
		})
		return err
	})
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, 0, fmt.Errorf("read who is there: %w", err)
	}
	return present, lastKey, nil
}

func (s *Signups) writeImported(ctx context.Context, tx pgx.Tx, w *signup.Waitlist, st state, lastKey int64, c importColumns) error {
	at := s.now().UTC().Truncate(time.Millisecond)
	first, n := st.lastNumber+1, int64(len(c.email))
	var b pgx.Batch
	b.Queue(importSQL, w.ID, st.lastNumber, int64(spacing), lastKey, at, c.email, c.token, c.first, c.last, c.phone)
	b.Queue(bucketsSQL, w.ID, c.key)
	st.no++
	st.live += n
	st.total += n
	st.lastNumber += n
	b.Queue(changeSQL+`'{}')`, changeArgs(w.ID, st, first)...)
	m, err := s.event(w, func(e *eventv1.Event) {
		e.OccurredAt = stamp(at)
		e.Payload = &eventv1.Event_SignupsImported{SignupsImported: &eventv1.SignupsImported{
			WaitlistId: w.ID, OwnerId: w.OwnerID, FirstNumber: first, LastNumber: st.lastNumber,
		}}
	})
	if err != nil {
		return err
	}
	if err := outbox.Queue(ctx, &b, m); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("store imported signups: %w", err)
	}
	return nil
}
