// Package postgres implements account.Store. The statements are in queries/, from which
// sqlc generates package db.
package postgres

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
	"waitlist.internal/services/account/postgres/db"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the goose migrations of the service's schema.
func Migrations() (fs.FS, error) { return fs.Sub(files, "migrations") }

// Store implements account.Store. QueueReset, TakeClosing and DeleteClosing are methods of Queries.
type Store struct {
	*db.Queries
	pool *pgxpool.Pool
	wake func()
}

// New returns a Store on a pool whose search path is the schema. It calls wake after
// each transaction, which may have written to the outbox.
func New(pool *pgxpool.Pool, wake func()) *Store {
	return &Store{Queries: db.New(conn{pool}), pool: pool, wake: wake}
}

// InTx implements account.Store.
func (s *Store) InTx(ctx context.Context, fn func(account.Tx) error) error {
	err := pg.InTx(ctx, s.pool, func(t pgx.Tx) error { return fn(tx{db.New(conn{t}), t}) })
	if err == nil {
		s.wake()
	}
	return err
}

// AccountByEmail implements account.Store.
func (s *Store) AccountByEmail(ctx context.Context, email string) (account.Account, error) {
	return stored(s.Queries.AccountByEmail(ctx, email))
}

// Account implements account.Store.
func (s *Store) Account(ctx context.Context, id string) (account.Account, error) {
	return stored(s.GetAccount(ctx, id))
}

// ActorBySession implements account.Store.
func (s *Store) ActorBySession(ctx context.Context, sessionID, accountID string, now time.Time) (access.Actor, error) {
	actor, _, err := actor(s.Queries.ActorBySession(ctx, sessionID, accountID, now))
	return actor, err
}

// ActorByAPIKey implements account.Store.
func (s *Store) ActorByAPIKey(ctx context.Context, lookup string) (access.Actor, []byte, error) {
	return actor(s.Queries.ActorByAPIKey(ctx, lookup))
}

// actor converts the rows of one of the two actor queries. The actor's own row has the
// role owner.
func actor[R db.ActorBySessionRow | db.ActorByAPIKeyRow](rows []R, err error) (actor access.Actor, keyHash []byte, _ error) {
	if err != nil {
		return access.Actor{}, nil, err
	}
	for _, row := range rows {
		r := db.ActorBySessionRow(row)
		g := access.Grant{OwnerID: r.ID, OwnerEmail: r.Email, Role: access.ParseRole(r.Role), Entitlement: access.Entitlement{
			Tier: access.Tier(r.Tier), Status: access.Status(r.Status), Trial: r.Trial, Version: r.EntitlementVersion,
		}}
		if r.ValidUntil != nil {
			g.Entitlement.ValidUntil = *r.ValidUntil
		}
		if g.Role != access.Owner {
			actor.Grants = append(actor.Grants, g)
			continue
		}
		actor.AccountID, actor.Email, actor.EmailVerified, keyHash = r.ID, r.Email, r.Verified, r.APIKeyHash
		actor.Grants = append([]access.Grant{g}, actor.Grants...)
	}
	if actor.AccountID == "" {
		return access.Actor{}, nil, account.ErrNotFound
	}
	return actor, keyHash, nil
}

// LoginFailures implements account.Store.
func (s *Store) LoginFailures(ctx context.Context, a account.Attempt, since time.Time) (account.Failures, error) {
	row, err := s.Queries.LoginFailures(ctx, db.LoginFailuresParams{
		Account: a.Account, Address: a.Address, Since: since,
		PairOffset: account.PairLimit - 1, AddressOffset: account.AddressLimit - 1, Most: int64(account.CountedElsewhere),
	})
	return account.Failures{Pair: time.Time(row.Pair), Address: time.Time(row.Address), Elsewhere: int(row.Elsewhere)}, err
}

// Members implements account.Store.
func (s *Store) Members(ctx context.Context, ownerID string) ([]account.Member, error) {
	rows, err := s.Queries.Members(ctx, ownerID)
	members := make([]account.Member, len(rows))
	for i, r := range rows {
		members[i] = account.Member{Email: r.Email, Role: access.ParseRole(r.Role), InvitedAt: r.InvitedAt}
	}
	return members, err
}

