package app

import (
	"time"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/postgres"
)

// openBlasts starts the goroutines that send blasts and returns the owners' side of
// blasts. It completes sending with the settings and the store.
func openBlasts(rt *service.Runtime, cfg Config, sending messaging.BlasterConfig) *messaging.Blasts {
	store := postgres.NewBlasts(rt.Pool, time.Now)
	sending.Queue, sending.Workers, sending.Rate, sending.Lease = store, cfg.MailWorkers, cfg.BlastRate, cfg.BlastLease
	sending.Log, sending.Now, sending.Registerer = rt.Log, time.Now, rt.Telemetry.Registerer
	sending.Tracers = rt.Telemetry.Tracers
	blaster := messaging.NewBlaster(sending)
	rt.Go("blasts", blaster.Run)
	rt.Singleton("plans of blasts", blaster.Plan)
	rt.Singleton("retention of blasts", blaster.Prune)
	return messaging.NewBlasts(messaging.BlastsConfig{
		Store: store, Lists: sending.Lists, Limits: sending.Limits, MaxBlasts: cfg.MaxBlasts,
		Wake: blaster.Wake, Log: rt.Log, Now: time.Now,
	})
}
