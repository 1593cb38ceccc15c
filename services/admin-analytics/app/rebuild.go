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

// Rebuild is the command that makes the sums of analytics again, while the
// service runs or not. It may be repeated, and run for several waitlists at
// once.
type Rebuild struct {
	rt       *service.Runtime
	signups  signupv1.AdminServiceClient
	waitlist string
	views    bool
}

// NewRebuild opens what the command uses. args are its flags.
func NewRebuild(ctx context.Context, cfg Config, args []string) (_ *Rebuild, err error) {
	r := &Rebuild{}
	flags := flag.NewFlagSet("rebuild", flag.ContinueOnError)
	flags.SetOutput(cfg.LogOutput)
	flags.StringVar(&r.waitlist, "waitlist", "", "the id of the one waitlist to rebuild; empty: all")
	flags.BoolVar(&r.views, "views", false, "also add up the page views that Kafka still holds")
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
	command.Options.HTTP = false
	r.rt, err = command.Open(ctx, cfg.Config, func(rt *service.Runtime) error {
		conn, err := rt.Dial(cfg.SignupTarget, "signup")
		r.signups = signupv1.NewAdminServiceClient(conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Run rebuilds, and closes what NewRebuild opened. What was rebuilt before an
// error stays.
func (r *Rebuild) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.rt.Close(context.WithoutCancel(ctx))) }()
	job := adminanalytics.Rebuild{
		Store: postgres.New(r.rt.Pool), Signups: grpc.NewSignups(r.signups), Log: r.rt.Log, Now: time.Now,
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