// Sessions implements account.Store.
func (s *Store) Sessions(ctx context.Context, accountID string, now time.Time, limit int) ([]account.Session, error) {
	rows, err := s.Queries.Sessions(ctx, accountID, now, int64(limit))
	sessions := make([]account.Session, len(rows))
	for i, r := range rows {
		sessions[i] = account.Session(r)
	}
	return sessions, err
}

// ForgetTrail implements account.Store.
func (s *Store) ForgetTrail(ctx context.Context, accountID string) error {
	return (&audit.Table{Pool: s.pool}).Forget(ctx, accountID)
}

// sweepRows bounds the rows that one statement of a sweep deletes.
const sweepRows = 1000

// Sweep implements account.Store.
func (s *Store) Sweep(ctx context.Context, now, failures time.Time) (more bool, err error) {
	for _, q := range []struct {
		sweep func(ctx context.Context, until time.Time, most int64) (int64, error)
		until time.Time
	}{
		// Tokens before sessions: deleting a session deletes all its tokens in one
		// statement.
		{s.SweepRefreshTokens, now},
		{s.SweepSessions, now},
		{s.SweepLoginFailures, failures},
	} {
		n, err := q.sweep(ctx, q.until, sweepRows)
		if err != nil {
			return false, err
		}
		more = more || n == sweepRows
	}
	return more, nil
}

// tx implements account.Tx. What it does not define are methods of Queries.
type tx struct {
	*db.Queries
	tx pgx.Tx
}

func (t tx) InsertAccount(ctx context.Context, a account.Account) error {
	e, v := a.Entitlement, a.Verification
	err := t.Queries.InsertAccount(ctx, db.InsertAccountParams{
		ID: a.ID, Email: a.Email, EmailVerifiedAt: zeronull.Timestamptz(a.EmailVerifiedAt), CreatedAt: a.CreatedAt,
		PasswordHash: a.PasswordHash, PasswordGeneration: a.PasswordGeneration, ResetSentAt: zeronull.Timestamptz(a.ResetSentAt),
		APIKeyLookup: a.APIKey.Lookup, APIKeyHash: a.APIKey.Hash,
		Tier: e.Tier, Status: e.Status, ValidUntil: zeronull.Timestamptz(e.ValidUntil), Trial: e.Trial, EntitlementVersion: e.Version,
		TrialEndsAt: zeronull.Timestamptz(a.TrialEndsAt), HasUsedTrial: a.HasUsedTrial,
		VerifyCycle: v.Cycle, VerifyStartedAt: v.CycleStartedAt, VerifyResends: v.Resends, VerifyResentAt: zeronull.Timestamptz(v.ResentAt),
		PaymentCustomerID: zeronull.Text(a.PaymentCustomerID),
	})
	if pg.IsUnique(err, "account_email_key") {
		return account.ErrEmailTaken
	}
	return err
}

func (t tx) LockAccount(ctx context.Context, id string) (account.Account, error) {
	return stored(t.Queries.LockAccount(ctx, id))
}

func (t tx) HoldAccount(ctx context.Context, id string) error {
	_, err := t.Queries.HoldAccount(ctx, cmp.Or(id, uuid.Nil.String()))
	return err
}

func (t tx) LockAccountByEmail(ctx context.Context, email string) (account.Account, error) {
	return stored(t.Queries.LockAccountByEmail(ctx, email))
}

func (t tx) UpdateAccount(ctx context.Context, a account.Account) error {
	e, v := a.Entitlement, a.Verification
	return t.Queries.UpdateAccount(ctx, db.UpdateAccountParams{
		ID: a.ID, EmailVerifiedAt: zeronull.Timestamptz(a.EmailVerifiedAt),
		PasswordHash: a.PasswordHash, PasswordGeneration: a.PasswordGeneration, ResetSentAt: zeronull.Timestamptz(a.ResetSentAt),
		APIKeyLookup: a.APIKey.Lookup, APIKeyHash: a.APIKey.Hash,
		Tier: e.Tier, Status: e.Status, ValidUntil: zeronull.Timestamptz(e.ValidUntil), Trial: e.Trial, EntitlementVersion: e.Version,
		TrialEndsAt: zeronull.Timestamptz(a.TrialEndsAt), HasUsedTrial: a.HasUsedTrial,
		VerifyCycle: v.Cycle, VerifyStartedAt: v.CycleStartedAt, VerifyResends: v.Resends, VerifyResentAt: zeronull.Timestamptz(v.ResentAt),
		PaymentCustomerID: zeronull.Text(a.PaymentCustomerID),
	})
}

