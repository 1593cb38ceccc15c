package account

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"waitlist.internal/libs/apierr"
)

// The limits on wrong passwords. They hold for addresses without an account
// too, so that an answer does not tell which is which.
const (
	// FailureWindow is how long a failure counts.
	FailureWindow = 15 * time.Minute
	// PairLimit failures for one account from one network address lock the
	// two of them.
	PairLimit = 10
	// AddressLimit failures from one network address lock it.
	AddressLimit = 100

	// slowAfter failures for one account from elsewhere slow its answers. They
	// lock nothing: else a stranger could lock the owner out.
	slowAfter = 10
	slowStep  = 50 * time.Millisecond
	slowMax   = 2 * time.Second
	// CountedElsewhere is where slowMax is reached, so that nobody need count
	// further.
	CountedElsewhere = slowAfter + int(slowMax/slowStep)
)

// Attempt is a login attempt as failures are counted: keyed hashes of the
// e-mail address and of the network address.
type Attempt struct{ Account, Address []byte }

// Failures are those within the window that concern an attempt.
type Failures struct {
	// Pair is the time of the PairLimit-th newest failure of the account from
	// the address, Address that of the AddressLimit-th newest from the address;
	// zero where there are fewer.
	Pair, Address time.Time
	// Elsewhere counts the account's failures from other addresses.
	Elsewhere int
}

func (s *Service) attempt(email, clientIP string) Attempt {
	return Attempt{
		Account: s.addressHash("login account", email),
		Address: s.addressHash("login address", network(clientIP)),
	}
}

// network is the part of a client's address that one client does not choose
// freely: an IPv4 address, or the /64 of an IPv6 address.
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

// admit returns RATE_LIMITED where an attempt comes after too many failures,
// else how long its answer is to be held back.
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
		return 0, apierr.New(apierr.RateLimited, "Too many failed logins. Please try again later.").
			WithRetryAfter(max(last.Add(FailureWindow).Sub(now), time.Second))
	}
	if f.Elsewhere <= slowAfter {
		return 0, nil
	}
	return min(time.Duration(f.Elsewhere-slowAfter)*slowStep, slowMax), nil
}
