package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// copySQL reads what copied returns.
const copySQL = `
COPY signup (waitlist_id, number, queue_key, created_at, email, token, first_name, last_name, phone, email_opt_out_at)
FROM STDIN (FORMAT binary)`

// copied encodes a batch for copySQL. pgx's CopyFrom takes as long to encode a row
// as Postgres takes to store it. The format is documented under "Binary Format" in
// PostgreSQL's documentation of COPY.
func copied(list uuid.UUID, at time.Time, d queue.ImportBatch) []byte {
	const columns = 10
	b := append(make([]byte, 0, 160*len(d.Rows)), "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	number := func(n int64) {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	id := func(id uuid.UUID) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(id))), id[:]...) }
	text := func(s string) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...) }
	for i, r := range d.Rows {
		b = binary.BigEndian.AppendUint16(b, columns)
		id(list)
		number(d.FirstNumber + int64(i))
		number(d.Keys[i])
		number(at.Sub(epoch).Microseconds())
		text(r.Email)
		id(uuid.UUID(r.Token))
		text(r.FirstName)
		text(r.LastName)
		text(r.Phone)
		if r.OptOutAt.IsZero() {
			b = binary.BigEndian.AppendUint32(b, math.MaxUint32) // NULL
		} else {
			number(r.OptOutAt.Sub(epoch).Microseconds())
		}
	}
	return binary.BigEndian.AppendUint16(b, math.MaxUint16)
}

// epoch is the zero of Postgres's timestamps.
var epoch = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// Known implements owners.ImportStore.
func (s *Signups) Known(ctx context.Context, waitlistID string, rows []queue.ImportRow) (*owners.Known, error) {
	known := s.hashed(waitlistID, rows)
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		clear(known.Present)
		var b pgx.Batch
		batchPresentReads(&b, waitlistID, rows, known.Present)
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	return known, nil
}

// hashed returns what is known of rows without reading the list.
func (s *Signups) hashed(waitlistID string, rows []queue.ImportRow) *owners.Known {
	known := &owners.Known{Present: make(map[string]queue.Token, len(rows)), Hashes: make(map[string]string, len(rows))}
	for _, r := range rows {
		for _, h := range s.hashes(waitlistID, r.Email) {
			known.Hashes[string(h)] = r.Email
		}
	}
	return known
}

// batchPresentReads adds to b a read of the rows that are on the list.
func batchPresentReads(b *pgx.Batch, waitlistID string, rows []queue.ImportRow, present map[string]queue.Token) {
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
			present[email] = queue.Token(token)
			return nil
		})
		return err
	})
}

// Import implements owners.ImportStore.
func (s *Signups) Import(
	ctx context.Context, w *waitlist.Waitlist, rows []queue.ImportRow, known *owners.Known, by audit.Entry,
) (imported int64, err error) {
	read := known == nil
	if read {
		known = s.hashed(w.ID, rows)
	}
	err = s.locked(ctx, w.ID, func(tx pgx.Tx, st queue.State) error {
		optedOut, lastKey := map[string]time.Time{}, int64(0)
		var b pgx.Batch
		if read {
			clear(known.Present)
			batchPresentReads(&b, w.ID, rows, known.Present)
		}
		batchOptOutReads(&b, w.ID, known.Hashes, optedOut)
		b.Queue(lastKeySQL, w.ID).Query(func(keys pgx.Rows) error {
			_, err := pgx.ForEachRow(keys, []any{&lastKey}, func() error { return nil })
			return err
		})
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("read before import: %w", err)
		}
		d := queue.DecideImport(st, lastKey, known.Present, optedOut, rows)
		imported = d.Imported
		if len(d.Rows) == 0 {
			return nil
		}
		if err := s.writeImported(ctx, tx, w, d); err != nil {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	if pg.IsUnique(err, "signup_email_key") {
		return 0, &join.RetryError{Err: err}
	}
	if err != nil {
		return 0, classify(err)
	}
	s.wake()
	return imported, nil
}

func (s *Signups) writeImported(ctx context.Context, tx pgx.Tx, w *waitlist.Waitlist, d queue.ImportBatch) error {
	list, err := uuid.Parse(w.ID)
	if err != nil {
		return fmt.Errorf("parse waitlist id: %w", err)
	}
	at := s.now().UTC().Truncate(time.Millisecond)
	if err := pg.CopyIn(ctx, tx, copySQL, copied(list, at, d)); err != nil {
		return fmt.Errorf("copy imported signups: %w", err)
	}
	var b pgx.Batch
	batchBucketUpdates(&b, w.ID, d.Keys, nil)
	b.Queue(changeSQL+`'{}')`, changeArgs(w.ID, d.State, d.FirstNumber)...)
	m := message(w.ID, queue.SignupsImported(w, d.FirstNumber, d.State.LastNumber, at))
	if err := outbox.Queue(ctx, &b, m); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("log import: %w", err)
	}
	return nil
}
