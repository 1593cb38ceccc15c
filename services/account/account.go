// Package account is the domain of accounts: who exists, how they prove who
// they are, and what they may use.
//
//	register.go      a new account with its trial
//	login.go         passwords in, tokens out; refresh, logout
//	password.go      argon2id, a bounded number at once
//	bruteforce.go    how many wrong passwords are too many
//	idtoken.go       ID tokens (JWT, ES256) and their key ring
//	apikey.go        API keys
//	authorize.go     credential → actor, for every request of the suite
//	verification.go  proving the e-mail address
//	reset.go         a forgotten password
//	entitlement.go   tiers, statuses, trials; the profile
//	trial.go         telling people that their trial ends
//	team.go          who else may act for an account
//	deletion.go      the end of an account
//	events.go        what other services learn of it
//
// The package knows no transport and no database. Its Store is implemented by
// package postgres, against which the tests run.
package account

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/token"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// ErrNotFound is what a Store answers where there is no such row.
var ErrNotFound = errors.New("account: not found")

// Account is one stored account.
type Account struct {
	// ID is a UUIDv7.
	ID string
	// Email is normalised as by package emailaddr, and unique.
	Email string
	// EmailVerifiedAt is zero until the address is proven.
	EmailVerifiedAt time.Time
	// PasswordHash is an argon2id PHC string.
	PasswordHash string
	// PasswordGeneration counts the passwords. Reset tokens are bound to it.
	PasswordGeneration int64
	// APIKey finds and checks the API key.
	APIKey APIKeyRecord
	// Entitlement is as stored; see access.Entitlement.At.
	Entitlement access.Entitlement
	// TrialEndsAt stays when the trial is over; zero where there never was one.
	TrialEndsAt  time.Time
	HasUsedTrial bool
	// PaymentCustomerID is who the account is at the payment provider; empty:
	// nobody yet.
	PaymentCustomerID string
	Verification      Verification
	// ResetSentAt is when the last password reset was mailed; zero: never.
	ResetSentAt time.Time
	CreatedAt   time.Time
}

// Session is one login: the family of refresh tokens that descends from it.
type Session struct {
	ID        string
	AccountID string
	// ExpiresAt moves on with each refresh.
	ExpiresAt time.Time
}

// TrialEnding is a trial about whose end its owner is told.
type TrialEnding struct {
	AccountID, Email string
	EndsAt           time.Time
}

// Store keeps accounts. Its methods are single statements, each on an index.
// Where a row is missing they return ErrNotFound.
type Store interface {
	// InTx runs fn in one transaction, again when Postgres gave it up for a
	// conflict. What fn publishes is committed with it.
	InTx(ctx context.Context, fn func(Tx) error) error

	// AccountByEmail finds by normalised address.
	AccountByEmail(ctx context.Context, email string) (Account, error)
	// Account finds by id.
	Account(ctx context.Context, id string) (Account, error)
	// ActorBySession returns the actor behind a session of this account that
	// has not ended at now.
	ActorBySession(ctx context.Context, sessionID, accountID string, now time.Time) (access.Actor, error)
	// ActorByAPIKey returns the actor whose API key has this lookup part, and
	// the hash that the key must have.
	ActorByAPIKey(ctx context.Context, lookup string) (access.Actor, []byte, error)
	// SetAPIKey replaces the API key.
	SetAPIKey(ctx context.Context, accountID string, key APIKeyRecord) error
	// SetPasswordHash stores another hash of the same password.
	SetPasswordHash(ctx context.Context, accountID string, generation int64, hash string) error

	// LoginFailures tells the failures after since that concern an attempt.
	LoginFailures(ctx context.Context, a Attempt, since time.Time) (Failures, error)
	AddLoginFailure(ctx context.Context, a Attempt, at time.Time) error

	// QueueReset remembers a wish to reset the password of whoever has this
	// address, if anybody.
	QueueReset(ctx context.Context, email string, at time.Time) error

	// Members returns the team of an account in order of invitation.
	Members(ctx context.Context, ownerID string) ([]Member, error)
	DeleteMember(ctx context.Context, ownerID, email string) error

	// DeleteSessionByToken ends the session that a refresh token belongs to.
	DeleteSessionByToken(ctx context.Context, tokenHash []byte) error

	// TakeClosing claims one closing that is due, until retryAt, and returns
	// the deleted account's id.
	TakeClosing(ctx context.Context, now, retryAt time.Time) (accountID string, err error)
	// DeleteClosing says that a closing is done.
	DeleteClosing(ctx context.Context, accountID string) error

	// Sweep deletes what has expired at now, a bounded number of rows at a
	// time, and reports whether there may be more.
	Sweep(ctx context.Context, now time.Time) (more bool, err error)
}

