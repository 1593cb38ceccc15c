package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres/db"
)

// take counts u once for each of subjects, which may repeat, instead of for u.Subject. What would exceed the quota of a
// subject is not counted: waits says, for each of subjects, how long it stays so, or 0 where it was counted. Concurrent
// calls about a subject wait for each other's transactions.
func take(
	ctx context.Context, q *db.Queries, at time.Time, u mails.Use, subjects ...string,
) (waits []time.Duration, err error) {
	hour := at.UTC().Truncate(time.Hour)
	add := db.UseQuotasParams{Quota: string(u.Quota), At: hour}
	asked := make(map[string]int64, len(subjects)) // by hash
	hashes := make([]string, len(subjects))
	for i, s := range subjects {
		hash := sha256.Sum256([]byte(s))
		hashes[i] = string(hash[:])
		asked[hashes[i]] += u.N
	}
	for hash, n := range asked {
		add.Subjects, add.Used = append(add.Subjects, []byte(hash)), append(add.Used, n)
	}
	if err := q.UseQuotas(ctx, add); err != nil {
		return nil, fmt.Errorf("count towards a quota: %w", err)
	}
	// This is a statement of its own so that it sees what others have committed.
	rows, err := q.QuotaUses(ctx, db.QuotaUsesParams{
		Quota: string(u.Quota), Subjects: add.Subjects, After: at.Add(-u.Quota.Window()),
	})
	if err != nil {
		return nil, fmt.Errorf("read the uses of a quota: %w", err)
	}
	past := make(map[string][]mails.PastUse, len(asked))
	for _, r := range rows {
		hash := string(r.Subject)
		if r.At.Equal(hour) {
			r.Used -= asked[hash]
		}
		past[hash] = append(past[hash], mails.PastUse{At: r.At, Used: r.Used})
	}
	waits = make([]time.Duration, len(subjects))
	taken, beyond := map[string]int64{}, map[string]int64{}
	for i, hash := range hashes {
		next := u
		next.N = taken[hash] + u.N
		if waits[i] = next.Wait(past[hash], at); waits[i] > 0 {
			beyond[hash] -= u.N
			continue
		}
		taken[hash] = next.N
	}
	if len(beyond) > 0 {
		undo := db.UseQuotasParams{Quota: string(u.Quota), At: hour}
		for hash, n := range beyond {
			undo.Subjects, undo.Used = append(undo.Subjects, []byte(hash)), append(undo.Used, n)
		}
		if err := q.UseQuotas(ctx, undo); err != nil {
			return nil, fmt.Errorf("take back uses of a quota: %w", err)
		}
	}
	return waits, nil
}

// takeOne counts a use, or returns a *mails.QuotaError.
func takeOne(ctx context.Context, q *db.Queries, at time.Time, u mails.Use) error {
	waits, err := take(ctx, q, at, u, u.Subject)
	if err != nil {
		return err
	}
	if waits[0] > 0 {
		return &mails.QuotaError{Use: u, Wait: waits[0]}
	}
	return nil
}

// Charge implements mails.Queue.
func (m *Mails) Charge(ctx context.Context, eventID string, at time.Time, uses []mails.Use) error {
	return pg.InTx(ctx, m.pool, func(tx pgx.Tx) error {
		q := m.db.WithTx(tx)
		n, err := q.ChargeMail(ctx, eventID)
		if err != nil {
			return fmt.Errorf("charge a mail: %w", err)
		}
		if n == 0 {
			return nil
		}
		for _, u := range uses {
			if err := takeOne(ctx, q, at, u); err != nil {
				return err
			}
		}
		return nil
	})
}

// Charge implements blasts.Queue.
func (s *Blasts) Charge(ctx context.Context, batch blasts.Batch, most int64, to []blasts.Recipient) (over []int64, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		q := s.db.WithTx(tx)
		over = nil
		n, err := q.ChargeBatch(ctx, db.ChargeBatchParams{BlastID: batch.BlastID, Batch: batch.Number, Claim: batch.Claim})
		if err != nil {
			return fmt.Errorf("charge a batch: %w", err)
		}
		if n == 0 || len(to) == 0 {
			return nil
		}
		persons := make([]string, len(to))
		for i, r := range to {
			persons[i] = emailaddr.Person(r.Email)
		}
		waits, err := take(ctx, q, s.now(), mails.Use{Quota: mails.RecipientMails, N: 1, Most: most}, persons...)
		if err != nil {
			return err
		}
		for i, r := range to {
			if waits[i] > 0 {
				over = append(over, r.Number)
				if err := q.RecordOutcome(ctx, db.RecordOutcomeParams{
					BlastID: batch.BlastID, Number: r.Number, State: blasts.MailFailed,
				}); err != nil {
					return fmt.Errorf("record a mail beyond its quota: %w", err)
				}
			}
		}
		return nil
	})
	return over, err
}
