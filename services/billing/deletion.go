package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

const (
	// deletionRetry is the pause after an attempt that failed.
	deletionRetry = 30 * time.Second
	// lateFor is how long the reconciler looks again at who was deleted.
	lateFor = 4 * 24 * time.Hour
)

// finishDeletion ends a deleted account at the provider, and then here.
func (b *Billing) finishDeletion(ctx context.Context, accountID string) error {
	return b.alone(ctx, accountID, func(ctx context.Context, l Locked) error {
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
		customer := sub.CustomerID
		if customer == "" {
			customer = d.CustomerID
		}
		return b.finish(ctx, l, d, customer)
	})
}

// finish ends a customer of a deleted account. What the account never had is given
// back: a subscription that was not seen before the deletion, be it that nobody told
// of it or that this deletion comes late. Both times are our own clocks'.
func (b *Billing) finish(ctx context.Context, l Locked, d Deletion, customerID string, events ...string) error {
	if customerID != "" {
		known, err := l.Seen(ctx, d.DeletedAt)
		if err != nil {
			return err
		}
		if err := b.wipe(ctx, l, d.AccountID, customerID, known); err != nil {
			return fmt.Errorf("end a deleted account's customer: %w", err)
		}
	}
	return l.Bury(ctx, customerID, events, b.now())
}

// wipe ends all that a customer has, gives back what was paid for subscriptions
// that are not known, and deletes it. It may stop anywhere and be repeated.
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
			b.Log.LogAttrs(ctx, slog.LevelWarn, "a subscription was paid for an account that is none any more; it is refunded",
				slog.String("account_id", accountID), slog.String("subscription_id", s.ID))
			if err := b.refund(ctx, l, accountID, s); err != nil {
				return err
			}
		}
		if err := b.end(ctx, l, accountID, s); err != nil {
			return err
		}
	}
	err = b.once(ctx, l, accountID, "forget/"+customerID, customerID, keyKept, func(key string) error { return b.Provider.DeleteCustomer(ctx, key, customerID) })
	if because(err, Missing) {
		return nil
	}
	return err
}
