// Package grpc reads tallies from the signup service.
package grpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
)

// Signups implements adminanalytics.Signups.
type Signups struct{ client signupv1.AdminServiceClient }

// NewSignups returns the Signups of a client.
func NewSignups(client signupv1.AdminServiceClient) *Signups { return &Signups{client} }

// WaitlistIDs implements adminanalytics.Signups.
func (s *Signups) WaitlistIDs(ctx context.Context, next func([]string) error) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := s.client.ListWaitlistIds(ctx, &signupv1.ListWaitlistIdsRequest{})
	if err != nil {
		return fmt.Errorf("list waitlists: %w", err)
	}
	return each(stream, func(r *signupv1.ListWaitlistIdsResponse) error { return next(r.GetWaitlistIds()) })
}

// Tally implements adminanalytics.Signups.
func (s *Signups) Tally(ctx context.Context, waitlistID string, next func(adminanalytics.Tally) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.TallySignups(ctx, &signupv1.TallySignupsRequest{WaitlistId: waitlistID})
	if err != nil {
		return fmt.Errorf("tally signups: %w", err)
	}
	return each(stream, func(r *signupv1.TallySignupsResponse) error {
		t := adminanalytics.Tally{LastNumber: r.GetLastNumber()}
		for _, d := range r.GetDays() {
			day, err := time.Parse(time.DateOnly, d.GetDay())
			if err != nil {
				return fmt.Errorf("tally signups: %w", err)
			}
			t.Days = append(t.Days, adminanalytics.Day{Day: day, Signups: d.GetSignups(), ReferralSignups: d.GetReferralSignups()})
		}
		for _, v := range r.GetValues() {
			t.Values = append(t.Values, adminanalytics.OriginTally{
				Field: v.GetField(), Value: v.GetValue(), Count: v.GetCount(), LastNumber: v.GetLastNumber(),
			})
		}
		return next(t)
	})
}

// each calls fn with every message of a stream.
func each[T any](stream grpc.ServerStreamingClient[T], fn func(*T) error) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive from signup: %w", err)
		}
		if err := fn(m); err != nil {
			return err
		}
	}
}
