package messaging

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

// DomainState is where a claim on a sending domain is:
//
//	        records there              records gone
//	pending ──────────────► verified ──────────────► pending
//	   │ 72 h without them
//	   └──────────────► failed ─── claimed again ──► pending
type DomainState string

// The states.
const (
	DomainPending  DomainState = "pending"
	DomainVerified DomainState = "verified"
	DomainFailed   DomainState = "failed"
)

const (
	// domainPatience is how long a claim waits for its records.
	domainPatience = 72 * time.Hour
	// maxDomains bounds an owner's claims: each is looked up again and again.
	maxDomains = 100
	// maxDomainName is in code points of what is sent, which may be a name in other
	// letters.
	maxDomainName = 253

	// dueDomains is how many claims are looked at in one go, domainChecks how many of
	// them at a time.
	dueDomains   = 20
	domainChecks = 4
	// domainPoll finds claims that are due.
	domainPoll = 10 * time.Second
	// domainCheckTimeout bounds one look.
	domainCheckTimeout = 15 * time.Second
)

// Record is a DNS record that a domain's owner is to set.
type Record struct {
	Type string `json:"type"`
	// Name is the full name, without the last dot.
	Name    string `json:"name"`
	Value   string `json:"value"`
	Purpose string `json:"purpose"`
	// TTL is in seconds.
	TTL int `json:"ttl"`
	// Proof is set where the claim is proven by this record's being there.
	Proof bool `json:"proof"`
}

// Domain is an owner's claim on a sending domain.
type Domain struct {
	// ID is a UUIDv7, OwnerID an account's id, Name as emailaddr.ParseDomain has it.
	ID      string
	OwnerID string
	Name    string
	State   DomainState
	// Since is when it came into State.
	Since     time.Time
	CreatedAt time.Time
	Claim
}

// Claim is what a Prover makes for a domain.
type Claim struct {
	Records []Record
	// Key signs the domain's mails; nil where the mail provider does.
	Key *DKIM
	// ExternalID is the domain's id at the mail provider; empty: it does not know the
	// domain.
	ExternalID string
	// Registered is set where the provider came to know the domain by this claim, and is
	// to forget it with the claim.
	Registered bool
}

// next is the state after a look at d that came to an end at now; d has not
// failed.
func (d Domain) next(proven bool, now time.Time) DomainState {
	switch {
	case proven:
		return DomainVerified
	case d.State == DomainPending && now.Sub(d.Since) >= domainPatience:
		return DomainFailed
	}
	return DomainPending
}

// Prover knows how domains are proven to be somebody's.
type Prover interface {
	// Method names the way. Claims that were made in another are out of sight.
	Method() string
	// Begin makes what a claim on a domain needs.
	Begin(ctx context.Context, domain string) (Claim, error)
	// Proven looks whether the records are there. ErrNoAnswer says that nobody could
	// tell; EXTERNAL_SERVICE_ERROR that the mail provider is away.
	Proven(ctx context.Context, d Domain) (bool, error)
	// Release has the mail provider forget a domain; one that it does not know is no
	// error.
	Release(ctx context.Context, externalID string) error
}

// ErrNoAnswer says that a domain's servers, or those on the way to them, did not
// say what its records are.
var ErrNoAnswer = errors.New("no answer about the domain's records")

// DomainStore keeps claims. One that is missing, or another owner's, is
// NOT_FOUND.
type DomainStore interface {
	// InsertDomain stores a claim; where the owner has one on that domain already it is
	// returned in its place. An owner whose account has gone gets
	// AUTHENTICATION_REQUIRED.
	InsertDomain(ctx context.Context, d Domain) (Domain, error)
	Domain(ctx context.Context, ownerID, name string) (Domain, error)
	// Domains returns an owner's in order of creation, without keys.
	Domains(ctx context.Context, ownerID string) ([]Domain, error)
	// Taken reports whether another account has verified the domain.
	Taken(ctx context.Context, ownerID, name string) (bool, error)
	// MoveDomain changes a claim's state if it still is in the state that d has, and
	// returns the state it is in then. What another account has verified stays as it is.
	MoveDomain(ctx context.Context, d Domain, to DomainState, now time.Time) (DomainState, error)
	// DeleteDomain deletes a claim. Where nobody else has claimed what the mail provider
	// knows by it, release is called before; its error keeps the claim.
	DeleteDomain(ctx context.Context, ownerID, name string, release func(externalID string) error) error
	// DueDomains returns up to limit claims that were not looked at for a time, and
	// counts them as looked at. Failed ones are never due.
	DueDomains(ctx context.Context, limit int, every time.Duration) ([]Domain, error)
	// ReleaseDomains calls release for domains of accounts that have gone, and forgets
	// those for which it returns nil.
	ReleaseDomains(ctx context.Context, limit int, release func(externalID string) error) error
}

