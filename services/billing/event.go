package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/uuid"
)

// Event is what is read of an event of the provider's: whom it is about. What it
// says is never believed; it may be late, doubled or out of order.
type Event struct {
	ID, Type string
	// CustomerID is empty where it concerns no customer.
	CustomerID string
}

// Take takes an event that is the provider's. When it returns nil, the account is
// as the provider has it, or was taken before. An error asks the provider to send
// it again.
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
	accountID, err := b.whose(ctx, ev.CustomerID)
	if errors.Is(err, ErrNotFound) {
		return b.Store.RecordEvent(ctx, ev.ID, b.now())
	}
	if err != nil {
		return err
	}
	return b.alone(ctx, accountID, func(ctx context.Context, l Locked) error {
		if seen, err := l.EventSeen(ctx, ev.ID); err != nil || seen {
			return err
		}
		return b.meet(ctx, l, accountID, ev.CustomerID, ev.ID)
	})
}

// whose returns the account of a customer: as we know it, else as the customer
// itself says. ErrNotFound: it is none of ours.
func (b *Billing) whose(ctx context.Context, customerID string) (string, error) {
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

// meet looks at an account because of a customer that is its own by what the
// customer says.
func (b *Billing) meet(ctx context.Context, l Locked, accountID, customerID string, events ...string) error {
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
		return b.strange(ctx, l, accountID, customerID, events)
	}
	sub, err := l.Subscriber(ctx)
	if err != nil {
		return err
	}
	switch sub.CustomerID {
	case customerID:
	case "":
		// Whoever made it died before it was written down.
		if err := b.adopt(ctx, l, &sub, customerID); err != nil {
			return err
		}
	default:
		if err := b.second(ctx, l, &sub, customerID); err != nil {
			return err
		}
	}
	_, _, err = b.sync(ctx, l, &sub, 0, events...)
	return err
}

// strange leaves a customer alone that names an account nobody here has heard of:
// that of another installation at the same provider, perhaps.
func (b *Billing) strange(ctx context.Context, l Locked, accountID, customerID string, events []string) error {
	b.Log.LogAttrs(ctx, slog.LevelWarn, "a customer is that of an account that nobody here has heard of; it is left alone",
		slog.String("account_id", accountID), slog.String("customer_id", customerID))
	return l.RecordEvents(ctx, events, b.now())
}

// adopt makes a customer that says to be the account's its own.
func (b *Billing) adopt(ctx context.Context, l Locked, sub *Subscriber, customerID string) error {
	b.Log.LogAttrs(ctx, slog.LevelWarn, "a customer that nobody knew of is an account's", slog.String("account_id", sub.AccountID), slog.String("customer_id", customerID))
	sub.CustomerID, sub.PushCustomer, sub.PushAt = customerID, true, b.now().Add(pushLease)
	if err := l.Save(ctx, *sub, nil, nil); err != nil {
		return err
	}
	return l.End(ctx, "customer", b.now())
}

// second ends a customer that is one too many, and gives back what it paid that
// nobody here knew of. Where the account has nothing but what this one pays for, it
// is the account's: another key of the provider's had hidden it for a while.
func (b *Billing) second(ctx context.Context, l Locked, sub *Subscriber, customerID string) error {
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
	b.Log.LogAttrs(ctx, slog.LevelWarn, "an account has a second customer; it is removed", slog.String("account_id", sub.AccountID), slog.String("customer_id", customerID))
	return b.wipe(ctx, l, sub.AccountID, customerID, known)
}
