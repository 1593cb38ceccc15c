package app

import (
	"context"
	"time"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/signup/postgres"
)

// NewReseal returns the command that seals the channels' URLs again.
func NewReseal(ctx context.Context, cfg service.Config) (*service.Reseal, error) {
	return service.NewReseal(ctx, definition(), cfg, func(ctx context.Context, rt *service.Runtime) (int, error) {
		return postgres.NewWaitlists(rt.Pool, nil, time.Now).Reseal(ctx, rt.Seal.Renew)
	})
}
