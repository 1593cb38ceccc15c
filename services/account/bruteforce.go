package account

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"waitlist.internal/libs/apierr"
)

// The limits on failed logins. They also apply to addresses without an account, so
// that responses do not reveal which addresses have one.
const (
	// FailureWindow is how long a failure counts.
	FailureWindow = 15 * time.Minute
	// PairLimit failures lock an account for one network address.
	PairLimit = 10
	// AddressLimit failures lock a network address for all accounts.
	AddressLimit = 100

	// More than slowAfter failures from other network addresses delay an account's
	// logins, by slowStep each up to slowMax. They do not lock the account, because
	// a stranger could then lock out its owner.
	slowAfter = 10
	slowStep  = 50 * time.Millisecond
	slowMax   = 2 * time.Second
	// CountedElsewhere is the number of failures that reaches slowMax. Counting
	// stops there.
	CountedElsewhere = slowAfter + int(slowMax/slowStep)
)

// errLocked is the cause of a refusal before the password was compared.
var errLocked = errors.New("account: locked after failed logins")

// Attempt identifies a login attempt by keyed hashes of the email address and of
// the network address.
type Attempt struct{ Account, Address []byte }

// Failures are the failures within the window that apply to an attempt.
type Failures struct {
	// Pair is the time of the PairLimit-th newest failure for the account from the
	// network address. Address is the time of the AddressLimit-th newest failure
	// from the network address. Each is zero if there are fewer.
	Pair, Address time.Time
	// Elsewhere counts the account's failures from other network addresses.
	Elsewhere int
}

// failureStore counts failed logins.
type failureStore interface {
	// LoginFailures counts the failures after since that apply to an attempt.
	LoginFailures(ctx context.Context, a Attempt, since time.Time) (Failures, error)
}

// failureTx records failed logins.
type failureTx interface {
	// AddLoginFailure records a failure of the Attempt of an account from an address.
	AddLoginFailure(ctx context.Context, account, address []byte, at time.Time) error
	// HoldAccount delays the deletion of an account until the transaction ends. It takes
	// the same time for an empty id, which no account has.
	HoldAccount(ctx context.Context, id string) error
}

func (s *Service) attempt(email, clientIP string) Attempt {
	return Attempt{
		Account: s.addressHash("login account", email),
		Address: s.addressHash("login address", network(clientIP)),
	}
}

// network returns the part of a client's address that the client cannot vary: an
// IPv4 address or the /64 prefix of an IPv6 address.
func network(clientIP string) string {
	ip, err := netip.ParseAddr(clientIP)
	if err != nil {
		return clientIP
	}
	ip = ip.Unmap()
	if ip.Is4() {
		return ip.String()
	}
	p, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return clientIP
	}
	return p.String()
}

// admit returns RATE_LIMITED after too many failures, and otherwise how long to
// delay the attempt.
func (s *Service) admit(ctx context.Context, a Attempt) (time.Duration, error) {
	now := s.now()
	f, err := s.Store.LoginFailures(ctx, a, now.Add(-FailureWindow))
	if err != nil {
		return 0, fmt.Errorf("count login failures: %w", err)
	}
	last := f.Pair
	if f.Address.After(last) {
		last = f.Address
	}
	if !last.IsZero() {
		return 0, apierr.New(apierr.RateLimited, "Too many failed logins. Please try again later.").WithCause(errLocked).
			WithRetryAfter(max(last.Add(FailureWindow).Sub(now), time.Second))
	}
	if f.Elsewhere <= slowAfter {
		return 0, nil
	}
	return min(time.Duration(f.Elsewhere-slowAfter)*slowStep, slowMax), nil
}
