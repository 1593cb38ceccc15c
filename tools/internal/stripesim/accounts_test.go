package stripesim_test

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

// accounts fakes the account service that billing calls. An API key is simply an account's id.
type accounts struct {
	accountv1.UnimplementedAccountServiceServer
	now func() time.Time
	// shown, if set, is called with every entitlement that takes effect.
	shown func(id string, e access.Entitlement)

	mu   sync.Mutex
	rows map[string]*account
	away int // how many calls of billing fail yet
}

type account struct {
	id, customer       string
	e                  access.Entitlement
	usedTrial, deleted bool
}

func newAccounts(now func() time.Time) *accounts {
	return &accounts{now: now, rows: map[string]*account{}}
}

func (a *accounts) add(id string, e access.Entitlement, usedTrial bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rows[id] = &account{id: id, e: e, usedTrial: usedTrial}
}

// get returns an account as stored.
func (a *accounts) get(id string) account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *a.rows[id]
}

func (a *accounts) remove(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rows[id].deleted = true
}

func (a *accounts) setAway(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = n
}

// row returns an account that is not deleted, or the injected failure. The caller holds the lock.
func (a *accounts) row(id string) (*account, error) {
	if a.away > 0 {
		a.away--
		return nil, apierr.New(apierr.InternalError, "The service is away.")
	}
	r, ok := a.rows[id]
	if !ok || r.deleted {
		return nil, apierr.NotFoundf("There is no such account.")
	}
	return r, nil
}

func (a *accounts) Authorize(_ context.Context, in *accountv1.AuthorizeRequest) (*accountv1.AuthorizeResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.rows[in.GetApiKey()]
	if !ok || r.deleted {
		return nil, apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")
	}
	actor := access.Actor{AccountID: r.id, Email: r.id + "@example.com", EmailVerified: true, APIKey: true, Grants: []access.Grant{
		{OwnerID: r.id, OwnerEmail: r.id + "@example.com", Role: access.Owner, Entitlement: r.e},
	}}
	return &accountv1.AuthorizeResponse{Actor: actor.Proto()}, nil
}

func (a *accounts) SetEntitlement(_ context.Context, in *accountv1.SetEntitlementRequest) (*accountv1.SetEntitlementResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, err := a.row(in.GetAccountId())
	if err != nil {
		return nil, err
	}
	if e := access.EntitlementFromProto(in.GetEntitlement()); e.Version > r.e.Version {
		r.e = e
		if a.shown != nil {
			a.shown(r.id, e)
		}
	}
	return &accountv1.SetEntitlementResponse{Entitlement: r.e.Proto()}, nil
}

func (a *accounts) StartTrial(_ context.Context, in *accountv1.StartTrialRequest) (*accountv1.StartTrialResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, err := a.row(in.GetAccountId())
	if err != nil {
		return nil, err
	}
	if r.usedTrial || r.e.At(a.now()).Status != access.Inactive {
		return nil, apierr.New(apierr.Conflict, "The trial was used already.")
	}
	r.usedTrial = true
	r.e = access.Entitlement{
		Tier: access.Pro, Status: access.Trialing, ValidUntil: a.now().Add(7 * 24 * time.Hour), Trial: true, Version: r.e.Version + 1,
	}
	return &accountv1.StartTrialResponse{Entitlement: r.e.Proto()}, nil
}

func (a *accounts) SetPaymentCustomer(
	_ context.Context, in *accountv1.SetPaymentCustomerRequest,
) (*accountv1.SetPaymentCustomerResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, err := a.row(in.GetAccountId())
	if err != nil {
		return nil, err
	}
	r.customer = in.GetCustomerId()
	return &accountv1.SetPaymentCustomerResponse{}, nil
}

// near serves the calls directly, without a network.
type near struct {
	// Billing calls no other method.
	accountv1.AccountServiceClient
	*accounts
}

func (n near) Authorize(ctx context.Context, in *accountv1.AuthorizeRequest, _ ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	return n.accounts.Authorize(ctx, in)
}

func (n near) SetEntitlement(
	ctx context.Context, in *accountv1.SetEntitlementRequest, _ ...grpc.CallOption,
) (*accountv1.SetEntitlementResponse, error) {
	return n.accounts.SetEntitlement(ctx, in)
}

func (n near) StartTrial(
	ctx context.Context, in *accountv1.StartTrialRequest, _ ...grpc.CallOption,
) (*accountv1.StartTrialResponse, error) {
	return n.accounts.StartTrial(ctx, in)
}

func (n near) SetPaymentCustomer(
	ctx context.Context, in *accountv1.SetPaymentCustomerRequest, _ ...grpc.CallOption,
) (*accountv1.SetPaymentCustomerResponse, error) {
	return n.accounts.SetPaymentCustomer(ctx, in)
}
