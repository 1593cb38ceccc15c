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

// Profile returns the actor's account with its entitlement as of now.
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

// Account returns an account with its entitlement as of now. It returns NOT_FOUND if
// there is no such account.
func (s *Service) Account(ctx context.Context, accountID string) (Account, error) {
	unknown := apierr.NotFoundf("There is no such account.")
	if uuid.Validate(accountID) != nil {
		return Account{}, unknown
	}
	a, err := s.Store.Account(ctx, accountID)
	if errors.Is(err, ErrNotFound) {
		return Account{}, unknown
	}
	if err != nil {
		return Account{}, fmt.Errorf("read an account: %w", err)
	}
	a.Entitlement = a.Entitlement.At(s.now())
	return a, nil
}

// SetEntitlement stores and publishes e if its version is higher than the stored
// one. It returns the entitlement in force afterwards. Errors: NOT_FOUND if there
// is no such account, VALIDATION_ERROR on tier or status.
func (s *Service) SetEntitlement(ctx context.Context, accountID string, e access.Entitlement) (access.Entitlement, error) {
	if !e.Tier.Valid() {
		return access.Entitlement{}, apierr.Validation(apierr.Field{Field: "tier", Message: "Choose basic, advanced or pro."})
	}
	switch e.Status {
	case access.Trialing, access.Active, access.Canceling, access.Inactive:
	default:
		return access.Entitlement{}, apierr.Validation(apierr.Field{Field: "status", Message: "Choose trialing, active, canceling or inactive."})
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
		if e.Trial {
			a.TrialEndsAt, a.HasUsedTrial = e.ValidUntil.UTC().Truncate(time.Millisecond), true
		}
		a.Entitlement, inForce = e, e
		if err := tx.UpdateAccount(ctx, a); err != nil {
			return err
		}
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

// StartTrial starts and publishes the single trial of an account. Errors: CONFLICT
// if a subscription is in force, or if this account or an earlier one with the
// same address used the trial; NOT_FOUND if there is no such account.
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
			return apierr.New(apierr.Conflict, "You already have a subscription or a trial.")
		}
		if a.HasUsedTrial {
			return apierr.New(apierr.Conflict, "You have already used your trial.")
		}
		// The address must not get another trial by registering again.
		if _, err := tx.UseTrial(ctx, s.trialHash(a.Email), now); err != nil {
			return fmt.Errorf("use the trial: %w", err)
		}
		trial = access.Entitlement{
			Tier: access.Pro, Status: access.Trialing, ValidUntil: now.Add(s.TrialDuration), Trial: true, Version: a.Entitlement.Version + 1,
		}
		a.Entitlement, a.TrialEndsAt, a.HasUsedTrial = trial, trial.ValidUntil, true
		if err := tx.UpdateAccount(ctx, a); err != nil {
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

// SetPaymentCustomer stores an account's customer at the payment provider; empty
// means none. It returns NOT_FOUND if there is no such account.
func (s *Service) SetPaymentCustomer(ctx context.Context, accountID, customerID string) error {
	unknown := apierr.NotFoundf("There is no such account.")
	if uuid.Validate(accountID) != nil {
		return unknown
	}
	err := s.Store.InTx(ctx, func(tx Tx) error {
		a, err := tx.LockAccount(ctx, accountID)
		if err != nil {
			return err
		}
		a.PaymentCustomerID = customerID
		return tx.UpdateAccount(ctx, a)
	})
	if errors.Is(err, ErrNotFound) {
		return unknown
	}
	if err != nil {
		return fmt.Errorf("set a payment customer: %w", err)
	}
	return nil
}
