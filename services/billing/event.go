package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/uuid"
)

// Event identifies the customer of a webhook event. The domain ignores the rest of
// an event, because events may be late, repeated or out of order.
type Event struct {
	ID, Type string
	// CustomerID is empty if the event concerns no customer.
	CustomerID string
}

// Take processes an authentic event. It returns nil once the account is in sync
// with the provider, or if the event was processed before. After an error, the
// provider sends the event again.
func (b *Billing) Take(ctx context.Context, ev Event) error {
	err := b.take(ctx, ev)
	if errors.Is(err, ErrBusy) || because(err, Throttled) {
		err = &ProviderError{Reason: Away, Call: "take", Err: err} // the webhook has no 429
	}
	if err != nil {
		return outward(fmt.Errorf("take an event: %w", err))
	}
	return nil
}

func (b *Billing) take(ctx context.Context, ev Event) error {
	if seen, err := b.Store.EventSeen(ctx, ev.ID); err != nil || seen {
		return err
	}
	accountID, err := b.accountOf(ctx, ev.CustomerID)
	if errors.Is(err, ErrNotFound) {
		return b.Store.RecordEvent(ctx, ev.ID, b.now())
	}
	if err != nil {
		return err
	}
	return b.withAccountLock(ctx, accountID, func(ctx context.Context, l Locked) error {
		if seen, err := l.EventSeen(ctx, ev.ID); err != nil || seen {
			return err
		}
		return b.syncCustomer(ctx, l, accountID, ev.CustomerID, ev.ID)
	})
}

// accountOf returns the account of a customer: from the store, else from the customer's
// metadata. It returns ErrNotFound if neither names an account.
func (b *Billing) accountOf(ctx context.Context, customerID string) (string, error) {
	if customerID == "" {
		return "", ErrNotFound
	}
	accountID, err := b.Store.AccountOf(ctx, customerID)
	if !errors.Is(err, ErrNotFound) {
		return accountID, err
	}
	c, err := b.Provider.Customer(ctx, customerID)
	if because(err, Missing) || err == nil && uuid.Validate(c.AccountID) != nil {
		return "", ErrNotFound
	}
	return c.AccountID, err
}

// syncCustomer decides what to do with a customer that names an account, then syncs the account.
func (b *Billing) syncCustomer(ctx context.Context, l Locked, accountID, customerID string, events ...string) error {
	deletion, err := l.Deletion(ctx)
	if err == nil {
		return b.finish(ctx, l, deletion, customerID, events...)
	}
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	if known, err := l.HeardOf(ctx); err != nil {
		return err
	} else if !known {
		return b.ignoreForeign(ctx, l, accountID, customerID, events)
	}
	sub, err := l.Subscriber(ctx)
	if err != nil {
		return err
	}
	switch sub.CustomerID {
	case customerID:
	case "":
		// The process that created the customer crashed before it saved the id.
		if err := b.adopt(ctx, l, &sub, customerID); err != nil {
			return err
		}
	default:
		if err := b.resolveSecondCustomer(ctx, l, &sub, customerID); err != nil {
			return err
		}
	}
	_, _, err = b.sync(ctx, l, &sub, 0, events...)
	return err
}

// ignoreForeign ignores a customer that names an unknown account. It may belong to another
// installation that uses the same provider account.
func (b *Billing) ignoreForeign(ctx context.Context, l Locked, accountID, customerID string, events []string) error {
	b.Log.LogAttrs(ctx, slog.LevelWarn, "customer names an unknown account; ignoring it",
		slog.String("account_id", accountID), slog.String("customer_id", customerID))
	return l.RecordEvents(ctx, events, b.now())
}

// adopt saves a customer that names the account as the account's customer.
func (b *Billing) adopt(ctx context.Context, l Locked, sub *Subscriber, customerID string) error {
	b.Log.LogAttrs(ctx, slog.LevelWarn, "adopted an unknown customer",
		slog.String("account_id", sub.AccountID), slog.String("customer_id", customerID))
	sub.CustomerID, sub.PushCustomer, sub.PushAt = customerID, true, b.now().Add(pushLease)
	if err := l.Save(ctx, *sub, nil, nil); err != nil {
		return err
	}
	return l.End(ctx, "customer", b.now())
}

// resolveSecondCustomer deletes a surplus customer of an account and refunds its unknown
// subscriptions. If only this customer has a paid subscription that is known, it
// is adopted instead: it was the account's own until another API key hid it.
func (b *Billing) resolveSecondCustomer(ctx context.Context, l Locked, sub *Subscriber, customerID string) error {
	known, err := l.Seen(ctx, b.now())
	if err != nil {
		return err
	}
	list, err := b.Provider.Subscriptions(ctx, customerID)
	if err != nil && !because(err, Missing) {
		return err
	}
	paid := slices.ContainsFunc(list, func(s Subscription) bool { return s.entitles() && slices.Contains(known, s.ID) })
	if paid && !sub.Subscription.entitles() {
		return b.adopt(ctx, l, sub, customerID)
	}
	b.Log.LogAttrs(ctx, slog.LevelWarn, "account has a second customer; deleting it",
		slog.String("account_id", sub.AccountID), slog.String("customer_id", customerID))
	return b.wipe(ctx, l, sub.AccountID, customerID, known)
}
