// Package domains verifies the domains that owners send from.
package domains

import (
	"context"
	"crypto/rsa"
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
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/telemetry"
)

// State is the state of a claim on a sending domain:
//
//	        records found            records missing
//	pending ──────────────► verified ──────────────► pending
//	   │ not found within 72 h
//	   └──────────────► failed ─── claimed again ──► pending
type State string

// The states.
const (
	Pending  State = "pending"
	Verified State = "verified"
	Failed   State = "failed"
)

const (
	// patience is how long a claim waits for its records.
	patience = 72 * time.Hour
	// maxDomains limits an owner's claims, because each is checked regularly.
	maxDomains = 100
	// maxName is in code points of the name as entered, before its conversion to ASCII.
	maxName = 253

	// dueAtOnce is how many due claims one round checks, checksAtOnce how many of them at the
	// same time.
	dueAtOnce    = 20
	checksAtOnce = 4
	// poll is how often Run looks for due claims.
	poll = 10 * time.Second
	// checkTimeout limits one check.
	checkTimeout = 15 * time.Second
)

// Record is a DNS record for the owner of a domain to publish.
type Record struct {
	Type string `json:"type"`
	// Name is the full name, without the trailing dot.
	Name    string `json:"name"`
	Value   string `json:"value"`
	Purpose string `json:"purpose"`
	// TTL is in seconds.
	TTL int `json:"ttl"`
	// Proof marks the records that must be published to verify the claim.
	Proof bool `json:"proof"`
}

// DKIM is a key for signing mails from a domain (RFC 6376).
type DKIM struct {
	Domain, Selector string
	Key              *rsa.PrivateKey
}

// Domain is an owner's claim on a sending domain.
type Domain struct {
	// ID is a UUIDv7, OwnerID an account id, Name a result of emailaddr.ParseDomain.
	ID      string
	OwnerID string
	Name    string
	State   State
	// Since is when the claim entered State.
	Since     time.Time
	CreatedAt time.Time
	Claim
}

// Claim is what a Prover sets up for a domain.
type Claim struct {
	Records []Record
	// Key signs the domain's mails; it is nil if the mail provider signs them.
	Key *DKIM
	// ExternalID is the domain's id at the mail provider, or empty if the provider does not
	// know the domain.
	ExternalID string
	// Registered is set if this claim registered the domain with the provider. The provider
	// then forgets the domain when the claim is deleted.
	Registered bool
}

// next returns the state after a check of d that finished at now. d must not have failed.
func (d Domain) next(proven bool, now time.Time) State {
	switch {
	case proven:
		return Verified
	case d.State == Pending && now.Sub(d.Since) >= patience:
		return Failed
	}
	return Pending
}

// Prover verifies claims on domains.
type Prover interface {
	// Method names the way of verification. Claims made by another method are invisible.
	Method() string
	// Begin sets up a claim on a domain.
	Begin(ctx context.Context, domain string) (Claim, error)
	// Proven checks whether the records are published. The error wraps ErrNoAnswer if DNS does
	// not answer, and is EXTERNAL_SERVICE_ERROR if the mail provider does not.
	Proven(ctx context.Context, d Domain) (bool, error)
	// Release removes a domain from the mail provider. An unknown domain is not an error.
	Release(ctx context.Context, externalID string) error
}

// ErrNoAnswer means that no DNS server returned the records of a domain.
var ErrNoAnswer = errors.New("no DNS server returned the domain's records")

// Store stores claims. The error for a claim that is missing, or another owner's, is NOT_FOUND.
// InsertDomain and DeleteDomain write by, the entry of the audit trail, about the claim.
type Store interface {
	// InsertDomain stores a claim. If the owner already has a claim on the domain, that one is
	// returned instead. The error is AUTHENTICATION_REQUIRED if the owner's account is deleted.
	InsertDomain(ctx context.Context, d Domain, by audit.Entry) (Domain, error)
	Domain(ctx context.Context, ownerID, name string) (Domain, error)
	// Domains returns an owner's claims in order of creation, without records and keys.
	Domains(ctx context.Context, ownerID string) ([]Domain, error)
	// Taken reports whether another account has verified the domain.
	Taken(ctx context.Context, ownerID, name string) (bool, error)
	// MoveDomain changes a claim's state if it is still d.State, and returns the resulting
	// state. A claim on a domain that another account has verified keeps its state.
	MoveDomain(ctx context.Context, d Domain, to State, now time.Time) (State, error)
	// DeleteDomain deletes a claim. If the claim registered the domain with the mail provider
	// and there is no other claim on it, DeleteDomain calls release; the claim stays if that
	// fails.
	DeleteDomain(ctx context.Context, ownerID, name string, by audit.Entry, release func(externalID string) error) error
	// DueDomains returns up to limit claims that are due, and makes them due again after every.
	// Failed claims are never due.
	DueDomains(ctx context.Context, limit int, every time.Duration) ([]Domain, error)
	// ReleaseDomains calls release for up to limit domains of deleted accounts, until it fails.
	ReleaseDomains(ctx context.Context, limit int, release func(externalID string) error) error
}