// DomainsConfig is what Domains works with.
type DomainsConfig struct {
	Store  DomainStore
	Prover Prover
	// Own is the domain of the default sender, which is nobody's to claim.
	Own string
	// EnforceVerification asks for a verified address of who claims a domain.
	EnforceVerification bool
	// Every is how often each claim is looked at.
	Every time.Duration
	Log   *slog.Logger
	Now   func() time.Time
}

// Domains is the owners' side of sending domains, and looks after them. Its
// methods decide in the contract's order, as those of Templates do.
type Domains struct{ DomainsConfig }

// NewDomains returns the owners' side; Run looks after the claims.
func NewDomains(cfg DomainsConfig) *Domains { return &Domains{cfg} }

// Verify claims a domain, or finds the claim that there is; a failed one waits
// for its records once more. raw is the request's body.
func (s *Domains) Verify(ctx context.Context, actor access.Actor, accountEmail string, raw []byte) (Domain, error) {
	grant, err := choose(actor, accountEmail)
	if err == nil && s.EnforceVerification && !actor.EmailVerified {
		err = apierr.New(apierr.EmailNotVerified, "Please verify your e-mail address first.")
	}
	if err == nil {
		err = actor.MemberGate(grant, s.Now())
	}
	if err == nil {
		err = grant.RequireWrite()
	}
	if err != nil {
		return Domain{}, err
	}
	o, err := body.Parse(raw)
	if err != nil {
		return Domain{}, err
	}
	name := strings.TrimSpace(o.RequiredString("domain", maxDomainName))
	parsed, err := emailaddr.ParseDomain(name)
	if err != nil && !o.Failed("domain") {
		o.Fail("domain", "must be a domain")
	}
	if err := o.Err(); err != nil {
		return Domain{}, err
	}
	if err := requireDomains(grant); err != nil {
		return Domain{}, err
	}
	return s.claim(ctx, grant.OwnerID, parsed)
}

func (s *Domains) claim(ctx context.Context, ownerID, name string) (Domain, error) {
	d, err := s.Store.Domain(ctx, ownerID, name)
	switch {
	case err == nil && d.State == DomainFailed:
		if err := s.free(ctx, ownerID, name); err != nil {
			return Domain{}, err
		}
		d.State, err = s.Store.MoveDomain(ctx, d, DomainPending, s.Now())
		return d, err
	case err == nil:
		return d, nil
	case !apierr.Is(err, apierr.NotFound):
		return Domain{}, err
	}
	if err := s.free(ctx, ownerID, name); err != nil {
		return Domain{}, err
	}
	// Several at a time may exceed it by a few.
	list, err := s.Store.Domains(ctx, ownerID)
	if err != nil {
		return Domain{}, err
	}
	if len(list) >= maxDomains {
		return Domain{}, apierr.Validation(apierr.Field{Field: "domain", Message: fmt.Sprintf("An account may have %d domains.", maxDomains)})
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Domain{}, fmt.Errorf("new domain id: %w", err)
	}
	now := s.Now().UTC().Truncate(time.Millisecond)
	d = Domain{ID: id.String(), OwnerID: ownerID, Name: name, State: DomainPending, Since: now, CreatedAt: now}
	if d.Claim, err = s.Prover.Begin(ctx, name); err != nil {
		return Domain{}, fmt.Errorf("claim a domain: %w", err)
	}
	return s.Store.InsertDomain(ctx, d)
}

// free returns DUPLICATE where the domain is somebody else's.
func (s *Domains) free(ctx context.Context, ownerID, name string) error {
	taken, err := s.Store.Taken(ctx, ownerID, name)
	if err == nil && (taken || name == s.Own) {
		err = apierr.New(apierr.Duplicate, "This domain is verified by another account.")
	}
	return err
}