// Tx is what happens within a transaction.
type Tx interface {
	// UseTrial marks the trial of an address as used and reports whether it
	// was still unused.
	UseTrial(ctx context.Context, addressHash []byte, at time.Time) (bool, error)
	// InsertAccount returns ErrEmailTaken where the address has an account.
	InsertAccount(ctx context.Context, a Account) error
	// LockAccount reads an account and keeps others from changing it.
	LockAccount(ctx context.Context, id string) (Account, error)
	// LockAccountByEmail is LockAccount by normalised address.
	LockAccountByEmail(ctx context.Context, email string) (Account, error)
	// UpdateVerification stores the state of a locked account's verification.
	UpdateVerification(ctx context.Context, accountID string, verifiedAt time.Time, v Verification) error
	// SetPassword stores a new password of a locked account and begins the
	// next generation.
	SetPassword(ctx context.Context, accountID, hash string) error
	// SetResetSent remembers when a reset was mailed.
	SetResetSent(ctx context.Context, accountID string, at time.Time) error
	// SetEntitlement stores the entitlement of a locked account and what it
	// says of its trial.
	SetEntitlement(ctx context.Context, accountID string, e access.Entitlement, trialEndsAt time.Time, usedTrial bool) error
	// SetPaymentCustomer stores who a locked account is at the payment provider.
	SetPaymentCustomer(ctx context.Context, accountID, customerID string) error
	// TakeTrialEnding marks one trial that ends after now and not after until as
	// told of, the first that nobody else has. It leaves out those of accounts that
	// are to be younger than shortest at the trial's end.
	TakeTrialEnding(ctx context.Context, now, until time.Time, shortest time.Duration) (TrialEnding, error)
	// InsertMember returns ErrMemberExists where the address is in the team.
	InsertMember(ctx context.Context, ownerID string, m Member) error
	// CountInvitation counts one more invitation by a locked account at now and
	// returns how many there were in the window, and when it began. Windows that
	// began before oldest are over.
	CountInvitation(ctx context.Context, ownerID string, now, oldest time.Time) (n int, since time.Time, err error)
	// DeleteAccount removes an account with all its credentials and
	// memberships, and leaves a closing that is due at dueAt.
	DeleteAccount(ctx context.Context, a Account, dueAt time.Time) error

	// InsertSession begins a session of an account whose password generation
	// is still the given one, else ErrNotFound.
	InsertSession(ctx context.Context, s Session, generation int64, at time.Time) error
	// InsertRefreshToken adds the newest token of a session.
	InsertRefreshToken(ctx context.Context, sessionID string, hash []byte, at, expires time.Time) error
	// LockSessionByToken returns the session that a refresh token, spent or
	// not, belongs to, and keeps others from changing it.
	LockSessionByToken(ctx context.Context, tokenHash []byte) (Session, error)
	// SpendRefreshToken marks a token as used and reports whether it was still
	// good at now.
	SpendRefreshToken(ctx context.Context, hash []byte, now time.Time) (bool, error)
	// ExtendSession moves a session's end.
	ExtendSession(ctx context.Context, sessionID string, expires time.Time) error
	DeleteSession(ctx context.Context, sessionID string) error
	// DeleteSessions ends every session of an account.
	DeleteSessions(ctx context.Context, accountID string) error

	// TakeReset takes one queued wish, the oldest that nobody else has.
	TakeReset(ctx context.Context) (email string, at time.Time, err error)

	// Publish sends events about one account when the transaction commits.
	Publish(ctx context.Context, accountID string, events ...*eventv1.Event) error
}

// OwnerCloser makes everything of an account invisible in the service that
// holds the waitlists. Repeating it is harmless.
type OwnerCloser interface {
	CloseOwner(ctx context.Context, accountID string) error
}

// Config is what a Service is made of.
type Config struct {
	Store Store
	Owner OwnerCloser
	// Tokens checks the tokens of mail links.
	Tokens *token.Ring
	// Keys signs and checks ID tokens.
	Keys *Keys
	// Issuer and Audience are the iss and aud of ID tokens.
	Issuer, Audience string
	IDTokenTTL       time.Duration
	// RefreshTokenTTL is how long a session lives without a refresh.
	RefreshTokenTTL time.Duration
	TrialDuration   time.Duration
	// EnforceVerification asks for a verified address before an invitation.
	EnforceVerification bool
	// AddressKey is the key of the hashes that outlive addresses. It is never
	// rotated: another key forgets which addresses have had their trial.
	AddressKey []byte
	// HashConcurrency bounds the passwords hashed at once; each takes 19 MiB
	// and one core.
	HashConcurrency int
	// HashPatience is how long a request waits for its turn to hash; the end of
	// its context ends the wait too. RATE_LIMITED comes after it.
	HashPatience time.Duration
	Logger       *slog.Logger
	// Now is the clock.
	Now func() time.Time
	// Wait waits for d and reports whether ctx is still alive: loop.Wait.
	Wait func(ctx context.Context, d time.Duration) bool
}

// Service is every use case of accounts. It is safe for concurrent use.
type Service struct {
	Config
	passwords *passwords
	// resets wakes RunResets after a commit.
	resets loop.Signal
}

// New returns a Service.
func New(cfg Config) (*Service, error) {
	p, err := newPasswords(cfg.HashConcurrency, cfg.HashPatience)
	if err != nil {
		return nil, err
	}
	return &Service{Config: cfg, passwords: p, resets: loop.NewSignal()}, nil
}

// now is the clock in UTC, in the milliseconds that the interface shows.
func (s *Service) now() time.Time { return s.Now().UTC().Truncate(time.Millisecond) }

// work calls do at once, whenever wake says so, and after each pause until ctx is
// done. do returns whether there is more to do right away.
func (s *Service) work(ctx context.Context, name string, wake loop.Signal, pause time.Duration, do func(context.Context) (bool, error)) error {
	return loop.Job{Name: name, Every: pause, Wake: wake, Log: s.Logger, Do: do}.Run(ctx)
}
