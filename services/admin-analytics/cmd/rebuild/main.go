// Command rebuild makes the sums of analytics again, from signup's rows and,
// with -views, from the page views that Kafka still holds. Its environment is the
// service's (app.Config); it runs beside the service.
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
