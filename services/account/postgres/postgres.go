// Package postgres implements account.Store. Its statements are in queries.go.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of the service's schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// Store implements account.Store.
type Store struct {
	pool *pgxpool.Pool
	wake func()
}

// New returns a Store on a pool whose search path is the schema. It calls wake after
// each transaction, which may have written to the outbox.
func New(pool *pgxpool.Pool, wake func()) *Store { return &Store{pool: pool, wake: wake} }

// InTx implements account.Store.
func (s *Store) InTx(ctx context.Context, fn func(account.Tx) error) error {
	err := pg.InTx(ctx, s.pool, func(t pgx.Tx) error { return fn(tx{t}) })
	if err == nil {
		s.wake()
	}
	return err
}

// AccountByEmail implements account.Store.
func (s *Store) AccountByEmail(ctx context.Context, email string) (account.Account, error) {
	return scanAccount(s.pool.QueryRow(ctx, accountByEmail, email))
}

// Account implements account.Store.
func (s *Store) Account(ctx context.Context, id string) (account.Account, error) {
	return scanAccount(s.pool.QueryRow(ctx, accountByID, id))
}

// ActorBySession implements account.Store.
func (s *Store) ActorBySession(ctx context.Context, sessionID, accountID string, now time.Time) (access.Actor, error) {
	actor, _, err := s.actor(ctx, actorBySession, sessionID, accountID, now)
	return actor, err
}

// ActorByAPIKey implements account.Store.
func (s *Store) ActorByAPIKey(ctx context.Context, lookup string) (access.Actor, []byte, error) {
	return s.actor(ctx, actorByAPIKey, lookup)
}

// actor runs one of the two actor queries. The actor's own row has the role owner.
func (s *Store) actor(ctx context.Context, query string, args ...any) (actor access.Actor, keyHash []byte, err error) {
	rows, err := s.pool.Query(ctx, query, args...)
	if err != nil {
		return access.Actor{}, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var g access.Grant
		var role string
		var until zeronull.Timestamptz
		var verified bool
		var hash []byte
		if err := rows.Scan(&g.OwnerID, &g.OwnerEmail, &role, &g.Entitlement.Tier, &g.Entitlement.Status, &until,
			&g.Entitlement.Trial, &g.Entitlement.Version, &verified, &hash); err != nil {
			return access.Actor{}, nil, err
		}
		g.Role = access.ParseRole(role)
		g.Entitlement.ValidUntil = time.Time(until)
		if g.Role != access.Owner {
			actor.Grants = append(actor.Grants, g)
			continue
		}
		actor.AccountID, actor.Email, actor.EmailVerified, keyHash = g.OwnerID, g.OwnerEmail, verified, hash
		actor.Grants = append([]access.Grant{g}, actor.Grants...)
	}
	if err := rows.Err(); err != nil {
		return access.Actor{}, nil, err
	}
	if actor.AccountID == "" {
		return access.Actor{}, nil, account.ErrNotFound
	}
	return actor, keyHash, nil
}

// SetAPIKey implements account.Store.
func (s *Store) SetAPIKey(ctx context.Context, accountID string, key account.APIKeyRecord) error {
	return found(s.pool.Exec(ctx, setAPIKey, accountID, key.Lookup, key.Hash))
}

// SetPasswordHash implements account.Store.
func (s *Store) SetPasswordHash(ctx context.Context, accountID string, generation int64, hash string) error {
	return found(s.pool.Exec(ctx, setPasswordHash, accountID, generation, hash))
}

// LoginFailures implements account.Store.
func (s *Store) LoginFailures(ctx context.Context, a account.Attempt, since time.Time) (f account.Failures, err error) {
	err = s.pool.QueryRow(ctx, loginFailures, a.Account, a.Address, since,
		account.PairLimit-1, account.AddressLimit-1, account.CountedElsewhere).
		Scan((*zeronull.Timestamptz)(&f.Pair), (*zeronull.Timestamptz)(&f.Address), &f.Elsewhere)
	return f, err
}

// AddLoginFailure implements account.Store.
func (s *Store) AddLoginFailure(ctx context.Context, a account.Attempt, at time.Time) error {
	_, err := s.pool.Exec(ctx, addLoginFailure, a.Account, a.Address, at)
	return err
}

// QueueReset implements account.Store.
func (s *Store) QueueReset(ctx context.Context, email string, at time.Time) error {
	_, err := s.pool.Exec(ctx, queueReset, email, at)
	return err
}