// Config configures a Service.
type Config struct {
	Store  Store
	Prover Prover
	// Setups is how many claims are set up at a time; 0 means one, because making a DKIM key
	// takes a whole processor.
	Setups int
	// Own is the domain of the default sender, which no account can claim.
	Own string
	// EnforceVerification requires claimants to have a verified address.
	EnforceVerification bool
	// Every is how often each claim is checked.
	Every time.Duration
	Log   *slog.Logger
	Now   func() time.Time
}

// Service serves the owners of sending domains and checks their claims. Its methods check in the
// same order as those of package templates.
type Service struct {
	Config
	setup setup
}

// New returns a Service; Run checks the claims.
func New(cfg Config) *Service {
	return &Service{cfg, newSetup(max(cfg.Setups, 1))}
}

func newSetup(slots int) setup {
	return setup{slot: make(chan struct{}, slots), waiting: map[string]int{}}
}

const (
	// setupWait is how long a claim waits for its turn to be set up.
	setupWait = 3 * time.Second
	// setupEach is how many claims of one owner may wait or be set up at a time.
	setupEach = 4
)

// setup bounds the claims that a process sets up at a time: a DKIM key takes as long to
// make as two logins, and nothing interrupts that. One owner's claims leave room for
// other owners'.
type setup struct {
	slot    chan struct{}
	mu      sync.Mutex
	waiting map[string]int // by owner, including claims in a slot
}

// enter waits for the owner's turn. Call leave after it.
func (s *setup) enter(ctx context.Context, ownerID string) (leave func(), err error) {
	busy := apierr.New(apierr.RateLimited, "Too many domains are being set up. Please try again in a moment.").WithRetryAfter(time.Second)
	s.mu.Lock()
	full := s.waiting[ownerID] >= setupEach
	if !full {
		s.waiting[ownerID]++
	}
	s.mu.Unlock()
	if full {
		return nil, busy
	}
	done := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[ownerID]--; s.waiting[ownerID] == 0 {
			delete(s.waiting, ownerID)
		}
	}
	wait, cancel := context.WithTimeout(ctx, setupWait)
	defer cancel()
	select {
	case s.slot <- struct{}{}:
		return func() { <-s.slot; done() }, nil
	case <-wait.Done():
		done()
		return nil, busy
	}
}

