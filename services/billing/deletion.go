package billing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const (
	// deletionRetry is the pause after a failed attempt.
	deletionRetry = 30 * time.Second
	// lateFor is how long reconciliation rechecks a deleted account for late
	// payments.
	lateFor = 4 * 24 * time.Hour
)

// finishDeletion removes a deleted account at the provider and then from the store.
func (b *Billing) finishDeletion(ctx context.Context, accountID string) error {
	return b.withAccountLock(ctx, accountID, func(ctx context.Context, l Locked) error {
		d, err := l.Deletion(ctx)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		sub, err := l.Subscriber(ctx)
		if err != nil {
			return err
		}
		return b.finish(ctx, l, d, cmp.Or(sub.CustomerID, d.CustomerID))
	})
}

// finish removes a customer of a deleted account. It refunds every subscription that
// was first seen after the deletion, because the account never used it. Both times
// come from the clocks of the platform.
func (b *Billing) finish(ctx context.Context, l Locked, d Deletion, customerID string, events ...string) error {
	if customerID != "" {
		known, err := l.Seen(ctx, d.DeletedAt)
		if err != nil {
			return err
		}
		if err := b.wipe(ctx, l, d.AccountID, customerID, known); err != nil {
			return fmt.Errorf("delete a deleted account's customer: %w", err)
		}
	}
	return l.Bury(ctx, customerID, events, b.now())
}

// wipe expires a customer's sessions, refunds the subscriptions that are not known,
// cancels all subscriptions and deletes the customer. It can be repeated after any
// failure.
func (b *Billing) wipe(ctx context.Context, l Locked, accountID, customerID string, known []string) error {
	open, err := b.Provider.OpenSessions(ctx, customerID)
	if err != nil && !because(err, Missing) {
		return err
	}
	for _, s := range open {
		if err := b.expire(ctx, l, accountID, &s); err != nil {
			return err
		}
	}
	list, err := b.Provider.Subscriptions(ctx, customerID)
	if err != nil && !because(err, Missing) {
		return err
	}
	for _, s := range b.ours(list) {
		if !slices.Contains(known, s.ID) && s.Status != statusExpired {
			b.Log.LogAttrs(ctx, slog.LevelWarn, "a deleted customer's unknown subscription may have been paid; refunding it",
				slog.String("account_id", accountID), slog.String("subscription_id", s.ID))
			if err := b.refund(ctx, l, accountID, s); err != nil {
				return err
			}
		}
		if err := b.end(ctx, l, accountID, s); err != nil {
			return err
		}
	}
	return b.finally(ctx, l, accountID, "forget/", customerID, b.Provider.DeleteCustomer)
}