// List returns an owner's domains in order of creation.
func (s *Domains) List(ctx context.Context, actor access.Actor, accountEmail string) ([]Domain, error) {
	grant, err := s.reader(actor, accountEmail)
	if err != nil {
		return nil, err
	}
	return s.Store.Domains(ctx, grant.OwnerID)
}

// Status looks at a domain's records now and returns its state.
func (s *Domains) Status(ctx context.Context, actor access.Actor, accountEmail, name string) (Domain, error) {
	grant, err := s.reader(actor, accountEmail)
	if err != nil {
		return Domain{}, err
	}
	if name, err = emailaddr.ParseDomain(name); err != nil {
		return Domain{}, ErrNoDomain()
	}
	d, err := s.Store.Domain(ctx, grant.OwnerID, name)
	if err != nil {
		return Domain{}, err
	}
	d.State, err = s.check(ctx, d)
	if errors.Is(err, ErrNoAnswer) {
		s.Log.WarnContext(ctx, "domain not checked", telemetry.Err(err))
		err = nil
	}
	return d, err
}

// Delete gives a claim up.
func (s *Domains) Delete(ctx context.Context, actor access.Actor, accountEmail, name string) error {
	grant, err := workFor(actor, accountEmail, s.Now())
	if err == nil {
		err = grant.RequireWrite()
	}
	if err == nil {
		err = requireDomains(grant)
	}
	if err != nil {
		return err
	}
	if name, err = emailaddr.ParseDomain(name); err != nil {
		return ErrNoDomain()
	}
	return s.Store.DeleteDomain(ctx, grant.OwnerID, name, func(externalID string) error { return s.Prover.Release(ctx, externalID) })
}

// check looks at a domain's records and returns the state after that. Without an
// answer it is the one before, and the error says why.
func (s *Domains) check(ctx context.Context, d Domain) (DomainState, error) {
	if d.State == DomainFailed {
		return d.State, nil
	}
	proven, err := s.Prover.Proven(ctx, d)
	if err != nil {
		return d.State, err
	}
	now := s.Now()
	to := d.next(proven, now)
	if to == d.State {
		return to, nil
	}
	return s.Store.MoveDomain(ctx, d, to, now)
}

// Run looks at the claims that are due, and has the mail provider forget what
// went with its account, until ctx is done.
func (s *Domains) Run(ctx context.Context) error {
	for {
		n, err := s.Once(ctx)
		if err != nil && ctx.Err() == nil {
			s.Log.WarnContext(ctx, "sending domains not looked after", telemetry.Err(err))
		}
		if (n < dueDomains || err != nil) && !loop.Wait(ctx, min(domainPoll, s.Every)) {
			return nil
		}
	}
}

// Once looks at some claims that are due and returns how many they were.
func (s *Domains) Once(ctx context.Context) (int, error) {
	released := s.Store.ReleaseDomains(ctx, dueDomains, func(externalID string) error { return s.Prover.Release(ctx, externalID) })
	due, err := s.Store.DueDomains(ctx, dueDomains, s.Every)
	if err != nil {
		return 0, errors.Join(released, err)
	}
	for some := range slices.Chunk(due, domainChecks) {
		var wg sync.WaitGroup
		for _, d := range some {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, domainCheckTimeout)
				defer cancel()
				if _, err := s.check(ctx, d); err != nil {
					s.Log.WarnContext(ctx, "domain not checked", slog.String("domain_id", d.ID), telemetry.Err(err))
				}
			})
		}
		wg.Wait()
	}
	return len(due), released
}

// ErrNoDomain is the answer where there is no such domain.
func ErrNoDomain() error { return apierr.NotFoundf("There is no such domain.") }

// reader returns the actor's grant to see domains.
func (s *Domains) reader(actor access.Actor, accountEmail string) (access.Grant, error) {
	grant, err := workFor(actor, accountEmail, s.Now())
	if err == nil {
		err = requireDomains(grant)
	}
	return grant, err
}

func requireDomains(g access.Grant) error {
	return access.RequireTier(g.Entitlement, access.Pro, "A sending domain")
}