// Members implements account.Store.
func (s *Store) Members(ctx context.Context, ownerID string) ([]account.Member, error) {
	rows, err := s.pool.Query(ctx, members, ownerID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m account.Member, err error) {
		var role string
		err = row.Scan(&m.Email, &role, &m.InvitedAt)
		m.Role = access.ParseRole(role)
		return m, err
	})
}

// DeleteMember implements account.Store.
func (s *Store) DeleteMember(ctx context.Context, ownerID, email string) error {
	return found(s.pool.Exec(ctx, deleteMember, ownerID, email))
}

// DeleteSessionByToken implements account.Store.
func (s *Store) DeleteSessionByToken(ctx context.Context, tokenHash []byte) error {
	return found(s.pool.Exec(ctx, deleteSessionByToken, tokenHash))
}

// TakeClosing implements account.Store.
func (s *Store) TakeClosing(ctx context.Context, now, retryAt time.Time) (accountID string, err error) {
	err = s.pool.QueryRow(ctx, takeClosing, now, retryAt).Scan(&accountID)
	return accountID, notFound(err)
}

// DeleteClosing implements account.Store.
func (s *Store) DeleteClosing(ctx context.Context, accountID string) error {
	_, err := s.pool.Exec(ctx, deleteClosing, accountID)
	return err
}

// Sweep implements account.Store.
func (s *Store) Sweep(ctx context.Context, now, failures time.Time) (more bool, err error) {
	for _, query := range []struct {
		sql   string
		until time.Time
	}{
		// Tokens before sessions: deleting a session deletes all its tokens in one
		// statement.
		{sweepRefreshTokens, now},
		{sweepSessions, now},
		{sweepLoginFailures, failures},
	} {
		tag, err := s.pool.Exec(ctx, query.sql, query.until, sweepRows)
		if err != nil {
			return false, err
		}
		more = more || tag.RowsAffected() == sweepRows
	}
	return more, nil
}

// tx implements account.Tx.
type tx struct{ pgx.Tx }

func (t tx) UseTrial(ctx context.Context, addressHash []byte, at time.Time) (bool, error) {
	tag, err := t.Exec(ctx, useTrial, addressHash, at)
	return tag.RowsAffected() == 1, err
}

func (t tx) InsertAccount(ctx context.Context, a account.Account) error {
	_, err := t.Exec(ctx, insertAccount, a.ID, a.Email, zeronull.Timestamptz(a.EmailVerifiedAt), a.PasswordHash, a.PasswordGeneration,
		a.APIKey.Lookup, a.APIKey.Hash,
		a.Entitlement.Tier, a.Entitlement.Status, zeronull.Timestamptz(a.Entitlement.ValidUntil), a.Entitlement.Trial, a.Entitlement.Version,
		zeronull.Timestamptz(a.TrialEndsAt), a.HasUsedTrial,
		a.Verification.Cycle, a.Verification.CycleStartedAt, a.Verification.Resends, zeronull.Timestamptz(a.Verification.ResentAt),
		zeronull.Timestamptz(a.ResetSentAt), a.CreatedAt, zeronull.Text(a.PaymentCustomerID))
	if pg.IsUnique(err, "account_email_key") {
		return account.ErrEmailTaken
	}
	return err
}

func (t tx) LockAccount(ctx context.Context, id string) (account.Account, error) {
	return scanAccount(t.QueryRow(ctx, lockAccount, id))
}

func (t tx) LockAccountByEmail(ctx context.Context, email string) (account.Account, error) {
	return scanAccount(t.QueryRow(ctx, lockAccountByEmail, email))
}

func (t tx) UpdateVerification(ctx context.Context, accountID string, verifiedAt time.Time, v account.Verification) error {
	return found(t.Exec(ctx, updateVerification, accountID, zeronull.Timestamptz(verifiedAt),
		v.Cycle, v.CycleStartedAt, v.Resends, zeronull.Timestamptz(v.ResentAt)))
}

func (t tx) SetPassword(ctx context.Context, accountID, hash string) error {
	return found(t.Exec(ctx, setPassword, accountID, hash))
}

func (t tx) SetResetSent(ctx context.Context, accountID string, at time.Time) error {
	return found(t.Exec(ctx, setResetSent, accountID, at))
}

func (t tx) SetEntitlement(ctx context.Context, accountID string, e access.Entitlement, trialEndsAt time.Time, usedTrial bool) error {
	return found(t.Exec(ctx, setEntitlement, accountID, e.Tier, e.Status, zeronull.Timestamptz(e.ValidUntil), e.Trial, e.Version,
		zeronull.Timestamptz(trialEndsAt), usedTrial))
}

func (t tx) SetPaymentCustomer(ctx context.Context, accountID, customerID string) error {
	return found(t.Exec(ctx, setPaymentCustomer, accountID, zeronull.Text(customerID)))
}

