package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/telemetry"
)

// pageSize is the number of rows per query.
const pageSize = 100

// Report counts the results of a reconciliation.
type Report struct {
	// Customers counts the provider's customers that name an account, Accounts the
	// accounts compared, Deleted the deleted accounts rechecked.
	Customers, Accounts, Deleted int
	// Repaired counts accounts whose entitlement did not match their subscription.
	Repaired int
	// Adopted counts customers that were unknown to their accounts. Removed counts
	// customers of deleted accounts and of accounts with another customer.
	Adopted, Removed int
	// Strange counts customers that name an unknown account. They are ignored,
	// because they may belong to another installation.
	Strange int
	// Failed counts accounts that could not be compared.
	Failed int
}

// LogValue implements slog.LogValuer.
func (r Report) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Int("customers", r.Customers), slog.Int("accounts", r.Accounts), slog.Int("deleted", r.Deleted),
		slog.Int("repaired", r.Repaired), slog.Int("adopted", r.Adopted), slog.Int("removed", r.Removed),
		slog.Int("strange", r.Strange), slog.Int("failed", r.Failed))
}

// Reconcile compares all accounts with the provider and repairs differences. It can
// run beside requests and stop at any point.
func (b *Billing) Reconcile(ctx context.Context) (Report, error) {
	var r Report
	pace := rate.NewLimiter(rate.Limit(b.ReconcileRate), 1)
	type step func(context.Context, *rate.Limiter, *Report) error
	for _, step := range []step{b.reconcileCustomers, b.reconcileAccounts, b.reconcileDeleted} {
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

// reconcileCustomers handles customers at the provider that the store does not know.
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
		return nil //nolint:nilerr // an id of another format is not an error
	}
	// reconcileAccounts handles known customers.
	if _, err := b.Store.AccountOf(ctx, c.ID); !errors.Is(err, ErrNotFound) {
		return err
	}
	if err := pace.Wait(ctx); err != nil {
		return err
	}
	return b.count(ctx, c.AccountID, r, b.withAccountLock(ctx, c.AccountID, func(ctx context.Context, l Locked) error {
		known, err := l.HeardOf(ctx)
		if err != nil {
			return err
		}
		if !known {
			r.Strange++
			return b.ignoreForeign(ctx, l, c.AccountID, c.ID, nil)
		}
		sub, err := l.Subscriber(ctx)
		if err != nil {
			return err
		}
		if err := b.syncCustomer(ctx, l, c.AccountID, c.ID); err != nil {
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

// reconcileAccounts syncs every account that has a customer.
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
			err := b.withActiveAccount(ctx, row.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
				before := sub.Entitlement
				// Push even unchanged values, in case account has lost them.
				sub.PushCustomer, sub.PushEntitlement = true, sub.Entitlement.Version > 0
				if _, _, err := b.sync(ctx, l, sub, 0); err != nil {
					return err
				}
				if !same(before, sub.Entitlement) || before.Version != sub.Entitlement.Version {
					r.Repaired++
					b.Log.LogAttrs(ctx, slog.LevelWarn, "repaired an entitlement that did not match the subscription",
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

// entitlement is an access.Entitlement that can be logged.
type entitlement access.Entitlement

// LogValue implements slog.LogValuer.
func (e entitlement) LogValue() slog.Value {
	return slog.GroupValue(slog.String("tier", string(e.Tier)), slog.String("status", string(e.Status)), slog.Int64("version", e.Version))
}

// reconcileDeleted rechecks the accounts deleted within lateFor.
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

// count logs and counts the failure of one account. It returns an error only if the
// reconciliation must stop.
func (b *Billing) count(ctx context.Context, accountID string, r *Report, err error) error {
	switch {
	case err == nil, errors.Is(err, errGone):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	r.Failed++
	b.Log.LogAttrs(ctx, slog.LevelError, "failed to reconcile an account", slog.String("account_id", accountID), telemetry.Err(err))
	if r.Failed >= pageSize && r.Failed > r.Accounts/2 {
		return fmt.Errorf("too many accounts failed: %w", err)
	}
	return nil
}
