package grpc

import (
	"context"
	"time"

	"waitlist.internal/libs/access"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	"waitlist.internal/services/messaging/mails"
)

// Accounts implements mails.Accounts.
type Accounts struct {
	client accountv1.AccountServiceClient
	now    func() time.Time
}

// NewAccounts returns Accounts over a client.
func NewAccounts(client accountv1.AccountServiceClient, now func() time.Time) *Accounts {
	return &Accounts{client, now}
}

// Account implements mails.Accounts.
func (a *Accounts) Account(ctx context.Context, id string) (mails.Account, error) {
	r, err := a.client.GetAccount(ctx, &accountv1.GetAccountRequest{AccountId: id})
	if err != nil {
		return mails.Account{}, err
	}
	return mails.Account{
		Verified: r.GetEmailVerified(), Trial: access.EntitlementFromProto(r.GetEntitlement()).At(a.now()).Status == access.Trialing,
	}, nil
}
