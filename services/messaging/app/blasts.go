package app

import (
	"fmt"
	"time"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging"
	messagingkafka "waitlist.internal/services/messaging/kafka"
	"waitlist.internal/services/messaging/postgres"
)

// bulk adds what sends blasts and returns the owners' side of them.
func bulk(rt *service.Runtime, cfg Config, composer *messaging.Composer, provider messaging.Provider, lists messaging.Lists, senders messaging.Senders, suppressions messaging.Suppressions, wake func()) (*messaging.Blasts, error) {
	store := postgres.NewBlasts(rt.Pool, time.Now)
	blaster, err := messaging.NewBlaster(messaging.BlasterConfig{
		Queue: store, Lists: lists, Provider: provider, Composer: composer, Workers: cfg.BlastWorkers, Rate: cfg.BlastRate, Lease: cfg.BlastLease,
		Senders: senders, Suppressions: suppressions, Published: wake, Log: rt.Log, Now: time.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("blast metrics: %w", err)
	}
	// A group of its own: the batches of a long blast hold up no other mail.
	if err := rt.Consume("batches", kafka.ConsumerConfig{
		Group: rt.Name + "-blasts", Topics: []string{kafka.BlastsTopic}, Handler: messagingkafka.BlastHandler(store), AfterCommit: blaster.Wake,
	}); err != nil {
		return nil, err
	}
	rt.Go("blasts", blaster.Run)
	return messaging.NewBlasts(messaging.BlastsConfig{
		Store: store, Lists: lists, EnforceVerification: cfg.EnforceEmailVerification, TrialCap: cfg.BlastDailyCapTrial, Wake: blaster.Wake, Log: rt.Log, Now: time.Now,
	}), nil
}
