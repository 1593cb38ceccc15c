package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/service"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
	"waitlist.internal/services/admin-analytics/grpc"
	analyticskafka "waitlist.internal/services/admin-analytics/kafka"
	"waitlist.internal/services/admin-analytics/postgres"
)

// Rebuild is the command that rebuilds the sums of analytics. The service may run at
// the same time. It is safe to repeat the command and to run it for several waitlists
// at once.
type Rebuild struct {
	rt       *service.Runtime
	signups  signupv1.AdminServiceClient
	waitlist string
	views    bool
}

// NewRebuild parses the flags in args and opens the command's connections.
func NewRebuild(ctx context.Context, cfg Config, args []string) (_ *Rebuild, err error) {
	r := &Rebuild{}
	flags := flag.NewFlagSet("rebuild", flag.ContinueOnError)
	flags.SetOutput(cfg.LogOutput)
	flags.StringVar(&r.waitlist, "waitlist", "", "id of the waitlist to rebuild (default: all waitlists)")
	flags.BoolVar(&r.views, "views", false, "also count the page views that Kafka still holds")
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("rebuild: %w", err)
	}
	if r.waitlist != "" {
		id, err := uuid.Parse(r.waitlist)
		if err != nil {
			return nil, fmt.Errorf("rebuild: -waitlist: %w", err)
		}
		r.waitlist = id.String()
	}
	command := definition()
	command.Options.GRPC = false
	r.rt, err = command.Open(ctx, cfg.Config, nil, func(rt *service.Runtime) error {
		conn, err := rt.Dial("signup")
		r.signups = signupv1.NewAdminServiceClient(conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Run rebuilds the sums and closes the connections. After an error, the waitlists that
// were rebuilt before it keep their new sums.
func (r *Rebuild) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.rt.Close(context.WithoutCancel(ctx))) }()
	job := adminanalytics.Rebuild{
		Store: postgres.New(r.rt.Direct), Signups: grpc.NewSignups(r.signups), Log: r.rt.Log, Now: time.Now,
	}
	if r.waitlist == "" {
		err = job.All(ctx)
	} else {
		err = job.One(ctx, r.waitlist)
	}
	if err != nil || !r.views {
		return err
	}
	return job.Views(ctx, r.waitlist, analyticskafka.NewLog(r.rt.Kafka))
}
