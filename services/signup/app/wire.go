package app

import (
	"context"
	"time"

	"waitlist.internal/libs/claims"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup"
	"waitlist.internal/services/signup/grpc"
	signupkafka "waitlist.internal/services/signup/kafka"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/redis"
)

// wire adds the owners' side of waitlists: the internal interface, the consumer of
// account events, and the purge.
func wire(rt *service.Runtime, cfg Config, store *postgres.Signups, svc *signup.Service, wake func()) error {
	waitlists := postgres.NewWaitlists(rt.Pool, wake, time.Now)
	messaging, err := rt.Dial(cfg.MessagingTarget, "messaging")
	if err != nil {
		return err
	}
	templates := messagingv1.NewMessagingServiceClient(messaging)
	account, err := rt.Dial(cfg.AccountTarget, "account")
	if err != nil {
		return err
	}
	owners := signup.NewOwners(waitlists, rt.Seal, grpc.Templates{Messaging: templates}, signup.Bounds{
		Waitlists: cfg.MaxWaitlists, SettingsBytes: cfg.MaxSettingsBytes,
	}, time.Now)
	signupv1.RegisterWaitlistServiceServer(rt.GRPC, grpc.NewWaitlists(owners))
	signupv1.RegisterAdminServiceServer(rt.GRPC, grpc.NewAdmin(signup.NewAdmin(owners, svc, store, time.Now)))
	signupv1.RegisterSignupServiceServer(rt.GRPC, grpc.NewSignups(svc, signup.NewNotices(svc, store, rt.Seal)))
	forms := &grpc.Forms{Service: svc}
	if cfg.PageViews {
		forms.Views = store
	}
	signupv1.RegisterFormServiceServer(rt.GRPC, forms)

	if err := rt.Consume("account events", kafka.ConsumerConfig{
		Topics: []string{kafka.AccountsTopic}, Handler: signupkafka.Handler(waitlists), AfterCommit: wake,
		Confirm: claims.Owners{Accounts: accountv1.NewAccountServiceClient(account), Templates: templates}.Confirm,
	}); err != nil {
		return err
	}

	rt.Audit()
	purge := &postgres.Purge{
		Pool: rt.Pool, Every: cfg.PurgeEvery, Kept: cfg.TombstoneKept, Log: rt.Log,
		Forget: func(ctx context.Context, waitlistID string) error {
			return rt.Redis.Unlink(ctx, redis.KeysOf(waitlistID)...).Err()
		},
	}
	rt.Singleton("purge", purge.Run)
	return nil
}