func (t tx) TakeTrialEnding(ctx context.Context, now, until time.Time, shortest time.Duration) (e account.TrialEnding, err error) {
	err = t.QueryRow(ctx, takeTrialEnding, now, until, shortest).Scan(&e.AccountID, &e.Email, &e.EndsAt)
	return e, notFound(err)
}

func (t tx) InsertMember(ctx context.Context, ownerID string, m account.Member) error {
	tag, err := t.Exec(ctx, insertMember, ownerID, m.Email, m.Role.String(), m.InvitedAt)
	if err == nil && tag.RowsAffected() == 0 {
		return account.ErrMemberExists
	}
	return err
}

func (t tx) CountInvitation(ctx context.Context, ownerID string, now, oldest time.Time) (n int, since time.Time, err error) {
	err = t.QueryRow(ctx, countInvitation, ownerID, now, oldest).Scan(&n, &since)
	return n, since, notFound(err)
}

func (t tx) DeleteAccount(ctx context.Context, a account.Account, dueAt time.Time) error {
	if _, err := t.Exec(ctx, deleteMemberships, a.Email); err != nil {
		return err
	}
	if err := found(t.Exec(ctx, deleteAccount, a.ID)); err != nil {
		return err
	}
	_, err := t.Exec(ctx, insertClosing, a.ID, dueAt)
	return err
}

func (t tx) InsertSession(ctx context.Context, s account.Session, generation int64, at time.Time) error {
	return found(t.Exec(ctx, insertSession, s.ID, s.AccountID, generation, at, s.ExpiresAt))
}

func (t tx) InsertRefreshToken(ctx context.Context, sessionID string, hash []byte, at, expires time.Time) error {
	_, err := t.Exec(ctx, insertRefreshToken, hash, sessionID, at, expires)
	return err
}

func (t tx) LockSessionByToken(ctx context.Context, tokenHash []byte) (s account.Session, err error) {
	err = t.QueryRow(ctx, lockSessionByToken, tokenHash).Scan(&s.ID, &s.AccountID, &s.ExpiresAt)
	return s, notFound(err)
}

func (t tx) SpendRefreshToken(ctx context.Context, hash []byte, now time.Time) (bool, error) {
	tag, err := t.Exec(ctx, spendRefreshToken, hash, now)
	return tag.RowsAffected() == 1, err
}

func (t tx) ExtendSession(ctx context.Context, sessionID string, expires time.Time) error {
	return found(t.Exec(ctx, extendSession, sessionID, expires))
}

func (t tx) DeleteSession(ctx context.Context, sessionID string) error {
	return found(t.Exec(ctx, deleteSession, sessionID))
}

func (t tx) DeleteSessions(ctx context.Context, accountID string) error {
	_, err := t.Exec(ctx, deleteSessions, accountID)
	return err
}

func (t tx) TakeReset(ctx context.Context) (email string, at time.Time, err error) {
	err = t.QueryRow(ctx, takeReset).Scan(&email, &at)
	return email, at, notFound(err)
}

func (t tx) Publish(ctx context.Context, accountID string, events ...*eventv1.Event) error {
	return outbox.Insert(ctx, t.Tx, outbox.Message{Topic: kafka.AccountsTopic, Key: accountID, Events: events})
}

func scanAccount(row pgx.Row) (a account.Account, err error) {
	err = row.Scan(&a.ID, &a.Email, (*zeronull.Timestamptz)(&a.EmailVerifiedAt), &a.PasswordHash, &a.PasswordGeneration,
		&a.APIKey.Lookup, &a.APIKey.Hash,
		&a.Entitlement.Tier, &a.Entitlement.Status, (*zeronull.Timestamptz)(&a.Entitlement.ValidUntil), &a.Entitlement.Trial,
		&a.Entitlement.Version, (*zeronull.Timestamptz)(&a.TrialEndsAt), &a.HasUsedTrial,
		&a.Verification.Cycle, &a.Verification.CycleStartedAt, &a.Verification.Resends,
		(*zeronull.Timestamptz)(&a.Verification.ResentAt), (*zeronull.Timestamptz)(&a.ResetSentAt), &a.CreatedAt,
		(*zeronull.Text)(&a.PaymentCustomerID))
	return a, notFound(err)
}

// notFound maps pgx.ErrNoRows to account.ErrNotFound.
func notFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return account.ErrNotFound
	}
	return err
}

// found returns account.ErrNotFound if a statement affected no row.
func found(tag pgconn.CommandTag, err error) error {
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: no row", account.ErrNotFound)
	}
	return nil
}
