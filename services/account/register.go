package account

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/emailaddr"
)

// ErrEmailTaken means that the Store already has an account with the address.
var ErrEmailTaken = errors.New("account: address taken")

// Registration is a new account with its API key, which is never shown again.
type Registration struct {
	Account Account
	APIKey  string
}

// Register creates an account and starts its trial. The account starts inactive
// if an earlier account with the same address used the trial. Errors:
// VALIDATION_ERROR on email or password, CONFLICT if the address has an account.
func (s *Service) Register(ctx context.Context, email, password string) (Registration, error) {
	address, fields := s.CheckRegistration(email, password)
	if len(fields) > 0 {
		return Registration{}, apierr.Validation(fields...)
	}
	taken := apierr.New(apierr.Conflict, "An account with this email address already exists.")
	// This check only saves hashing the password; the unique constraint decides.
	switch _, err := s.Store.AccountByEmail(ctx, address); {
	case err == nil:
		return Registration{}, taken
	case !errors.Is(err, ErrNotFound):
		return Registration{}, fmt.Errorf("look for an account: %w", err)
	}
	hash, err := s.passwords.hash(ctx, password)
	if err != nil {
		return Registration{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Registration{}, fmt.Errorf("make an account id: %w", err)
	}
	key := newAPIKey()
	now := s.now()
	var a Account
	err = s.Store.InTx(ctx, func(tx Tx) error {
		a = Account{
			ID: id.String(), Email: address, PasswordHash: hash, PasswordGeneration: 1, APIKey: key.record(),
			HasUsedTrial: true, Verification: Verification{Cycle: 1, CycleStartedAt: now}, CreatedAt: now,
		}
		unused, err := tx.UseTrial(ctx, s.trialHash(address), now)
		if err != nil {
			return fmt.Errorf("use the trial: %w", err)
		}
		if unused {
			a.TrialEndsAt = now.Add(s.TrialDuration)
			a.Entitlement = access.Entitlement{
				Tier: access.Pro, Status: access.Trialing, ValidUntil: a.TrialEndsAt, Trial: true, Version: 1,
			}
		} else {
			a.Entitlement = access.Entitlement{Tier: access.Basic, Status: access.Inactive, Version: 1}
		}
		if err := tx.InsertAccount(ctx, a); err != nil {
			return err
		}
		if err := tx.Publish(ctx, a.ID, entitlementChanged(a.ID, a.Entitlement, now), verificationRequested(a, now)); err != nil {
			return err
		}
		return tx.Record(ctx, own(a.ID, "", audit.Registered, ""))
	})
	if errors.Is(err, ErrEmailTaken) {
		return Registration{}, taken
	}
	if err != nil {
		return Registration{}, fmt.Errorf("register: %w", err)
	}
	return Registration{Account: a, APIKey: string(key)}, nil
}

// CheckRegistration returns the normalized address and the field errors of both
// arguments.
func (s *Service) CheckRegistration(email, password string) (address string, fields []apierr.Field) {
	address, fields = parseEmail(email)
	return address, append(fields, s.CheckPassword(password, address)...)
}

// trialHash returns the hash that records an address's trial as used.
func (s *Service) trialHash(address string) []byte {
	if s.TrialPerPerson {
		address = emailaddr.Person(address)
	}
	return s.addressHash("trial", address)
}

// addressHash returns a keyed hash of an email or network address. The hashes of
// different uses differ.
func (s *Service) addressHash(use, address string) []byte {
	m := hmac.New(sha256.New, s.AddressKey)
	m.Write([]byte(use + "\x00" + address))
	return m.Sum(nil)
}

// parseEmail normalizes an address or returns its field error.
func parseEmail(email string) (string, []apierr.Field) {
	address, err := emailaddr.Parse(email)
	if err != nil {
		return "", []apierr.Field{{Field: "email", Message: "Enter a valid email address."}}
	}
	return address, nil
}
