package billing

import (
	"context"
	"fmt"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
)

// StartTrial starts the single trial of the actor's account. It returns CONFLICT if
// the trial was used or an entitlement is in force.
func (b *Billing) StartTrial(ctx context.Context, actor access.Actor) (trial access.Entitlement, err error) {
	err = b.withActiveAccount(ctx, actor.AccountID, func(ctx context.Context, l Locked, sub *Subscriber) error {
		if b.present(actor, *sub).Status != access.Inactive {
			return apierr.New(apierr.Conflict, "You already have a subscription or a trial.")
		}
		// account decides, because it knows whether the trial was used. After a crash
		// here, this row lacks the trial; pushEntitlement handles that.
		trial, err = b.Accounts.StartTrial(ctx, actor.AccountID)
		if err != nil {
			return err
		}
		sub.Entitlement, sub.PushEntitlement = trial, false
		return l.Save(ctx, *sub, nil, nil)
	})
	if apierr.Is(err, apierr.NotFound) {
		return access.Entitlement{}, errGone
	}
	if err != nil {
		return access.Entitlement{}, fmt.Errorf("start a trial: %w", err)
	}
	return trial, nil
}
