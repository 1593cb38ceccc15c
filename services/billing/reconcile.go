package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/telemetry"
)

// pageSize is how many rows are read at a time.
const pageSize = 100

// Report is what a reconciliation did.
type Report struct {
	// Customers are those at the provider, Accounts those here, Deleted the deleted
	// ones that were looked at again.
	Customers, Accounts, Deleted int
	// Repaired are accounts whose entitlement was another than what they paid for.
	Repaired int
	// Adopted are customers that their accounts did not know of, Removed those of
	// accounts that are gone or have another.
	Adopted, Removed int
	// Strange are customers that name an account nobody here has heard of: those of
	// another installation, perhaps. They are left alone.
	Strange int
	// Failed are accounts that could not be looked at.
	Failed int
}

// LogValue implements slog.LogValuer.
func (r Report) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Int("customers", r.Customers), slog.Int("accounts", r.Accounts), slog.Int("deleted", r.Deleted), slog.Int("repaired", r.Repaired),
		slog.Int("adopted", r.Adopted), slog.Int("removed", r.Removed), slog.Int("strange", r.Strange), slog.Int("failed", r.Failed))
}

// Reconcile compares everybody with the provider, mends what differs, and says
// what it did. It may run beside requests, and stop anywhere.
func (b *Billing) Reconcile(ctx context.Context) (Report, error) {
	var r Report
	pace := rate.NewLimiter(rate.Limit(b.ReconcileRate), 1)
	for _, step := range []func(context.Context, *rate.Limiter, *Report) error{b.reconcileCustomers, b.reconcileAccounts, b.reconcileDeleted} {
		if err := step(ctx, pace, &r); err != nil {
			return r, fmt.Errorf("reconcile: %w", err)
		}
	}
	level := slog.LevelInfo
	if r.Repaired+r.Adopted+r.Removed+r.Failed > 0 {
		level = slog.LevelWarn
	}
	b.Log.LogAttrs(ctx, level, "reconciled with the payment provider", slog.Any("report", r))
	return r, nil
}

// reconcileCustomers looks for customers at the provider that nobody here knows.
func (b *Billing) reconcileCustomers(ctx context.Context, pace *rate.Limiter, r *Report) error {
	for after := ""; ; {
		if err := pace.Wait(ctx); err != nil {
			return err
		}
		page, more, err := b.Provider.Customers(ctx, after)
		if err != nil {
			return err
		}
		for _, c := range page {
			after = c.ID
			if c.AccountID == "" {
				continue
			}
			r.Customers++
			if err := b.reconcileCustomer(ctx, pace, c, r); err != nil {
				return err
			}
		}
		if !more || len(page) == 0 {
			return nil
		}
	}
}

func (b *Billing) reconcileCustomer(ctx context.Context, pace *rate.Limiter, c Customer, r *Report) error {
	if _, err := uuid.Parse(c.AccountID); err != nil {
		r.Strange++
		return nil //nolint:nilerr // it is not one of our ids, which is all there is to know
	}
	// One that is known is looked at with its account.
	if _, err := b.Store.AccountOf(ctx, c.ID); !errors.Is(err, ErrNotFound) {
		return err
	}
	if err := pace.Wait(ctx); err != nil {
		return err
	}
	return b.count(ctx, c.AccountID, r, b.alone(ctx, c.AccountID, func(ctx context.Context, l Locked) error {
		known, err := b.heardOf(ctx, l)
		if err != nil {
			return err
		}
		if !known {
			r.Strange++
			return b.strange(ctx, l, c.AccountID, c.ID, nil)
		}
		sub, err := l.Subscriber(ctx)
		if err != nil {
			return err
		}
		if err := b.meet(ctx, l, c.AccountID, c.ID); err != nil {
			return err
		}
		if _, err := l.Deletion(ctx); err == nil || sub.CustomerID != "" {
			r.Removed++
		} else {
			r.Adopted++
		}
		return nil
	}))
}

// heardOf reports whether the account was ever here: it has a row, an operation
// that was begun, or a grave.
func (b *Billing) heardOf(ctx context.Context, l Locked) (bool, error) {
	if _, err := l.Deletion(ctx); !errors.Is(err, ErrNotFound) {
		return err == nil, err
	}
	return l.HeardOf(ctx)
}

// reconcileAccounts syncs everybody who has a customer.
func (b *Billing) reconcileAccounts(ctx context.Context, pace *rate.Limiter, r *Report) error {
	for after := uuid.Nil.String(); ; {
		page, err := b.Store.Customers(ctx, after, pageSize)
		if err != nil {
			return err
		}
		for _, row := range page {
			after = row.AccountID
			r.Accounts++
			if err := pace.Wait(ctx); err != nil {
				return err
			}
			err := b.locked(ctx, row.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
				before := sub.Entitlement
				// Told again in any case, should account have lost it.
				sub.PushCustomer, sub.PushEntitlement = true, sub.Entitlement.Version > 0
				if _, _, err := b.sync(ctx, l, sub, 0); err != nil {
					return err
				}
				if !same(before, sub.Entitlement) || before.Version != sub.Entitlement.Version {
					r.Repaired++
					b.Log.LogAttrs(ctx, slog.LevelWarn, "an entitlement was another than what is paid for; it is mended",
						slog.String("account_id", sub.AccountID), slog.Any("had", entitlement(before)), slog.Any("has", entitlement(sub.Entitlement)))
				}
				return nil
			})
			if err := b.count(ctx, row.AccountID, r, err); err != nil {
				return err
			}
		}
		if len(page) < pageSize {
			return nil
		}
	}
}

// entitlement is one for a log.
type entitlement access.Entitlement

// LogValue implements slog.LogValuer.
func (e entitlement) LogValue() slog.Value {
	return slog.GroupValue(slog.String("tier", string(e.Tier)), slog.String("status", string(e.Status)), slog.Int64("version", e.Version))
}

// reconcileDeleted looks once more at who was deleted lately.
func (b *Billing) reconcileDeleted(ctx context.Context, pace *rate.Limiter, r *Report) error {
	since := b.now().Add(-lateFor)
	for after := uuid.Nil.String(); ; {
		page, err := b.Store.Deletions(ctx, after, since, pageSize)
		if err != nil {
			return err
		}
		for _, d := range page {
			after = d.AccountID
			r.Deleted++
			if err := pace.Wait(ctx); err != nil {
				return err
			}
			if err := b.count(ctx, d.AccountID, r, b.finishDeletion(ctx, d.AccountID)); err != nil {
				return err
			}
		}
		if len(page) < pageSize {
			return nil
		}
	}
}

// count notes the failure of one account, so that the others get their turn. It
// returns what ends the whole.
func (b *Billing) count(ctx context.Context, accountID string, r *Report, err error) error {
	switch {
	case err == nil, errors.Is(err, errGone):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	r.Failed++
	b.Log.LogAttrs(ctx, slog.LevelError, "an account was not reconciled", slog.String("account_id", accountID), telemetry.Err(err))
	if r.Failed >= pageSize && r.Failed > r.Accounts/2 {
		return fmt.Errorf("too many accounts fail: %w", err)
	}
	return nil
}

// minReconcile is the least pause that makes sense.
const minReconcile = time.Minute

// CheckReconcile is nil where the two settings make sense.
func CheckReconcile(every time.Duration, perSecond float64) error {
	var errs []error
	if every < minReconcile {
		errs = append(errs, fmt.Errorf("RECONCILE_EVERY must be at least %s", minReconcile))
	}
	if perSecond <= 0 {
		errs = append(errs, errors.New("RECONCILE_RATE must be above 0"))
	}
	return errors.Join(errs...)
}
