package billing

import (
	"context"
	"errors"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/loop"
)

const (
	pushLook     = time.Second
	checkLook    = 10 * time.Second
	deletionLook = time.Second
	sweepLook    = 10 * time.Minute
	// reconcileRetry is the pause after a reconciliation that did not come to its end.
	reconcileRetry = 10 * time.Minute
	// attemptLease is how long one attempt keeps the others away.
	attemptLease = lockPatience + workTime + deletionRetry
)

// RunPushes tells account what it could not be told in a request, until ctx is
// done.
func (b *Billing) RunPushes(ctx context.Context) error {
	return b.work(ctx, "pushes of entitlements", pushLook, func(ctx context.Context, now time.Time) error {
		accountID, err := b.Store.TakePush(ctx, now, now.Add(pushLease))
		if err != nil {
			return err
		}
		return b.locked(ctx, accountID, func(ctx context.Context, l Locked, sub *Subscriber) error { return b.tryPush(ctx, l, sub) })
	})
}

// RunChecks looks, until ctx is done, at subscriptions whose end or renewal no
// event has told of.
func (b *Billing) RunChecks(ctx context.Context) error {
	return b.work(ctx, "checks of subscriptions", checkLook, func(ctx context.Context, now time.Time) error {
		accountID, err := b.Store.TakeCheck(ctx, now, now.Add(checkAgain))
		if err != nil {
			return err
		}
		return b.locked(ctx, accountID, b.check)
	})
}

// check syncs an account. Where the provider is away, the end of a subscription
// that was canceled needs no word of it.
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

// RunDeletions ends deleted accounts at the provider, until ctx is done.
func (b *Billing) RunDeletions(ctx context.Context) error {
	return b.work(ctx, "ends of deleted accounts", deletionLook, func(ctx context.Context, now time.Time) error {
		accountID, err := b.Store.TakeDeletion(ctx, now, now.Add(attemptLease))
		if err != nil {
			return err
		}
		return b.finishDeletion(ctx, accountID)
	})
}

// RunSweep deletes what is too old to matter, until ctx is done.
func (b *Billing) RunSweep(ctx context.Context) error {
	return b.work(ctx, "sweep", sweepLook, func(ctx context.Context, now time.Time) error {
		more, err := b.Store.Sweep(ctx, now)
		if err == nil && !more {
			return ErrNotFound
		}
		return err
	})
}

// RunReconciliations compares everybody with the provider every ReconcileEvery,
// in one of all processes, until ctx is done.
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
			return errors.Join(err, b.Store.RetryReconciliation(context.WithoutCancel(ctx), now.Add(min(reconcileRetry, b.ReconcileEvery)), b.ReconcileEvery))
		}
		return nil
	})
}

// work calls do, again at once while it finds something and every interval when it
// says ErrNotFound, until ctx is done. A failure is logged and waited out.
func (b *Billing) work(ctx context.Context, what string, interval time.Duration, do func(ctx context.Context, now time.Time) error) error {
	return loop.Job{Name: what, Every: interval, Log: b.Log, Do: func(ctx context.Context) (bool, error) {
		err := do(ctx, b.now())
		if errors.Is(err, ErrNotFound) || errors.Is(err, errGone) {
			return false, nil
		}
		return true, err
	}}.Run(ctx)
}
