package app

import (
	"context"
	"fmt"
	"time"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging"
	messagingkafka "waitlist.internal/services/messaging/kafka"
	"waitlist.internal/services/messaging/postgres"
)

// publish runs the outbox's relay and returns what wakes it.
func publish(rt *service.Runtime) (wake func(), err error) {
	writer := kafka.NewWriter(rt.Kafka)
	rt.OnClose("kafka writer", func(context.Context) error { return writer.Close() })
	relay, err := outbox.NewRelay(rt.Pool, writer, rt.Name, rt.Log)
	if err != nil {
		return nil, fmt.Errorf("relay metrics: %w", err)
	}
	rt.Go("outbox relay", func(ctx context.Context) error {
		if err := kafka.EnsureTopics(ctx, rt.Kafka); err != nil {
			return err
		}
		return relay.Run(ctx)
	})
	return relay.Wake, nil
}

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
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{
		Config: rt.Kafka, Group: rt.Name + "-blasts", Topics: []string{kafka.BlastsTopic}, Pool: rt.Pool,
		Handler: messagingkafka.BlastHandler(store), Logger: rt.Log, AfterCommit: blaster.Wake,
	})
	if err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	rt.Go("blasts", blaster.Run)
	rt.Go("batches", consumer.Run)
	return messaging.NewBlasts(messaging.BlastsConfig{
		Store: store, Lists: lists, EnforceVerification: cfg.EnforceEmailVerification, TrialCap: cfg.BlastDailyCapTrial, Wake: blaster.Wake, Log: rt.Log, Now: time.Now,
	}), nil
}
