// Package account is the domain of accounts, credentials and entitlements.
//
//	register.go      registration and the trial that starts with it
//	login.go         login, refresh and logout
//	session.go       the list of sessions; a new password
//	password.go      argon2id hashing with bounded concurrency
//	bruteforce.go    limits on failed logins
//	idtoken.go       ID tokens (JWT, ES256) and their key ring
//	apikey.go        API keys
//	authorize.go     credential → actor, for every request to the platform
//	verification.go  email verification
//	reset.go         password reset
//	entitlement.go   tiers, statuses, trials; the profile
//	trial.go         reminders that a trial is about to end
//	team.go          team members
//	deletion.go      account deletion
//	events.go        events for other services
//	audit.go         who did what in the account
//
// The package depends on no transport and no database. Package postgres
// implements Store, and the tests run against it.
package account

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/token"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// Name is the service's name in identities, logs and metrics, and the name of its
// schema and consumer group.
const Name = "account"

// ErrNotFound means that the Store has no such row.
var ErrNotFound = errors.New("account: not found")

// Account is one stored account.
type Account struct {
	// ID is a UUIDv7.
	ID string
	// Email is unique and normalized by package emailaddr.
	Email string
	// EmailVerifiedAt is zero until the address is verified.
	EmailVerifiedAt time.Time
	// PasswordHash is an argon2id PHC string.
	PasswordHash string
	// PasswordGeneration increases with each new password. Reset tokens are bound
	// to it.
	PasswordGeneration int64
	APIKey             APIKeyRecord
	// Entitlement is as stored; see access.Entitlement.At.
	Entitlement access.Entitlement
	// TrialEndsAt remains set after the trial. It is zero if there was none.
	TrialEndsAt  time.Time
	HasUsedTrial bool
	// PaymentCustomerID is the account's customer at the payment provider. It is
	// empty before the first checkout.
	PaymentCustomerID string
	Verification      Verification
	// ResetSentAt is when the last reset mail was requested; zero if never.
	ResetSentAt time.Time
	CreatedAt   time.Time
}

// Session is one login and the refresh tokens derived from it.
type Session struct {
	ID        string
	AccountID string
	CreatedAt time.Time
	// LastUsedAt is the time of the last refresh, or of the login.
	LastUsedAt time.Time
	// ExpiresAt is extended by each refresh, up to MaxSession after the login.
	ExpiresAt time.Time
	// UserAgent is the header of the login, at most MaxUserAgent bytes.
	UserAgent string
}

// TrialEnding is a trial that is about to end. Its owner gets a reminder at a verified address.
type TrialEnding struct {
	AccountID, Email string
	Verified         bool
	EndsAt           time.Time
}

// Store persists accounts: what each file needs of it stands there. Each method is one
// statement that uses an index, and returns ErrNotFound if its row is missing.
type Store interface {
	// InTx runs fn in a transaction and retries it after a serialization conflict.
	// Events that fn publishes commit with the transaction.
	InTx(ctx context.Context, fn func(Tx) error) error
	// AccountByEmail takes a normalized address.
	AccountByEmail(ctx context.Context, email string) (Account, error)
	Account(ctx context.Context, id string) (Account, error)
	actorStore
	failureStore
	sessionStore
	resetStore
	memberStore
	closingStore
}

// Tx is a transaction of a Store.
type Tx interface {
	accountTx
	sessionTx
	trialTx
	resetTx
	memberTx
	failureTx
	// Record writes an entry of the audit trail. Call it last; see audit.Insert.
	Record(ctx context.Context, e audit.Entry) error
	// Publish sends events about one account when the transaction commits.
	Publish(ctx context.Context, accountID string, events ...*eventv1.Event) error
}

// accountTx reads and writes accounts.
type accountTx interface {
	// InsertAccount returns ErrEmailTaken if the address has an account.
	InsertAccount(ctx context.Context, a Account) error
	// LockAccount reads an account and locks its row.
	LockAccount(ctx context.Context, id string) (Account, error)
	// LockAccountByEmail is LockAccount for a normalized address.
	LockAccountByEmail(ctx context.Context, email string) (Account, error)
	// UpdateAccount stores what has changed of a locked account. Its id, address and
	// time of registration never do.
	UpdateAccount(ctx context.Context, a Account) error
	// DeleteAccount deletes an account with its credentials and memberships, and
	// inserts a closing that is due at dueAt.
	DeleteAccount(ctx context.Context, a Account, dueAt time.Time) error
}

// OwnerCloser hides all waitlists of an account. It is idempotent.
type OwnerCloser interface {
	CloseOwner(ctx context.Context, accountID string) error
}

// Config configures a Service.
type Config struct {
	Store Store
	Owner OwnerCloser
	// Trails are the parts of the audit trail: the account service's own and other services'.
	Trails []audit.Trail
	// Tokens verifies the tokens in mail links.
	Tokens *token.Ring
	// Keys signs and verifies ID tokens.
	Keys *Keys
	// Issuer and Audience are the iss and aud claims of ID tokens.
	Issuer, Audience string
	IDTokenTTL       time.Duration
	// RefreshTokenTTL is how long a session lasts without a refresh.
	RefreshTokenTTL time.Duration
	TrialDuration   time.Duration
	// EnforceVerification requires a verified address for invitations.
	EnforceVerification bool
	// TrialPerPerson gives one trial to all addresses that emailaddr.Person takes for
	// one person's.
	TrialPerPerson bool
	// RefuseCommonPasswords also refuses new passwords that are common or equal the address.
	RefuseCommonPasswords bool
	// MaxMembers is how many members a team may have.
	MaxMembers int
	// AddressKey keys the hashes that outlive addresses. Do not rotate it: with
	// another key, every address gets a second trial.
	AddressKey []byte
	// HashConcurrency bounds concurrent password hashing. Each hash takes 19 MiB
	// and one core.
	HashConcurrency int
	// HashPatience bounds how long a request waits to hash a password. It then gets
	// RATE_LIMITED, as it does when its deadline ends the wait.
	HashPatience time.Duration
	Logger       *slog.Logger
	// Checked, if set, is called after each check of a password with its outcome: accepted,
	// refused, locked after too many failures, or busy if its turn to hash never came.
	Checked func(outcome string)
	// Now is the clock.
	Now func() time.Time
	// Wait waits for d and reports whether ctx is still alive, as loop.Wait does.
	Wait func(ctx context.Context, d time.Duration) bool
}

// Service implements the use cases of accounts. It is safe for concurrent use.
type Service struct {
	Config
	passwords *passwords
	// resets wakes RunResets after a commit.
	resets loop.Signal
}

// New returns a Service.
func New(cfg Config) *Service {
	return &Service{Config: cfg, passwords: newPasswords(cfg.HashConcurrency, cfg.HashPatience), resets: loop.NewSignal()}
}

// now returns the time in UTC, truncated to the milliseconds that the API shows.
func (s *Service) now() time.Time { return s.Now().UTC().Truncate(time.Millisecond) }

// work calls do at once, after each wake and after each pause, until ctx is done. It
// calls do again without a pause while do reports more.
func (s *Service) work(
	ctx context.Context, name string, wake loop.Signal, pause time.Duration, do func(context.Context) (bool, error),
) error {
	return loop.Job{Name: name, Every: pause, Wake: wake, Log: s.Logger, Do: do}.Run(ctx)
}
