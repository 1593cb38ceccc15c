package grpc

import (
	"context"
	"time"

	analyticsv1 "waitlist.internal/proto/gen/waitlist/analytics/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
)

// Analytics serves AnalyticsService.
type Analytics struct {
	analyticsv1.UnimplementedAnalyticsServiceServer
	analytics *adminanalytics.Analytics
}

// NewAnalytics returns the server of analytics.
func NewAnalytics(analytics *adminanalytics.Analytics) *Analytics {
	return &Analytics{analytics: analytics}
}

// GetSeries implements the service.
func (s *Analytics) GetSeries(ctx context.Context, r *analyticsv1.GetSeriesRequest) (*analyticsv1.GetSeriesResponse, error) {
	days, err := s.analytics.Series(ctx, r.GetWaitlistId(), int(r.GetDays()))
	if err != nil {
		return nil, err
	}
	out := &analyticsv1.GetSeriesResponse{Days: make([]*analyticsv1.Day, len(days))}
	for i, d := range days {
		out.Days[i] = &analyticsv1.Day{
			Day: d.Day.Format(time.DateOnly), Views: d.Views, Signups: d.Signups, ReferralSignups: d.ReferralSignups,
			ConversionRate: d.Conversion(),
		}
	}
	return out, nil
}

// GetOrigins implements the service.
func (s *Analytics) GetOrigins(ctx context.Context, r *analyticsv1.GetOriginsRequest) (*analyticsv1.GetOriginsResponse, error) {
	o, err := s.analytics.Origins(ctx, r.GetWaitlistId())
	if err != nil {
		return nil, err
	}
	return &analyticsv1.GetOriginsResponse{Sources: origins(o.Sources), Mediums: origins(o.Mediums), Campaigns: origins(o.Campaigns)}, nil
}

func origins(in []adminanalytics.Origin) []*analyticsv1.Origin {
	out := make([]*analyticsv1.Origin, len(in))
	for i, o := range in {
		out[i] = &analyticsv1.Origin{Value: o.Value, Count: o.Count}
	}
	return out
}
