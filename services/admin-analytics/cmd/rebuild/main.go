// Command rebuild rebuilds the sums of analytics from signup's rows and, with -views,
// from the page views that Kafka still holds. It has the service's environment
// (app.Config) and may run while the service runs.
package main

import (
	"context"
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/admin-analytics/app"
)

func main() {
	os.Exit(service.Command(func(ctx context.Context, cfg app.Config) (*app.Rebuild, error) {
		return app.NewRebuild(ctx, cfg, os.Args[1:])
	}))
}
