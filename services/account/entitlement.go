package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// Profile returns the actor's own account with its entitlement as it is now.
func (s *Service) Profile(ctx context.Context, actor access.Actor) (Account, error) {
	a, err := s.Store.Account(ctx, actor.AccountID)
	if errors.Is(err, ErrNotFound) {
		return Account{}, errCredentials()
	}
	if err != nil {
		return Account{}, fmt.Errorf("read a profile: %w", err)
	}
	a.Entitlement = a.Entitlement.At(s.now())
	return a, nil
}

// SetEntitlement stores e if its version is above the stored one, publishes it,
// and returns the entitlement in force afterwards. NOT_FOUND where there is no
// such account, VALIDATION_ERROR where e is no entitlement.
func (s *Service) SetEntitlement(ctx context.Context, accountID string, e access.Entitlement) (access.Entitlement, error) {
	if !e.Tier.Valid() {
		return access.Entitlement{}, apierr.Validation(apierr.Field{Field: "tier", Message: "must be basic, advanced or pro"})
	}
	switch e.Status {
	case access.Trialing, access.Active, access.Canceling, access.Inactive:
	default:
		return access.Entitlement{}, apierr.Validation(apierr.Field{Field: "status", Message: "must be trialing, active, canceling or inactive"})
	}
	unknown := apierr.NotFoundf("There is no such account.")
	if uuid.Validate(accountID) != nil {
		return access.Entitlement{}, unknown
	}
	now := s.now()
	var inForce access.Entitlement
	err := s.Store.InTx(ctx, func(tx Tx) error {
		a, err := tx.LockAccount(ctx, accountID)
		if err != nil {
			return err
		}
		inForce = a.Entitlement
		if e.Version <= a.Entitlement.Version {
			return nil
		}
		trialEndsAt := a.TrialEndsAt
		if e.Trial {
			trialEndsAt = e.ValidUntil.UTC().Truncate(time.Millisecond)
		}
		if err := tx.SetEntitlement(ctx, a.ID, e, trialEndsAt, a.HasUsedTrial || e.Trial); err != nil {
			return err
		}
		inForce = e
		return tx.Publish(ctx, a.ID, entitlementChanged(a.ID, e, now))
	})
	if errors.Is(err, ErrNotFound) {
		return access.Entitlement{}, unknown
	}
	if err != nil {
		return access.Entitlement{}, fmt.Errorf("set an entitlement: %w", err)
	}
	return inForce, nil
}

// StartTrial starts the one trial of an account and publishes it. CONFLICT where
// the trial was used, by this account or an earlier one with its address, or a
// subscription is in force; NOT_FOUND where there is no such account.
func (s *Service) StartTrial(ctx context.Context, accountID string) (access.Entitlement, error) {
	unknown := apierr.NotFoundf("There is no such account.")
	if uuid.Validate(accountID) != nil {
		return access.Entitlement{}, unknown
	}
	now := s.now()
	var trial access.Entitlement
	err := s.Store.InTx(ctx, func(tx Tx) error {
		a, err := tx.LockAccount(ctx, accountID)
		if err != nil {
			return err
		}
		if a.Entitlement.At(now).Status != access.Inactive {
			return apierr.New(apierr.Conflict, "There is a subscription already.")
		}
		if a.HasUsedTrial {
			return apierr.New(apierr.Conflict, "The trial was used already.")
		}
		// So that the address has no other by registering again.
		if _, err := tx.UseTrial(ctx, s.addressHash("trial", a.Email), now); err != nil {
			return fmt.Errorf("use the trial: %w", err)
		}
		trial = access.Entitlement{
			Tier: access.Pro, Status: access.Trialing, ValidUntil: now.Add(s.TrialDuration), Trial: true, Version: a.Entitlement.Version + 1,
		}
		if err := tx.SetEntitlement(ctx, a.ID, trial, trial.ValidUntil, true); err != nil {
			return err
		}
		return tx.Publish(ctx, a.ID, entitlementChanged(a.ID, trial, now))
	})
	if errors.Is(err, ErrNotFound) {
		return access.Entitlement{}, unknown
	}
	if err != nil {
		return access.Entitlement{}, fmt.Errorf("start a trial: %w", err)
	}
	return trial, nil
}

// SetPaymentCustomer stores who an account is at the payment provider; empty is
// nobody. NOT_FOUND where there is no such account.
func (s *Service) SetPaymentCustomer(ctx context.Context, accountID, customerID string) error {
	unknown := apierr.NotFoundf("There is no such account.")
	if uuid.Validate(accountID) != nil {
		return unknown
	}
	err := s.Store.InTx(ctx, func(tx Tx) error { return tx.SetPaymentCustomer(ctx, accountID, customerID) })
	if errors.Is(err, ErrNotFound) {
		return unknown
	}
	if err != nil {
		return fmt.Errorf("set a payment customer: %w", err)
	}
	return nil
}