func (t tx) TakeTrialEnding(ctx context.Context, now, until time.Time, shortest time.Duration) (account.TrialEnding, error) {
	row, err := t.Queries.TakeTrialEnding(ctx, now, until, shortest)
	return account.TrialEnding(row), err
}

func (t tx) InsertMember(ctx context.Context, ownerID string, m account.Member) (id string, err error) {
	id, err = t.Queries.InsertMember(ctx, ownerID, m.Email, m.Role.String(), m.InvitedAt)
	if errors.Is(err, account.ErrNotFound) {
		return "", account.ErrMemberExists
	}
	return id, err
}

func (t tx) CountInvitation(ctx context.Context, ownerID string, now, oldest time.Time) (n int, since time.Time, err error) {
	row, err := t.Queries.CountInvitation(ctx, oldest, now, ownerID)
	return row.Invites, row.Since, err
}

func (t tx) DeleteAccount(ctx context.Context, a account.Account, dueAt time.Time) error {
	if err := t.DeleteMemberships(ctx, a.Email); err != nil {
		return err
	}
	if err := found(t.Queries.DeleteAccount(ctx, a.ID)); err != nil {
		return err
	}
	return t.InsertClosing(ctx, a.ID, dueAt)
}

func (t tx) InsertSession(ctx context.Context, s account.Session, generation int64) error {
	return found(t.Queries.InsertSession(ctx, db.InsertSessionParams{
		ID: s.ID, AccountID: s.AccountID, Generation: generation, CreatedAt: s.CreatedAt, LastUsedAt: s.LastUsedAt,
		ExpiresAt: s.ExpiresAt, UserAgent: s.UserAgent,
	}))
}

func (t tx) LockSessionByToken(ctx context.Context, tokenHash []byte) (account.Session, error) {
	row, err := t.Queries.LockSessionByToken(ctx, tokenHash)
	return account.Session{ID: row.ID, AccountID: row.AccountID, CreatedAt: row.CreatedAt}, err
}

func (t tx) DeleteSession(ctx context.Context, accountID, sessionID string) error {
	return found(t.Queries.DeleteSession(ctx, accountID, sessionID))
}

func (t tx) TakeReset(ctx context.Context) (email string, at time.Time, err error) {
	row, err := t.Queries.TakeReset(ctx)
	return row.Email, row.RequestedAt, err
}

func (t tx) Record(ctx context.Context, e audit.Entry) error { return audit.Insert(ctx, t.tx, e) }

func (t tx) Publish(ctx context.Context, accountID string, events ...*eventv1.Event) error {
	return outbox.Insert(ctx, t.tx, outbox.Message{Topic: kafka.AccountsTopic, Key: accountID, Events: events})
}

// stored converts the result of a query for one account.
func stored(r db.Account, err error) (account.Account, error) {
	return account.Account{
		ID: r.ID, Email: r.Email, EmailVerifiedAt: time.Time(r.EmailVerifiedAt), CreatedAt: r.CreatedAt,
		PasswordHash: r.PasswordHash, PasswordGeneration: r.PasswordGeneration, ResetSentAt: time.Time(r.ResetSentAt),
		APIKey: account.APIKeyRecord{Lookup: r.APIKeyLookup, Hash: r.APIKeyHash},
		Entitlement: access.Entitlement{
			Tier: r.Tier, Status: r.Status, ValidUntil: time.Time(r.ValidUntil), Trial: r.Trial, Version: r.EntitlementVersion,
		},
		TrialEndsAt: time.Time(r.TrialEndsAt), HasUsedTrial: r.HasUsedTrial,
		Verification: account.Verification{
			Cycle: r.VerifyCycle, CycleStartedAt: r.VerifyStartedAt, Resends: r.VerifyResends, ResentAt: time.Time(r.VerifyResentAt),
		},
		PaymentCustomerID: string(r.PaymentCustomerID),
	}, err
}

// conn is a connection that says account.ErrNotFound where a row is missing.
type conn struct{ db.DBTX }

func (c conn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return row{c.DBTX.QueryRow(ctx, sql, args...)}
}

type row struct{ pgx.Row }

func (r row) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return account.ErrNotFound
	}
	return err
}

// found returns account.ErrNotFound if a statement affected no row.
func found(rows int64, err error) error {
	if err == nil && rows == 0 {
		return fmt.Errorf("%w: no row", account.ErrNotFound)
	}
	return err
}
