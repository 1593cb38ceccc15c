package http_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
	ownershttp "waitlist.internal/services/admin-analytics/http"
)

// sums stands for signup's decision and the stored sums.
type sums struct {
	signupv1.AdminServiceClient
	asked     *signupv1.AuthorizeAnalyticsRequest
	referrers []*signupv1.Referrer
	refused   error
	days      []adminanalytics.Day
	origins   adminanalytics.Origins
	away      error
	first     time.Time
}

func (*sums) Authorize(context.Context, *accountv1.AuthorizeRequest, ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	return &accountv1.AuthorizeResponse{Actor: actor()}, nil
}

func (s *sums) AuthorizeAnalytics(_ context.Context, r *signupv1.AuthorizeAnalyticsRequest,
	_ ...grpc.CallOption,
) (*signupv1.AuthorizeAnalyticsResponse, error) {
	s.asked = r
	return &signupv1.AuthorizeAnalyticsResponse{WaitlistId: r.GetWaitlistId(), TopReferrers: s.referrers}, s.refused
}

func (s *sums) Days(_ context.Context, _ string, first time.Time) ([]adminanalytics.Day, error) {
	s.first = first
	return s.days, s.away
}

func (s *sums) Origins(context.Context, string, int) (adminanalytics.Origins, error) {
	return s.origins, s.away
}

// get asks on 1 March 2026.
func (s *sums) get(t *testing.T, path string) (int, []byte) {
	t.Helper()
	e, err := httpapi.NewEngine(httpapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return time.Date(2026, 3, 1, 0, 0, 1, 0, time.UTC) }
	ownershttp.Routes(e, ownershttp.Backends{Accounts: s, Signups: s, Analytics: adminanalytics.NewAnalytics(s, now)})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/waitlists/"+id+path, nil)
	r.Header.Set("X-Api-Key", "good")
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, r)
	return rec.Code, rec.Body.Bytes()
}

func date(s string) time.Time {
	d, _ := time.Parse(time.DateOnly, s)
	return d
}

func TestAnalytics(t *testing.T) {
	t.Parallel()
	s := &sums{
		referrers: []*signupv1.Referrer{{Email: "b@example.com", FirstName: "Bo", ReferralCount: 7}, {Email: "c@example.com", ReferralCount: 1}},
		days: []adminanalytics.Day{
			{Day: date("2026-02-23"), Views: 3, Signups: 1},
			{Day: date("2026-02-24"), Views: 3, Signups: 2, ReferralSignups: 1},
			{Day: date("2026-02-25"), Views: 1, Signups: 100},
			{Day: date("2026-02-26"), Signups: 4},
			{Day: date("2026-02-27"), Views: 1 << 40, Signups: 1},
			{Day: date("2026-03-01"), Views: 2, Signups: 2},
			{Day: date("2026-03-02"), Views: 9}, // of a clock that is ahead
		},
	}
	status, body := s.get(t, "/analytics?range=7d")
	const want = `{"waitlist_id":"` + id + `","range":"7d",` +
		`"views_by_day":{"2026-02-23":3,"2026-02-24":3,"2026-02-25":1,"2026-02-26":0,"2026-02-27":1099511627776,"2026-02-28":0,` +
		`"2026-03-01":2},` +
		`"signups_by_day":{"2026-02-23":1,"2026-02-24":2,"2026-02-25":100,"2026-02-26":4,"2026-02-27":1,"2026-02-28":0,"2026-03-01":2},` +
		`"referral_signups_by_day":{"2026-02-23":0,"2026-02-24":1,"2026-02-25":0,"2026-02-26":0,"2026-02-27":0,"2026-02-28":0,"2026-03-01":0},` +
		`"conversion_rate_by_day":{"2026-02-23":0.3333,"2026-02-24":0.6667,"2026-02-25":1,"2026-02-26":0,"2026-02-27":0,` +
		`"2026-02-28":0,"2026-03-01":1},` +
		`"top_referrers":[{"email":"b@example.com","first_name":"Bo","referral_count":7},{"email":"c@example.com","first_name":"",` +
		`"referral_count":1}]}`
	if got := strings.TrimSpace(string(body)); status != http.StatusOK || got != want {
		t.Errorf("%d %s", status, got)
	}
	if !proto.Equal(s.asked, &signupv1.AuthorizeAnalyticsRequest{Actor: actor(), WaitlistId: id, Referrers: 10}) {
		t.Errorf("asked %v", s.asked)
	}
}

func TestAnalyticsRanges(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]struct {
		word string
		days int
	}{
		"": {"30d", 30}, "?range=": {"30d", 30}, "?range=7d": {"7d", 7}, "?range=30d": {"30d", 30}, "?range=90d": {"90d", 90},
	} {
		s := &sums{}
		status, body := s.get(t, "/analytics"+query)
		var doc struct {
			Range  string           `json:"range"`
			Views  map[string]int64 `json:"views_by_day"`
			Top    []any            `json:"top_referrers"`
			Signup map[string]int64 `json:"signups_by_day"`
		}
		if err := json.Unmarshal(body, &doc); err != nil {
			t.Fatal(err)
		}
		days := slices.Sorted(maps.Keys(doc.Views))
		if status != http.StatusOK || doc.Range != want.word || len(days) != want.days || doc.Top == nil ||
			days[0] != s.first.Format(time.DateOnly) ||
			days[len(days)-1] != "2026-03-01" || !slices.Equal(days, slices.Sorted(maps.Keys(doc.Signup))) {
			t.Errorf("%q: %d %s", query, status, body)
		}
	}
	for _, query := range []string{"?range=5d", "?range=30", "?range=%ff", "?range=7D", "?range=7d%20"} {
		s := &sums{refused: apierr.New(apierr.ValidationError, "no")}
		if status, body := s.get(t, "/analytics"+query); status != http.StatusBadRequest {
			t.Errorf("%q: %d %s", query, status, body)
		}
		if s.asked.GetInvalidParameter() != "range" || s.asked.GetInvalidMessage() == "" || !s.first.IsZero() {
			t.Errorf("%q: asked %v", query, s.asked)
		}
	}
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	s := &sums{origins: adminanalytics.Origins{Sources: []adminanalytics.Origin{{Value: "<mail>", Count: 2}, {Value: "(other)", Count: 9}}}}
	status, body := s.get(t, "/analytics/utm")
	const want = `{"waitlist_id":"` + id + `","by_source":[{"value":"(other)","count":9},{"value":"<mail>","count":2}],` +
		`"by_medium":[],"by_campaign":[]}`
	if got := strings.TrimSpace(string(body)); status != http.StatusOK || got != want {
		t.Errorf("%d %s", status, got)
	}
	if !proto.Equal(s.asked, &signupv1.AuthorizeAnalyticsRequest{Actor: actor(), WaitlistId: id}) {
		t.Errorf("asked %v", s.asked)
	}
}

func TestAnalyticsErrors(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/analytics", "/analytics/utm"} {
		for _, tt := range []struct {
			s    sums
			want int
		}{
			{sums{refused: apierr.New(apierr.TierRequired, "no")}, http.StatusForbidden},
			{sums{refused: apierr.NotFoundf("no")}, http.StatusNotFound},
			{sums{away: errors.New("away")}, http.StatusInternalServerError},
		} {
			t.Run(fmt.Sprint(path, " ", tt.want), func(t *testing.T) {
				t.Parallel()
				if status, body := tt.s.get(t, path); status != tt.want {
					t.Errorf("%d %s", status, body)
				}
			})
		}
	}
}
