package grpc

import (
	"context"

	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

// Accounts implements owners.Accounts with calls to account.
type Accounts struct {
	Account accountv1.AccountServiceClient
}

// Verified implements owners.Accounts.
func (a Accounts) Verified(ctx context.Context, accountID string) (bool, error) {
	r, err := a.Account.GetAccount(ctx, &accountv1.GetAccountRequest{AccountId: accountID})
	return r.GetEmailVerified(), err
}
