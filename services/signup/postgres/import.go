package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup"
)

// copySQL takes what copied gives.
const copySQL = `
COPY signup (waitlist_id, number, queue_key, created_at, email, token, first_name, last_name, phone) FROM STDIN (FORMAT binary)`

// copied is rows as copySQL takes them, with numbers from first on and keys
// spacing apart after lastKey. pgx' own CopyFrom takes as long to write a row as
// Postgres to store it (PostgreSQL's documentation of COPY, "Binary Format").
func copied(list uuid.UUID, first, lastKey int64, at time.Time, rows []signup.ImportRow) []byte {
	const columns = 9
	b := append(make([]byte, 0, 160*len(rows)), "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	number := func(n int64) {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	id := func(id uuid.UUID) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(id))), id[:]...) }
	text := func(s string) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...) }
	for i, r := range rows {
		b = binary.BigEndian.AppendUint16(b, columns)
		id(list)
		number(first + int64(i))
		number(lastKey + spacing*int64(i+1))
		number(at.Sub(epoch).Microseconds())
		text(r.Email)
		id(uuid.UUID(r.Token))
		text(r.FirstName)
		text(r.LastName)
		text(r.Phone)
	}
	return binary.BigEndian.AppendUint16(b, math.MaxUint16)
}

// epoch is where Postgres' timestamps begin.
var epoch = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// Present implements signup.ImportStore.
func (s *Signups) Present(ctx context.Context, waitlistID string, rows []signup.ImportRow) (present map[string]signup.Token, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		present = make(map[string]signup.Token, len(rows))
		var b pgx.Batch
		queuePresent(&b, waitlistID, rows, present)
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("read who is there: %w", err)
	}
	return present, nil
}

// queuePresent reads who of rows is on the list.
func queuePresent(b *pgx.Batch, waitlistID string, rows []signup.ImportRow, present map[string]signup.Token) {
	emails := make([]string, len(rows))
	for i, r := range rows {
		emails[i] = r.Email
	}
	b.Queue("SET LOCAL plan_cache_mode = force_generic_plan") // see lockAndRead
	b.Queue(presentSQL, waitlistID, emails).Query(func(found pgx.Rows) error {
		var (
			email  string
			token  uuid.UUID
			number int64
		)
		_, err := pgx.ForEachRow(found, []any{&email, &token, &number}, func() error {
			present[email] = signup.Token(token)
			return nil
		})
		return err
	})
}

// Import implements signup.ImportStore.
func (s *Signups) Import(ctx context.Context, w *signup.Waitlist, rows []signup.ImportRow, present map[string]signup.Token) (imported int64, err error) {
	err = s.locked(ctx, w.ID, func(tx pgx.Tx, st state) error {
		there, lastKey := present, int64(0)
		var b pgx.Batch
		if there == nil {
			there = make(map[string]signup.Token, len(rows))
			queuePresent(&b, w.ID, rows, there)
		}
		b.Queue(lastKeySQL, w.ID).Query(func(keys pgx.Rows) error {
			_, err := pgx.ForEachRow(keys, []any{&lastKey}, func() error { return nil })
			return err
		})
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("read before an import: %w", err)
		}
		imported = 0
		added := make([]signup.ImportRow, 0, len(rows))
		for _, r := range rows {
			token, isThere := there[r.Email]
			if !isThere {
				added = append(added, r)
			}
			if !isThere || token == r.Token {
				imported++
			}
		}
		if len(added) == 0 {
			return nil
		}
		return s.writeImported(ctx, tx, w, st, lastKey, added)
	})
	if pg.IsUnique(err, "signup_email_key") {
		return 0, &signup.RetryError{Err: err}
	}
	if err != nil {
		return 0, classify(err)
	}
	s.wake()
	return imported, nil
}

// writeImported stores rows with the numbers after the last one, and keys spacing
// apart after lastKey.
func (s *Signups) writeImported(ctx context.Context, tx pgx.Tx, w *signup.Waitlist, st state, lastKey int64, rows []signup.ImportRow) error {
	list, err := uuid.Parse(w.ID)
	if err != nil {
		return fmt.Errorf("id of the waitlist: %w", err)
	}
	at := s.now().UTC().Truncate(time.Millisecond)
	first, n := st.lastNumber+1, int64(len(rows))
	if err := pg.CopyIn(ctx, tx, copySQL, copied(list, first, lastKey, at, rows)); err != nil {
		return fmt.Errorf("copy imported signups: %w", err)
	}
	keys := make([]int64, n)
	for i := range keys {
		keys[i] = lastKey + spacing*int64(i+1)
	}
	var b pgx.Batch
	b.Queue(bucketsSQL, w.ID, keys)
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
		return fmt.Errorf("log an import: %w", err)
	}
	return nil
}
