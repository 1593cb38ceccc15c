package app

import (
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	"waitlist.internal/services/signup"
	"waitlist.internal/services/signup/postgres"
)

// wire adds what the owners' side of waitlists needs: the internal interface,
// the events about accounts, and the purge.
func wire(_ *service.Runtime, _ kafka.Config, _ *postgres.Signups, _ *signup.Service, _ func()) error {
	return nil
}
