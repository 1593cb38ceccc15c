// Package claims asks the owners of facts whether what an event claims is true. Whoever can
// write to Kafka can write any event, so nothing is deleted and no right is given because
// an event says so.
package claims

import (
	"context"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/kafka"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

// Owners are the services that know the facts. Claims about those of a service that is nil
// are not asked about.
type Owners struct {
	Accounts  accountv1.AccountServiceClient
	Waitlists signupv1.SignupServiceClient
	Templates messagingv1.MessagingServiceClient
}

// Confirm returns kafka.ErrRefuted if an event claims the deletion of an account, waitlist or
// template that exists. It replaces the plan that an event claims by the account's plan, and
// that of an account that is gone by none. It is for kafka.ConsumerConfig.
func (o Owners) Confirm(ctx context.Context, ev *eventv1.Event) error {
	switch p := ev.GetPayload().(type) {
	case *eventv1.Event_AccountDeleted:
		if o.Accounts == nil {
			return nil
		}
		_, err := o.Accounts.GetAccount(ctx, &accountv1.GetAccountRequest{AccountId: p.AccountDeleted.GetAccountId()})
		if apierr.Is(err, apierr.NotFound) {
			return nil
		}
		return refuted(err, true)
	case *eventv1.Event_EntitlementChanged:
		if o.Accounts == nil {
			return nil
		}
		a, err := o.Accounts.GetAccount(ctx, &accountv1.GetAccountRequest{AccountId: p.EntitlementChanged.GetAccountId()})
		if err != nil && !apierr.Is(err, apierr.NotFound) {
			return err
		}
		// Version 0 is never newer than what is stored.
		p.EntitlementChanged.Entitlement = &accessv1.Entitlement{}
		if e := a.GetEntitlement(); e != nil {
			p.EntitlementChanged.Entitlement = e
		}
	case *eventv1.Event_WaitlistDeleted:
		if o.Waitlists == nil {
			return nil
		}
		w, err := o.Waitlists.WaitlistExists(ctx, &signupv1.WaitlistExistsRequest{WaitlistId: p.WaitlistDeleted.GetWaitlistId()})
		return refuted(err, w.GetExists())
	case *eventv1.Event_TemplateDeleted:
		if o.Templates == nil {
			return nil
		}
		e := p.TemplateDeleted
		asked := &messagingv1.CheckTemplatesRequest{OwnerId: e.GetAccountId()}
		for _, kind := range []string{"signup_confirmation", "referral_milestone", "offboarding"} {
			asked.Templates = append(asked.Templates, &messagingv1.TemplateRef{TemplateId: e.GetTemplateId(), TemplateType: kind})
		}
		unknown, err := o.Templates.CheckTemplates(ctx, asked)
		return refuted(err, len(unknown.GetUnknown()) < len(asked.GetTemplates()))
	}
	return nil
}

func refuted(err error, exists bool) error {
	if err == nil && exists {
		return kafka.ErrRefuted
	}
	return err
}
