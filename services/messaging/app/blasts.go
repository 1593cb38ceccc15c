package app

import (
	"time"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/postgres"
)

// openBlasts starts the goroutines that send blasts and returns the owners' side of
// blasts. It completes sending with the settings and the store.
func openBlasts(rt *service.Runtime, cfg Config, sending blasts.BlasterConfig) *blasts.Service {
	store := postgres.NewBlasts(rt.Pool, time.Now)
	sending.Queue, sending.Workers, sending.Rate, sending.Lease = store, cfg.MailWorkers, cfg.BlastRate, cfg.BlastLease
	sending.Log, sending.Now, sending.Registerer = rt.Log, time.Now, rt.Telemetry.Registerer
	sending.Tracers = rt.Telemetry.Tracers
	blaster := blasts.NewBlaster(sending)
	rt.Go("blasts", blaster.Run)
	rt.Singleton("plans of blasts", blaster.Plan)
	rt.Singleton("retention of blasts", blaster.Prune)
	return blasts.New(blasts.Config{
		Store: store, Lists: sending.Lists, Limits: sending.Limits, MaxBlasts: cfg.MaxBlasts,
		Wake: blaster.Wake, Log: rt.Log, Now: time.Now,
	})
}
