package http_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	ownershttp "waitlist.internal/services/admin-analytics/http"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "0193d4a2-5c1e-7a41-8000-000000000001"

// backend stands for account and signup: it keeps the last request and
// answers with what the test gave it.
type backend struct {
	signupv1.WaitlistServiceClient
	signupv1.AdminServiceClient
	got      proto.Message
	waitlist *signupv1.Waitlist
	page     *signupv1.ListSignupsResponse
	replayed bool
	err      error
}

func (b *backend) Authorize(_ context.Context, r *accountv1.AuthorizeRequest, _ ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	if r.GetApiKey() != "good" {
		return nil, apierr.New(apierr.AuthenticationRequired, "no")
	}
	return &accountv1.AuthorizeResponse{Actor: actor()}, nil
}

func actor() *accessv1.Actor {
	return &accessv1.Actor{AccountId: "a", Email: "a@example.com", EmailVerified: true, Method: accessv1.Method_METHOD_API_KEY}
}

func (b *backend) CreateWaitlist(_ context.Context, r *signupv1.CreateWaitlistRequest,
	_ ...grpc.CallOption,
) (*signupv1.CreateWaitlistResponse, error) {
	b.got = r
	return &signupv1.CreateWaitlistResponse{Waitlist: b.waitlist, Replayed: b.replayed}, b.err
}

func (b *backend) ListWaitlists(_ context.Context, r *signupv1.ListWaitlistsRequest,
	_ ...grpc.CallOption,
) (*signupv1.ListWaitlistsResponse, error) {
	b.got = r
	res := &signupv1.ListWaitlistsResponse{}
	if b.waitlist != nil {
		res.Waitlists = append(res.Waitlists, b.waitlist)
	}
	return res, b.err
}

func (b *backend) GetWaitlist(_ context.Context, r *signupv1.GetWaitlistRequest,
	_ ...grpc.CallOption,
) (*signupv1.GetWaitlistResponse, error) {
	b.got = r
	return &signupv1.GetWaitlistResponse{Waitlist: b.waitlist}, b.err
}

func (b *backend) UpdateWaitlist(_ context.Context, r *signupv1.UpdateWaitlistRequest,
	_ ...grpc.CallOption,
) (*signupv1.UpdateWaitlistResponse, error) {
	b.got = r
	return &signupv1.UpdateWaitlistResponse{Waitlist: b.waitlist}, b.err
}

func (b *backend) DeleteWaitlist(_ context.Context, r *signupv1.DeleteWaitlistRequest,
	_ ...grpc.CallOption,
) (*signupv1.DeleteWaitlistResponse, error) {
	b.got = r
	return &signupv1.DeleteWaitlistResponse{}, b.err
}

func (b *backend) ListSignups(_ context.Context, r *signupv1.ListSignupsRequest,
	_ ...grpc.CallOption,
) (*signupv1.ListSignupsResponse, error) {
	b.got = r
	return b.page, b.err
}

func (b *backend) RemoveSignup(_ context.Context, r *signupv1.RemoveSignupRequest,
	_ ...grpc.CallOption,
) (*signupv1.RemoveSignupResponse, error) {
	b.got = r
	return &signupv1.RemoveSignupResponse{}, b.err
}

func (b *backend) MoveSignup(_ context.Context, r *signupv1.MoveSignupRequest,
	_ ...grpc.CallOption,
) (*signupv1.MoveSignupResponse, error) {
	b.got = r
	return &signupv1.MoveSignupResponse{Email: r.GetEmail(), Position: 7}, b.err
}

func (b *backend) CreditSignup(_ context.Context, r *signupv1.CreditSignupRequest,
	_ ...grpc.CallOption,
) (*signupv1.CreditSignupResponse, error) {
	b.got = r
	return &signupv1.CreditSignupResponse{Email: r.GetEmail()}, b.err
}

