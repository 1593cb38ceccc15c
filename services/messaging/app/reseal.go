package app

import (
	"context"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging/postgres"
)

// NewReseal returns the command that seals the DKIM keys again.
func NewReseal(ctx context.Context, cfg service.Config) (*service.Reseal, error) {
	return service.NewReseal(ctx, definition(), cfg, func(ctx context.Context, rt *service.Runtime) (int, error) {
		return postgres.ResealDomains(ctx, rt.Pool, rt.Seal)
	})
}
