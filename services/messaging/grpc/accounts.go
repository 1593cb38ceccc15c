package grpc

import (
	"context"
	"time"

	"waitlist.internal/libs/access"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/messaging"
)

// Accounts implements messaging.Accounts.
type Accounts struct {
	client accountv1.AccountServiceClient
	now    func() time.Time
}

// NewAccounts returns Accounts over a client.
func NewAccounts(client accountv1.AccountServiceClient, now func() time.Time) *Accounts {
	return &Accounts{client, now}
}

// Account implements messaging.Accounts.
func (a *Accounts) Account(ctx context.Context, id string) (messaging.Account, error) {
	r, err := a.client.GetAccount(ctx, &accountv1.GetAccountRequest{AccountId: id})
	if err != nil {
		return messaging.Account{}, err
	}
	return messaging.Account{
		Verified: r.GetEmailVerified(), Trial: access.EntitlementFromProto(r.GetEntitlement()).At(a.now()).Status == access.Trialing,
	}, nil
}
