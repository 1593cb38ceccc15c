package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/waitlist"
)

// exportSQL reads the queue in its order, by the index on queue_key. It reads what the
// referral guard found, by flagged_pkey, only if flagged says that there is anything.
func exportSQL(questions int, flagged bool) string {
	reasons := `''::text`
	if flagged {
		reasons = `coalesce((SELECT reasons FROM flagged f WHERE f.waitlist_id = $1 AND f.number = s.number), '')`
	}
	var answers strings.Builder
	for i := range questions {
		fmt.Fprintf(&answers, ",\n    custom_answers ->> $%d::text", i+2)
	}
	return `
SELECT email, first_name, last_name, phone, referral_count, token, referrer_token,
    utm_source, utm_medium, utm_campaign, utm_term, utm_content,
    email_opt_out_at, consent_given_at, consent_text_version, privacy_policy_version, email_verified_at, created_at,
    ` + reasons + answers.String() + `
FROM signup s
WHERE waitlist_id = $1
ORDER BY queue_key`
}

// exportSettings forbids a sort, which would delay the first row until the last one is read,
// and parallel workers.
const exportSettings = `SELECT set_config('enable_sort', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)`

// exportColumns is the number of columns before the answers.
const exportColumns = 19

// errFormat says that Postgres did not send values in the binary format.
var errFormat = errors.New("export: values are not in the binary format")

// Record implements owners.ExportStore.
func (s *Signups) Record(ctx context.Context, e audit.Entry) error {
	return pg.InTx(ctx, s.pool, func(tx pgx.Tx) error { return audit.Insert(ctx, tx, e) })
}

// Export implements owners.ExportStore.
func (s *Signups) Export(
	ctx context.Context, waitlistID string, begin func(w *waitlist.Waitlist, flagged bool), row func(*owners.ExportRow) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		w, err := getWaitlist(ctx, s.db.WithTx(tx), waitlistID)
		if err != nil {
			return err
		}
		// The client may be slow.
		if err := pg.NoTimeouts(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, exportSettings); err != nil {
			return fmt.Errorf("configure export: %w", err)
		}
		flagged, err := s.db.WithTx(tx).HasFlagged(ctx, waitlistID)
		if err != nil {
			return fmt.Errorf("look for flagged referrals: %w", err)
		}
		questions := w.Settings.CustomQuestions
		args := []any{binaryFormat(exportColumns + len(questions)), waitlistID}
		for _, q := range questions {
			args = append(args, q.ID)
		}
		rows, err := tx.Query(ctx, exportSQL(len(questions), flagged), args...)
		if err != nil {
			return fmt.Errorf("read queue: %w", err)
		}
		defer rows.Close()
		begin(w, flagged)
		r := owners.ExportRow{Answers: make([][]byte, len(questions))}
		for rows.Next() {
			if err := scanExport(rows, &r); err != nil {
				cancel() // otherwise Close reads the rest of the queue
				return err
			}
			if err := row(&r); err != nil {
				cancel()
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read queue: %w", err)
		}
		return nil
	})
}

func binaryFormat(columns int) pgx.QueryResultFormats {
	formats := make(pgx.QueryResultFormats, columns)
	for i := range formats {
		formats[i] = pgx.BinaryFormatCode
	}
	return formats
}

// scanExport reads a row in place, without copying, which is several times faster than
// Scan.
func scanExport(rows pgx.Rows, r *owners.ExportRow) error {
	v := rows.RawValues()
	if rows.FieldDescriptions()[0].Format != pgx.BinaryFormatCode || len(v) != exportColumns+len(r.Answers) {
		return errFormat
	}
	r.Email, r.FirstName, r.LastName, r.Phone = v[0], v[1], v[2], v[3]
	r.ReferralCount = int64(int32(binary.BigEndian.Uint32(v[4])))
	copy(r.Token[:], v[5])
	r.HasReferrer = v[6] != nil
	copy(r.Referrer[:], v[6])
	copy(r.UTM[:], v[7:12])
	r.OptOutAt, r.ConsentAt = rawMoment(v[12]), rawMoment(v[13])
	r.ConsentVersion, r.PolicyVersion = v[14], v[15]
	r.Verified = v[16] != nil
	r.CreatedAt = rawMoment(v[17])
	r.Flagged = v[18]
	copy(r.Answers, v[exportColumns:])
	return nil
}

// rawMoment decodes a timestamptz: microseconds since 2000. NULL is the zero time.
func rawMoment(v []byte) time.Time {
	if v == nil {
		return time.Time{}
	}
	const y2k = 946_684_800_000_000
	return time.UnixMicro(y2k + int64(binary.BigEndian.Uint64(v)))
}
