package app

import (
	"context"
	"time"

	"waitlist.internal/libs/claims"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	analyticsv1 "waitlist.internal/proto/gen/waitlist/analytics/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/grpc"
	signuphttp "waitlist.internal/services/signup/http"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/join"
	signupkafka "waitlist.internal/services/signup/kafka"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/postgres"
)

// wire adds the owners' side of waitlists: their routes, the internal interface, the
// consumer of account events, and the purge.
func wire(rt *service.Runtime, cfg Config, store *postgres.Signups, svc *join.Service, wake func()) error {
	waitlists := postgres.NewWaitlists(rt.Pool, wake, time.Now)
	messaging, err := rt.Dial("messaging")
	if err != nil {
		return err
	}
	messages := messagingv1.NewMessagingServiceClient(messaging)
	account, err := rt.Dial("account")
	if err != nil {
		return err
	}
	accounts := accountv1.NewAccountServiceClient(account)
	analytics, err := rt.Dial("admin-analytics")
	if err != nil {
		return err
	}
	var verified owners.Accounts
	if cfg.EnforceEmailVerification {
		verified = grpc.Accounts{Account: accounts}
	}
	service := owners.NewOwners(waitlists, rt.Seal, grpc.Templates{Messaging: messages}, owners.Bounds{
		Waitlists: cfg.MaxWaitlists, SettingsBytes: cfg.MaxSettingsBytes,
	}, time.Now)
	admin := owners.NewAdmin(service, svc, store, verified, time.Now, rt.Log)
	signuphttp.OwnersRoutes(rt.Engine, signuphttp.Backends{
		Accounts: accounts, Owners: service, Admin: admin,
		Analytics: analyticsv1.NewAnalyticsServiceClient(analytics), Messaging: messages,
	})
	signupv1.RegisterWaitlistServiceServer(rt.GRPC, grpc.NewWaitlists(service))
	signupv1.RegisterAdminServiceServer(rt.GRPC, grpc.NewAdmin(admin))
	signupv1.RegisterSignupServiceServer(rt.GRPC, grpc.NewSignups(owners.NewMessages(svc, store, rt.Seal, time.Now)))
	signupv1.RegisterFormServiceServer(rt.GRPC, &grpc.Forms{Service: svc, Views: store})

	if err := rt.Consume("account events", kafka.ConsumerConfig{
		Topics: []string{kafka.AccountsTopic}, Handler: signupkafka.Handler(waitlists), AfterCommit: wake,
		Confirm: claims.Owners{Accounts: accounts, Templates: messages}.Confirm,
	}); err != nil {
		return err
	}

	rt.Audit()
	purge := &postgres.Purge{
		Pool: rt.Pool, Every: cfg.PurgeEvery, Kept: cfg.TombstoneKept, Log: rt.Log,
		Forget: func(ctx context.Context, waitlistID string) error {
			return rt.Redis.Unlink(ctx, index.KeysOf(waitlistID)...).Err()
		},
	}
	rt.Singleton("purge", purge.Run)
	return nil
}