func (b *backend) GetStats(_ context.Context, r *signupv1.GetStatsRequest, _ ...grpc.CallOption) (*signupv1.GetStatsResponse, error) {
	b.got = r
	return &signupv1.GetStatsResponse{
		WaitlistId: r.GetWaitlistId(), TotalSignups: 5, ReferralSignups: 2,
		CreatedAt: b.waitlist.GetCreatedAt(),
	}, b.err
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	w := &signupv1.Waitlist{
		WaitlistId: id, Name: "<Launch>", SettingsJson: []byte(`{"headline":"<&>"}`), SignupCount: 3, Role: "admin", OwnerId: "o",
		CreatedAt: timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 5_999_999, time.UTC)),
	}
	const (
		summary = `{"waitlist_id":"` + id + `","name":"<Launch>","signup_count":3,"created_at":"2026-03-01T12:00:00.005Z"}`
		detail  = `{"waitlist_id":"` + id + `","name":"<Launch>","settings":{"headline":"<&>"},"signup_count":3,` +
			`"created_at":"2026-03-01T12:00:00.005Z"}`
	)
	at := timestamppb.New(time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC))
	const (
		token = "0123456789abcdef0123456789abcdef"
		full  = `{"email":"ada@example.com","first_name":"Ada","last_name":"L","phone":"+1","position":3,"referral_token":"` + token +
			`","referral_count":4,"referred_by":"` + token +
			`","utm":{"utm_source":"s","utm_medium":"m","utm_campaign":"c","utm_term":"t","utm_content":"n"},` +
			`"custom_answers":{"q":"<a>"},"email_verified":true,"email_opt_out":true,"email_opt_out_at":"2026-03-02T12:00:00.000Z",` +
			`"device_type":"tablet","created_at":"2026-03-02T12:00:00.000Z","flagged":"same_person,too_fast"}`
		sparse = `{"email":"b@example.com","first_name":"","last_name":"","phone":"","position":4,"referral_token":"` + token +
			`","referral_count":0,"referred_by":"","utm":{"utm_source":"","utm_medium":"","utm_campaign":"","utm_term":"",` +
			`"utm_content":""},"custom_answers":{},"email_verified":false,"email_opt_out":false,"email_opt_out_at":null,` +
			`"device_type":"","created_at":"2026-03-02T12:00:00.000Z"}`
	)
	signups := []*signupv1.AdminSignup{
		{
			Email: "ada@example.com", FirstName: "Ada", LastName: "L", Phone: "+1", Position: 3, ReferralToken: token, ReferralCount: 4,
			ReferredBy: token,
			UtmSource:  "s", UtmMedium: "m", UtmCampaign: "c", UtmTerm: "t", UtmContent: "n", CustomAnswersJson: []byte(`{"q":"<a>"}`),
			EmailVerified: true, EmailOptOut: true, EmailOptOutAt: at, DeviceType: "tablet", CreatedAt: at,
			Flagged: new("same_person,too_fast"),
		},
		{Email: "b@example.com", Position: 4, ReferralToken: token, CreatedAt: at},
	}
	for _, tt := range []struct {
		name, method, path, body string
		header                   map[string]string
		backend                  backend
		status                   int
		want                     string // body, or error code
		sent                     proto.Message
	}{
		{
			name: "create", method: http.MethodPost, path: "/v1/waitlists", body: `{"name":"x"}`, backend: backend{waitlist: w},
			header: map[string]string{"X-Account-Email": "o@example.com", "Idempotency-Key": "k"},
			status: 201, want: summary,
			sent: &signupv1.CreateWaitlistRequest{Actor: actor(), AccountEmail: "o@example.com", IdempotencyKey: "k", Body: []byte(`{"name":"x"}`)},
		},
		{
			name: "create with bytes that are no text", method: http.MethodPost, path: "/v1/waitlists", body: "\xff", backend: backend{waitlist: w},
			header: map[string]string{"X-Account-Email": "\xff", "Idempotency-Key": "\xff\xfe"},
			status: 201, want: summary,
			sent: &signupv1.CreateWaitlistRequest{Actor: actor(), AccountEmail: "\uFFFD", IdempotencyKey: "\uFFFD", Body: []byte("\xff")},
		},
		{
			name: "replay", method: http.MethodPost, path: "/v1/waitlists", body: `{"name":"x"}`, backend: backend{waitlist: w, replayed: true},
			status: 201, want: summary, sent: &signupv1.CreateWaitlistRequest{Actor: actor(), Body: []byte(`{"name":"x"}`)},
		},
		{
			name: "body over the limit", method: http.MethodPost, path: "/v1/waitlists", body: strings.Repeat(" ", 1<<20+1),
			backend: backend{err: apierr.New(apierr.InvalidBody, "empty")},
			status:  400, want: "INVALID_BODY", sent: &signupv1.CreateWaitlistRequest{Actor: actor()},
		},
		{
			name: "body over the limit of someone who may not", method: http.MethodPatch, path: "/v1/waitlists/" + id,
			body:    strings.Repeat(" ", 1<<20+1),
			backend: backend{err: apierr.New(apierr.Forbidden, "no")},
			status:  403, want: "FORBIDDEN", sent: &signupv1.UpdateWaitlistRequest{Actor: actor(), WaitlistId: id},
		},
		{
			name: "list", method: http.MethodGet, path: "/v1/waitlists", backend: backend{waitlist: w},
			status: 200, want: `{"waitlists":[` + summary + `]}`,
			sent: &signupv1.ListWaitlistsRequest{Actor: actor()},
		},
		{
			name: "empty list", method: http.MethodGet, path: "/v1/waitlists",
			status: 200, want: `{"waitlists":[]}`, sent: &signupv1.ListWaitlistsRequest{Actor: actor()},
		},
		{
			name: "get", method: http.MethodGet, path: "/v1/waitlists/" + strings.ToUpper(id), backend: backend{waitlist: w},
			status: 200, want: detail, sent: &signupv1.GetWaitlistRequest{Actor: actor(), WaitlistId: id},
		},
		{
			name: "update", method: http.MethodPatch, path: "/v1/waitlists/" + id, body: `{}`, backend: backend{waitlist: w},
			status: 200, want: detail, sent: &signupv1.UpdateWaitlistRequest{Actor: actor(), WaitlistId: id, Body: []byte(`{}`)},
		},
		{
			name: "delete", method: http.MethodDelete, path: "/v1/waitlists/" + id,
			status: 204, sent: &signupv1.DeleteWaitlistRequest{Actor: actor(), WaitlistId: id},
		},
		{
			name: "error of signup", method: http.MethodDelete, path: "/v1/waitlists/" + id, backend: backend{err: apierr.NotFoundf("gone")},
			status: 404, want: "NOT_FOUND", sent: &signupv1.DeleteWaitlistRequest{Actor: actor(), WaitlistId: id},
		},
		{
			name: "signups", method: http.MethodGet, path: "/v1/waitlists/" + id + "/signups?limit=2&last_key=a-_b",
			backend: backend{page: &signupv1.ListSignupsResponse{Signups: signups, LastKey: "next"}},
			status:  200, want: `{"signups":[` + full + `,` + sparse + `],"count":2,"last_key":"next"}`,
			sent: &signupv1.ListSignupsRequest{Actor: actor(), WaitlistId: id, Limit: "2", LastKey: "a-_b"},
		},
		{
			name: "no signups", method: http.MethodGet, path: "/v1/waitlists/" + id + "/signups?limit=&last_key=%ff",
			backend: backend{page: &signupv1.ListSignupsResponse{}},
			status:  200, want: `{"signups":[],"count":0,"last_key":null}`,
			sent: &signupv1.ListSignupsRequest{Actor: actor(), WaitlistId: id, LastKey: "\uFFFD"},
		},
		{
			name: "remove a signup", method: http.MethodDelete, path: "/v1/waitlists/" + id + "/signups/a+b%2Fc%25@example.com",
			status: 204, sent: &signupv1.RemoveSignupRequest{Actor: actor(), WaitlistId: id, Email: "a+b/c%@example.com"},
		},
		{
			name: "move a signup", method: http.MethodPatch, path: "/v1/waitlists/" + id + "/signups/a%40example.com/position",
			body:   `{"position":7}`,
			status: 200, want: `{"email":"a@example.com","position":7}`,
			sent: &signupv1.MoveSignupRequest{Actor: actor(), WaitlistId: id, Email: "a@example.com", Body: []byte(`{"position":7}`)},
		},
		{
			name: "move with a body over the limit", method: http.MethodPatch, path: "/v1/waitlists/" + id +
				"/signups/a@example.com/position", body: strings.Repeat(" ", 1<<20+1),
			backend: backend{err: apierr.New(apierr.InvalidBody, "empty")},
			status:  400, want: "INVALID_BODY", sent: &signupv1.MoveSignupRequest{Actor: actor(), WaitlistId: id, Email: "a@example.com"},
		},
		{
			name: "give a credit", method: http.MethodPatch, path: "/v1/waitlists/" + id + "/signups/a%40example.com",
			body:   `{"credit":true}`,
			status: 200, want: `{"email":"a@example.com","credit":true}`,
			sent: &signupv1.CreditSignupRequest{Actor: actor(), WaitlistId: id, Email: "a@example.com", Body: []byte(`{"credit":true}`)},
		},
		{
			name: "credit with a body over the limit", method: http.MethodPatch, path: "/v1/waitlists/" + id + "/signups/a@example.com",
			body:    strings.Repeat(" ", 1<<20+1),
			backend: backend{err: apierr.New(apierr.InvalidBody, "empty")},
			status:  400, want: "INVALID_BODY", sent: &signupv1.CreditSignupRequest{Actor: actor(), WaitlistId: id, Email: "a@example.com"},
		},
		{
			name: "stats", method: http.MethodGet, path: "/v1/waitlists/" + strings.ToUpper(id) + "/stats", backend: backend{waitlist: w},
			status: 200, want: `{"waitlist_id":"` + id + `","total_signups":5,"referral_signups":2,"created_at":"2026-03-01T12:00:00.005Z"}`,
			sent: &signupv1.GetStatsRequest{Actor: actor(), WaitlistId: id},
		},
		{name: "signups of an id that is none", method: http.MethodGet, path: "/v1/waitlists/1/signups", status: 404, want: "NOT_FOUND"},
		{name: "signup of other bytes", method: http.MethodDelete, path: "/v1/waitlists/" + id + "/signups/%ff", status: 404, want: "NOT_FOUND"},
		{
			name: "stats without credentials", method: http.MethodGet, path: "/v1/waitlists/" + id + "/stats",
			header: map[string]string{"X-Api-Key": "bad"}, status: 401, want: "AUTHENTICATION_REQUIRED",
		},
		{name: "id that is none", method: http.MethodGet, path: "/v1/waitlists/1", status: 404, want: "NOT_FOUND"},
		{name: "id of other bytes", method: http.MethodGet, path: "/v1/waitlists/%ff", status: 404, want: "NOT_FOUND"},
		{name: "id in braces", method: http.MethodPatch, path: "/v1/waitlists/%7b" + id + "%7d", body: `{`, status: 404, want: "NOT_FOUND"},
		{
			name: "id without hyphens", method: http.MethodDelete, path: "/v1/waitlists/" + strings.ReplaceAll(id, "-", ""), status: 404,
			want: "NOT_FOUND",
		},
		{name: "method", method: http.MethodPut, path: "/v1/waitlists/" + id, status: 404, want: "NOT_FOUND"},
		{name: "trailing slash", method: http.MethodGet, path: "/v1/waitlists/", status: 404, want: "NOT_FOUND"},
		{name: "path below", method: http.MethodGet, path: "/v1/waitlists/" + id + "/nothing", status: 404, want: "NOT_FOUND"},
		{
			name: "unknown path without credentials", method: http.MethodGet, path: "/v1/waitlists/" + id + "/nothing",
			header: map[string]string{"X-Api-Key": "bad"}, status: 404, want: "NOT_FOUND",
		},
		{
			name: "no credentials", method: http.MethodGet, path: "/v1/waitlists/1", header: map[string]string{"X-Api-Key": "bad"},
			status: 401, want: "AUTHENTICATION_REQUIRED",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := tt.backend
			e, err := httpapi.NewEngine(httpapi.Config{})
			if err != nil {
				t.Fatal(err)
			}
			ownershttp.Routes(e, ownershttp.Backends{Accounts: &b, Waitlists: &b, Signups: &b})
			r := httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, strings.NewReader(tt.body))
			r.Header.Set("X-Api-Key", "good")
			for k, v := range tt.header {
				r.Header.Set(k, v)
			}
			rec := httptest.NewRecorder()
			e.ServeHTTP(rec, r)
			if rec.Code != tt.status {
				t.Fatalf("status %d, want %d: %s", rec.Code, tt.status, rec.Body)
			}
			got := strings.TrimSpace(rec.Body.String())
			if rec.Code >= 400 {
				var body struct {
					ErrorCode string `json:"error_code"`
				}
				if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
					t.Fatal(err)
				}
				got = body.ErrorCode
			}
			if got != tt.want {
				t.Errorf("answer %s, want %s", got, tt.want)
			}
			if tt.sent == nil {
				if b.got != nil {
					t.Errorf("signup was asked: %v", b.got)
				}
			} else if !proto.Equal(b.got, tt.sent) {
				t.Errorf("sent %v, want %v", b.got, tt.sent)
			}
			if replayed := rec.Header().Get("Idempotent-Replayed") == "true"; replayed != b.replayed {
				t.Errorf("Idempotent-Replayed: %t", replayed)
			}
		})
	}
}
