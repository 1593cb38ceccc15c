package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/pg"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/postgres/db"
)

// take counts u for each of subjects, instead of u.Subject. It does not count subjects that would exceed the quota:
// over says how long each has to wait. Concurrent calls about a subject wait for each other's transactions.
func take(
	ctx context.Context, q *db.Queries, at time.Time, u messaging.Use, subjects ...string,
) (over map[string]time.Duration, err error) {
	hour := at.UTC().Truncate(time.Hour)
	add := db.UseQuotasParams{Quota: string(u.Quota), At: hour}
	byHash := make(map[string]string, len(subjects))
	for _, s := range subjects {
		hash := sha256.Sum256([]byte(s))
		byHash[string(hash[:])] = s
		add.Subjects, add.Used = append(add.Subjects, hash[:]), append(add.Used, u.N)
	}
	if err := q.UseQuotas(ctx, add); err != nil {
		return nil, fmt.Errorf("count towards a quota: %w", err)
	}
	// This is a statement of its own so that it sees what others have committed.
	rows, err := q.QuotaUses(ctx, db.QuotaUsesParams{
		Quota: string(u.Quota), Subjects: add.Subjects, After: at.Add(-messaging.QuotaWindow),
	})
	if err != nil {
		return nil, fmt.Errorf("read the uses of a quota: %w", err)
	}
	past := make(map[string][]messaging.PastUse, len(subjects))
	for _, r := range rows {
		if r.At.Equal(hour) {
			r.Used -= u.N
		}
		past[string(r.Subject)] = append(past[string(r.Subject)], messaging.PastUse{At: r.At, Used: r.Used})
	}
	over = map[string]time.Duration{}
	undo := db.UseQuotasParams{Quota: string(u.Quota), At: hour}
	for _, hash := range add.Subjects {
		if wait := u.Wait(past[string(hash)], at); wait > 0 {
			over[byHash[string(hash)]] = wait
			undo.Subjects, undo.Used = append(undo.Subjects, hash), append(undo.Used, -u.N)
		}
	}
	if len(over) > 0 {
		if err := q.UseQuotas(ctx, undo); err != nil {
			return nil, fmt.Errorf("take back uses of a quota: %w", err)
		}
	}
	return over, nil
}

// takeOne counts a use, or returns a *messaging.QuotaError.
func takeOne(ctx context.Context, q *db.Queries, at time.Time, u messaging.Use) error {
	over, err := take(ctx, q, at, u, u.Subject)
	if err != nil {
		return err
	}
	if wait, ok := over[u.Subject]; ok {
		return &messaging.QuotaError{Use: u, Wait: wait}
	}
	return nil
}

// Charge implements messaging.MailQueue.
func (m *Mails) Charge(ctx context.Context, eventID string, at time.Time, uses []messaging.Use) error {
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

// Charge implements messaging.BlastQueue.
func (s *Blasts) Charge(ctx context.Context, batch messaging.Batch, most int64, to []messaging.Recipient) (over []int64, err error) {
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
		emails := make([]string, len(to))
		for i, r := range to {
			emails[i] = r.Email
		}
		waits, err := take(ctx, q, s.now(), messaging.Use{Quota: messaging.RecipientMails, N: 1, Most: most}, emails...)
		if err != nil {
			return err
		}
		for _, r := range to {
			if waits[r.Email] > 0 {
				over = append(over, r.Number)
				if err := q.RecordOutcome(ctx, db.RecordOutcomeParams{
					BlastID: batch.BlastID, Number: r.Number, State: messaging.MailFailed,
				}); err != nil {
					return fmt.Errorf("record a mail beyond its quota: %w", err)
				}
			}
		}
		return nil
	})
	return over, err
}
