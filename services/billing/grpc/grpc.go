// Package grpc calls account.
package grpc

import (
	"context"

	"waitlist.internal/libs/access"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

// Accounts implements billing.Accounts with calls to account.
type Accounts struct {
	Client accountv1.AccountServiceClient
}

// SetEntitlement implements billing.Accounts.
func (a Accounts) SetEntitlement(ctx context.Context, accountID string, e access.Entitlement) (access.Entitlement, error) {
	res, err := a.Client.SetEntitlement(ctx, &accountv1.SetEntitlementRequest{AccountId: accountID, Entitlement: e.Proto()})
	if err != nil {
		return access.Entitlement{}, err
	}
	return access.EntitlementFromProto(res.GetEntitlement()), nil
}

// SetPaymentCustomer implements billing.Accounts.
func (a Accounts) SetPaymentCustomer(ctx context.Context, accountID, customerID string) error {
	_, err := a.Client.SetPaymentCustomer(ctx, &accountv1.SetPaymentCustomerRequest{AccountId: accountID, CustomerId: customerID})
	return err
}

// StartTrial implements billing.Accounts.
func (a Accounts) StartTrial(ctx context.Context, accountID string) (access.Entitlement, error) {
	res, err := a.Client.StartTrial(ctx, &accountv1.StartTrialRequest{AccountId: accountID})
	if err != nil {
		return access.Entitlement{}, err
	}
	return access.EntitlementFromProto(res.GetEntitlement()), nil
}