// Verify claims a domain, or returns the existing claim; a failed claim becomes pending again. raw is
// the body of the request.
func (s *Service) Verify(ctx context.Context, actor access.Actor, accountEmail string, raw []byte) (Domain, error) {
	grant, err := actor.GrantByEmail(accountEmail)
	if err == nil && s.EnforceVerification && !actor.EmailVerified {
		err = apierr.New(apierr.EmailNotVerified, "Please verify your email address first.")
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
	name := strings.TrimSpace(o.RequiredString("domain", maxName))
	parsed, err := emailaddr.ParseDomain(name)
	if err != nil && !o.Failed("domain") {
		o.Fail("domain", "Enter a valid domain name.")
	}
	if err := o.Err(); err != nil {
		return Domain{}, err
	}
	if err := requireTier(grant); err != nil {
		return Domain{}, err
	}
	return s.claim(ctx, grant.OwnerID, parsed, audit.By(actor, grant.OwnerID, audit.DomainCreated, ""))
}

func (s *Service) claim(ctx context.Context, ownerID, name string, by audit.Entry) (Domain, error) {
	d, err := s.present(ctx, ownerID, name)
	if !apierr.Is(err, apierr.NotFound) {
		return d, err
	}
	leave, err := s.setup.enter(ctx, ownerID)
	if err != nil {
		return Domain{}, err
	}
	defer leave()
	// The claim ahead may have been for the same domain.
	d, err = s.present(ctx, ownerID, name)
	if !apierr.Is(err, apierr.NotFound) {
		return d, err
	}
	return s.begin(ctx, ownerID, name, by)
}

// present returns the owner's claim on a domain; a failed one becomes pending again.
func (s *Service) present(ctx context.Context, ownerID, name string) (Domain, error) {
	d, err := s.Store.Domain(ctx, ownerID, name)
	if err != nil || d.State != Failed {
		return d, err
	}
	if err := s.free(ctx, ownerID, name); err != nil {
		return Domain{}, err
	}
	d.State, err = s.Store.MoveDomain(ctx, d, Pending, s.Now())
	return d, err
}

// begin sets a new claim up.
func (s *Service) begin(ctx context.Context, ownerID, name string, by audit.Entry) (Domain, error) {
	if err := s.free(ctx, ownerID, name); err != nil {
		return Domain{}, err
	}
	// Concurrent requests may exceed the limit by a few.
	list, err := s.Store.Domains(ctx, ownerID)
	if err != nil {
		return Domain{}, err
	}
	if len(list) >= maxDomains {
		message := fmt.Sprintf("An account can have at most %d domains. Delete one first.", maxDomains)
		return Domain{}, apierr.Validation(apierr.Field{Field: "domain", Message: message})
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Domain{}, fmt.Errorf("create domain id: %w", err)
	}
	now := s.Now().UTC().Truncate(time.Millisecond)
	d := Domain{ID: id.String(), OwnerID: ownerID, Name: name, State: Pending, Since: now, CreatedAt: now}
	if d.Claim, err = s.Prover.Begin(ctx, name); err != nil {
		return Domain{}, fmt.Errorf("claim a domain: %w", err)
	}
	return s.Store.InsertDomain(ctx, d, by)
}

// free returns DUPLICATE if the domain belongs to somebody else.
func (s *Service) free(ctx context.Context, ownerID, name string) error {
	taken, err := s.Store.Taken(ctx, ownerID, name)
	if err == nil && (taken || name == s.Own) {
		err = apierr.New(apierr.Duplicate, "This domain is verified by another account.")
	}
	return err
}

// List returns an owner's domains in order of creation.
func (s *Service) List(ctx context.Context, actor access.Actor, accountEmail string) ([]Domain, error) {
	grant, err := s.reader(actor, accountEmail)
	if err != nil {
		return nil, err
	}
	return s.Store.Domains(ctx, grant.OwnerID)
}

// Status checks a domain's records now and returns the claim.
func (s *Service) Status(ctx context.Context, actor access.Actor, accountEmail, name string) (Domain, error) {
	grant, err := s.reader(actor, accountEmail)
	if err != nil {
		return Domain{}, err
	}
	if name, err = emailaddr.ParseDomain(name); err != nil {
		return Domain{}, ErrNotFound()
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

// Delete deletes a claim.
func (s *Service) Delete(ctx context.Context, actor access.Actor, accountEmail, name string) error {
	grant, err := actor.MemberGrant(accountEmail, s.Now())
	if err == nil {
		err = grant.RequireWrite()
	}
	if err == nil {
		err = requireTier(grant)
	}
	if err != nil {
		return err
	}
	if name, err = emailaddr.ParseDomain(name); err != nil {
		return ErrNotFound()
	}
	by := audit.By(actor, grant.OwnerID, audit.DomainDeleted, "")
	return s.Store.DeleteDomain(ctx, grant.OwnerID, name, by, func(id string) error { return s.Prover.Release(ctx, id) })
}

// check checks a domain's records and returns the resulting state. If the check fails, the state
// stays the same.
func (s *Service) check(ctx context.Context, d Domain) (State, error) {
	if d.State == Failed {
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

// Run checks due claims, and removes the domains of deleted accounts from the mail provider, until
// ctx is done.
func (s *Service) Run(ctx context.Context) error {
	for {
		n, err := s.Once(ctx)
		if err != nil && ctx.Err() == nil {
			s.Log.WarnContext(ctx, "sending domains not checked", telemetry.Err(err))
		}
		if (n < dueAtOnce || err != nil) && !loop.Wait(ctx, min(poll, s.Every)) {
			return nil
		}
	}
}

// Once checks some due claims and returns how many.
func (s *Service) Once(ctx context.Context) (int, error) {
	released := s.Store.ReleaseDomains(ctx, dueAtOnce, func(id string) error { return s.Prover.Release(ctx, id) })
	due, err := s.Store.DueDomains(ctx, dueAtOnce, s.Every)
	if err != nil {
		return 0, errors.Join(released, err)
	}
	for some := range slices.Chunk(due, checksAtOnce) {
		var wg sync.WaitGroup
		for _, d := range some {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, checkTimeout)
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

// ErrNotFound is the error for a domain that the owner has not claimed.
func ErrNotFound() error { return apierr.NotFoundf("There is no such domain.") }

// reader returns the actor's grant to read domains.
func (s *Service) reader(actor access.Actor, accountEmail string) (access.Grant, error) {
	grant, err := actor.MemberGrant(accountEmail, s.Now())
	if err == nil {
		err = requireTier(grant)
	}
	return grant, err
}

func requireTier(g access.Grant) error {
	return access.RequireTier(g.Entitlement, access.Pro, "A sending domain")
}
