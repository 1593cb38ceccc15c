package http_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	ownershttp "waitlist.internal/services/admin-analytics/http"
)

// bulk stands for messaging: it keeps the last request, how long the answer may
// take, and answers with what the test gave it.
type bulk struct {
	messagingv1.MessagingServiceClient
	got      proto.Message
	within   time.Duration
	blasts   []*messagingv1.Blast
	replayed bool
	err      error
}

func (b *bulk) CreateBlast(ctx context.Context, r *messagingv1.CreateBlastRequest,
	_ ...grpc.CallOption,
) (*messagingv1.CreateBlastResponse, error) {
	b.got = r
	end, _ := ctx.Deadline()
	b.within = time.Until(end)
	if b.err != nil {
		return nil, b.err
	}
	return &messagingv1.CreateBlastResponse{Blast: b.blasts[0], Replayed: b.replayed}, nil
}

func (b *bulk) ListBlasts(_ context.Context, r *messagingv1.ListBlastsRequest,
	_ ...grpc.CallOption,
) (*messagingv1.ListBlastsResponse, error) {
	b.got = r
	return &messagingv1.ListBlastsResponse{Blasts: b.blasts}, b.err
}

func TestBlastRoutes(t *testing.T) {
	t.Parallel()
	sent := []*messagingv1.Blast{{
		BlastId: "b", Subject: "<News>", RecipientCount: 7, FailedCount: 2, Status: "sent",
		SentAt: timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 5_999_999, time.UTC)),
	}}
	const path = "/v1/waitlists/" + id + "/blasts"
	for _, tt := range []struct {
		name, method, path, body, key string
		bulk                          bulk
		status                        int
		want                          string // body, or error code
		asked                         proto.Message
	}{
		{
			name: "create", method: http.MethodPost, path: path, body: `{"subject":"x"}`, key: "k", bulk: bulk{blasts: sent},
			status: 200, want: `{"blast_id":"b","recipient_count":7,"failed_count":2,"status":"sent"}`,
			asked: &messagingv1.CreateBlastRequest{Actor: actor(), WaitlistId: id, IdempotencyKey: "k", Body: []byte(`{"subject":"x"}`)},
		},
		{
			name: "replay", method: http.MethodPost, path: path, body: `{}`, bulk: bulk{blasts: sent, replayed: true},
			status: 200, want: `{"blast_id":"b","recipient_count":7,"failed_count":2,"status":"sent"}`,
			asked: &messagingv1.CreateBlastRequest{Actor: actor(), WaitlistId: id, Body: []byte(`{}`)},
		},
		{
			name: "body over the limit", method: http.MethodPost, path: path, body: strings.Repeat(" ", 1<<20+1),
			bulk:   bulk{err: apierr.New(apierr.InvalidBody, "empty")},
			status: 400, want: "INVALID_BODY", asked: &messagingv1.CreateBlastRequest{Actor: actor(), WaitlistId: id},
		},
		{
			name: "refused", method: http.MethodPost, path: path, body: `{}`, bulk: bulk{err: apierr.New(apierr.TierRequired, "no")},
			status: 403, want: "TIER_REQUIRED", asked: &messagingv1.CreateBlastRequest{Actor: actor(), WaitlistId: id, Body: []byte(`{}`)},
		},
		{
			name: "list", method: http.MethodGet, path: path, bulk: bulk{blasts: sent},
			status: 200, want: `{"blasts":[{"blast_id":"b","subject":"<News>","sent_at":"2026-03-01T12:00:00.005Z",` +
				`"recipient_count":7,"failed_count":2,"status":"sent"}]}`,
			asked: &messagingv1.ListBlastsRequest{Actor: actor(), WaitlistId: id},
		},
		{
			name: "empty list", method: http.MethodGet, path: path, status: 200, want: `{"blasts":[]}`,
			asked: &messagingv1.ListBlastsRequest{Actor: actor(), WaitlistId: id},
		},
		{name: "no id", method: http.MethodPost, path: "/v1/waitlists/x/blasts", body: `{}`, status: 404, want: "NOT_FOUND"},
		{name: "no id to list", method: http.MethodGet, path: "/v1/waitlists/x/blasts", status: 404, want: "NOT_FOUND"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := tt.bulk
			e, err := httpapi.NewEngine(httpapi.Config{})
			if err != nil {
				t.Fatal(err)
			}
			ownershttp.Routes(e, ownershttp.Backends{Accounts: &backend{}, Messaging: &b})
			r := httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, strings.NewReader(tt.body))
			r.Header.Set("X-Api-Key", "good")
			if tt.key != "" {
				r.Header.Set("Idempotency-Key", tt.key)
			}
			rec := httptest.NewRecorder()
			e.ServeHTTP(rec, r)
			got := strings.TrimSpace(rec.Body.String())
			if rec.Code >= 400 {
				var failure struct {
					Code string `json:"error_code"`
				}
				if err := json.Unmarshal(rec.Body.Bytes(), &failure); err != nil {
					t.Fatal(err)
				}
				got = failure.Code
			}
			if rec.Code != tt.status || got != tt.want {
				t.Errorf("%d %s, want %d %s", rec.Code, got, tt.status, tt.want)
			}
			if !proto.Equal(b.got, tt.asked) && (b.got != nil || tt.asked != nil) {
				t.Errorf("messaging was asked %v, want %v", b.got, tt.asked)
			}
			if h := rec.Header().Get("Idempotent-Replayed"); (h == "true") != b.replayed {
				t.Errorf("Idempotent-Replayed %q", h)
			}
			// messaging answers after five seconds.
			if tt.method == http.MethodPost && b.within > 0 && b.within < 6*time.Second {
				t.Errorf("messaging had %s", b.within)
			}
		})
	}
}
