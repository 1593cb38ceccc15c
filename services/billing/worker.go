package billing

import (
	"context"
	"errors"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/loop"
)

const (
	pushLook     = 2 * time.Second
	checkLook    = 10 * time.Second
	deletionLook = 5 * time.Second
	sweepLook    = 10 * time.Minute
	// The store keeps rows for longer than the provider needs them: eventsKept exceeds
	// the time for which it resends an event, operationsKept the time for which it
	// remembers a key, deletionsKept the lifetime of a checkout and the delay of an
	// event.
	eventsKept     = 35 * 24 * time.Hour
	operationsKept = 35 * 24 * time.Hour
	deletionsKept  = 35 * 24 * time.Hour
	// reconcileRetry is the pause after a reconciliation that failed.
	reconcileRetry = 10 * time.Minute
	// attemptLease reserves a deletion for one attempt.
	attemptLease = lockPatience + workTime + deletionRetry
)

// RunPushes retries pushes to account until ctx is done.
func (b *Billing) RunPushes(ctx context.Context) error {
	return b.work(ctx, "pushes to account", pushLook, func(ctx context.Context, now time.Time) error {
		accountID, err := b.Store.TakePush(ctx, now, now.Add(pushLease))
		if err != nil {
			return err
		}
		return b.withActiveAccount(ctx, accountID, func(ctx context.Context, l Locked, sub *Subscriber) error { return b.tryPush(ctx, l, sub) })
	})
}

// RunChecks syncs accounts whose subscription should have ended or renewed, until
// ctx is done. It makes up for events that did not arrive.
func (b *Billing) RunChecks(ctx context.Context) error {
	return b.work(ctx, "checks of subscriptions", checkLook, func(ctx context.Context, now time.Time) error {
		accountID, err := b.Store.TakeCheck(ctx, now, now.Add(checkAgain))
		if err != nil {
			return err
		}
		return b.withActiveAccount(ctx, accountID, b.check)
	})
}

// check syncs an account. If the provider is away, it ends a canceled subscription
// that has expired.
func (b *Billing) check(ctx context.Context, l Locked, sub *Subscriber) error {
	_, _, err := b.sync(ctx, l, sub, 0)
	if err == nil || !because(err, Away) {
		return err
	}
	now := b.now()
	if sub.Entitlement.Status != access.Canceling || sub.Entitlement.At(now).Status != access.Inactive {
		return err
	}
	sub.set(access.Entitlement{Tier: sub.Entitlement.Tier, Status: access.Inactive}, 0, now)
	sub.CheckAt = now.Add(checkAgain)
	if err := l.Save(ctx, *sub, nil, nil); err != nil {
		return err
	}
	b.push(ctx, l, sub)
	return nil
}

// RunDeletions removes deleted accounts at the provider until ctx is done.
func (b *Billing) RunDeletions(ctx context.Context) error {
	return b.work(ctx, "account deletions", deletionLook, func(ctx context.Context, now time.Time) error {
		accountID, err := b.Store.TakeDeletion(ctx, now, now.Add(attemptLease))
		if err != nil {
			return err
		}
		return b.finishDeletion(ctx, accountID)
	})
}

// Retention has the times up to which rows are outdated.
type Retention struct{ Events, Operations, Deletions time.Time }

// RunSweep deletes outdated rows until ctx is done.
func (b *Billing) RunSweep(ctx context.Context) error {
	return b.work(ctx, "sweep", sweepLook, func(ctx context.Context, now time.Time) error {
		more, err := b.Store.Sweep(ctx, Retention{
			Events: now.Add(-eventsKept), Operations: now.Add(-operationsKept), Deletions: now.Add(-deletionsKept),
		})
		if err == nil && !more {
			return ErrNotFound
		}
		return err
	})
}

// RunReconciliations runs Reconcile every ReconcileEvery, on one replica at a time,
// until ctx is done.
func (b *Billing) RunReconciliations(ctx context.Context) error {
	return b.work(ctx, "reconciliation", min(b.ReconcileEvery, time.Minute), func(ctx context.Context, now time.Time) error {
		mine, err := b.Store.TakeReconciliation(ctx, now, now.Add(-b.ReconcileEvery))
		if err != nil {
			return err
		}
		if !mine {
			return ErrNotFound
		}
		if _, err := b.Reconcile(ctx); err != nil {
			// The next run is due ReconcileEvery after this time.
			began := now.Add(min(reconcileRetry, b.ReconcileEvery) - b.ReconcileEvery)
			return errors.Join(err, b.Store.RetryReconciliation(context.WithoutCancel(ctx), began))
		}
		return nil
	})
}

// work calls do until ctx is done. It pauses for interval after ErrNotFound and after
// a failure, which it logs.
func (b *Billing) work(
	ctx context.Context, what string, interval time.Duration, do func(ctx context.Context, now time.Time) error,
) error {
	return loop.Job{Name: what, Every: interval, Log: b.Log, Do: func(ctx context.Context) (bool, error) {
		err := do(ctx, b.now())
		if errors.Is(err, ErrNotFound) || errors.Is(err, errGone) {
			return false, nil
		}
		return true, err
	}}.Run(ctx)
}
