package http_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	analyticsv1 "waitlist.internal/proto/gen/waitlist/analytics/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/signup/join"
)

// bytes fails the test unless the answer has that status and exactly those bytes.
func (a answer) bytes(t *testing.T, status int, want string) {
	t.Helper()
	if a.status != status || strings.TrimSpace(a.body) != want {
		t.Errorf("%d %s\nwant %d %s", a.status, a.body, status, want)
	}
}

const listsPath = "/v1/waitlists"

func TestOwnersWaitlists(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	made := e.as(t, http.MethodPost, listsPath, `{"name":"<Two>"}`, "Idempotency-Key", "k")
	id, _ := made.object(t)["waitlist_id"].(string)
	two := `{"waitlist_id":"` + id + `","name":"<Two>","signup_count":0,"created_at":"` + clockText + `"}`
	made.bytes(t, http.StatusCreated, two)
	if made.header.Get("Idempotent-Replayed") != "" {
		t.Error("it is no repetition")
	}
	again := e.as(t, http.MethodPost, listsPath, `{"name":"<Two>"}`, "Idempotency-Key", "k")
	again.bytes(t, http.StatusCreated, two)
	if again.header.Get("Idempotent-Replayed") != "true" {
		t.Error("it is a repetition")
	}
	for _, key := range []string{"\xff", "\u00e4"} {
		e.as(t, http.MethodPost, listsPath, `{"name":"x"}`, "Idempotency-Key", key).fails(t, 400, apierr.ValidationError, "Idempotency-Key")
	}
	e.as(t, http.MethodPost, listsPath, `{"name":"x"}`, "X-Account-Email", "\xff").fails(t, 403, apierr.Forbidden)
	e.exec(t, `DELETE FROM waitlist WHERE id = $1`, e.list)
	e.as(t, http.MethodGet, listsPath, "").bytes(t, 200, `{"waitlists":[`+two+`]}`)
	mine := e.actor.Grants[0]
	e.actor.Grants = append(e.actor.Grants, access.Grant{OwnerID: uuid.NewString(), Role: access.Viewer, Entitlement: mine.Entitlement})
	e.as(t, http.MethodGet, listsPath, "").bytes(t, 200, `{"waitlists":[`+strings.TrimSuffix(two, "}")+`,"role":"owner"}]}`)

	path := listsPath + "/" + id
	settings, _ := strings.CutPrefix(e.as(t, http.MethodGet, listsPath+"/"+strings.ToUpper(id), "").body,
		`{"waitlist_id":"`+id+`","name":"<Two>",`)
	if !strings.HasPrefix(settings, `"settings":{`) || !strings.HasSuffix(strings.TrimSpace(settings),
		`},"signup_count":0,"created_at":"`+clockText+`"}`) {
		t.Errorf("detail %s", settings)
	}
	e.as(t, http.MethodPatch, path, `{"name":"Three"}`).bytes(t, 200,
		strings.TrimSpace(`{"waitlist_id":"`+id+`","name":"Three",`+settings))
	e.actor.Grants[0].Role = access.Viewer
	e.as(t, http.MethodPatch, path, strings.Repeat(" ", 1<<20+1)).fails(t, 403, apierr.Forbidden)
	e.as(t, http.MethodDelete, path, "").fails(t, 403, apierr.Forbidden)
	e.actor.Grants[0].Role = access.Owner
	for _, tt := range [][2]string{
		{http.MethodPatch, path},
		{http.MethodPost, listsPath},
		{http.MethodPost, path + "/blasts"},
		{http.MethodPatch, path + "/signups/a@example.com"},
		{http.MethodPatch, path + "/signups/a@example.com/position"},
	} {
		long := e.as(t, tt[0], tt[1], strings.Repeat(" ", 1<<20+1))
		long.fails(t, 400, apierr.InvalidBody)
		if !strings.Contains(long.body, "longer than 1048576 bytes") {
			t.Errorf("%s %s: %s", tt[0], tt[1], long.body)
		}
	}
	if a := e.as(t, http.MethodDelete, path, ""); a.status != http.StatusNoContent || a.body != "" {
		t.Errorf("delete: %d %s", a.status, a.body)
	}
	e.as(t, http.MethodDelete, path, "").fails(t, 404, apierr.NotFound)
	e.as(t, http.MethodGet, listsPath, "").bytes(t, 200, `{"waitlists":[]}`)
}

func TestOwnersPathsThatAreNone(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	path := listsPath + "/" + e.list
	for _, tt := range []struct {
		method, path, key string
		status            int
		code              apierr.Code
	}{
		{http.MethodGet, listsPath + "/1/signups", "good", 404, apierr.NotFound},
		{http.MethodGet, listsPath + "/1", "good", 404, apierr.NotFound},
		{http.MethodGet, listsPath + "/%ff", "good", 404, apierr.NotFound},
		{http.MethodPatch, listsPath + "/%7b" + e.list + "%7d", "good", 404, apierr.NotFound},
		{http.MethodDelete, listsPath + "/" + strings.ReplaceAll(e.list, "-", ""), "good", 404, apierr.NotFound},
		{http.MethodDelete, path + "/signups/%ff", "good", 404, apierr.NotFound},
		{http.MethodPut, path, "good", 404, apierr.NotFound},
		{http.MethodGet, listsPath + "/", "good", 404, apierr.NotFound},
		{http.MethodGet, path + "/nothing", "good", 404, apierr.NotFound},
		{http.MethodGet, path + "/nothing", "bad", 404, apierr.NotFound},
		{http.MethodGet, listsPath + "/1", "bad", 401, apierr.AuthenticationRequired},
		{http.MethodGet, path + "/stats", "bad", 401, apierr.AuthenticationRequired},
		{http.MethodGet, path + "/export?token=bad", "", 401, apierr.AuthenticationRequired},
		{http.MethodGet, listsPath + "/x/export", "good", 404, apierr.NotFound},
		{http.MethodPost, listsPath + "/x/import", "good", 404, apierr.NotFound},
		{http.MethodPost, path + "/import?token=good", "", 401, apierr.AuthenticationRequired},
		{http.MethodGet, listsPath + "/x/blasts", "good", 404, apierr.NotFound},
		{http.MethodGet, listsPath + "/x/analytics", "good", 404, apierr.NotFound},
	} {
		e.send(t.Context(), t, tt.method, tt.path, "{", "X-Api-Key", tt.key).fails(t, tt.status, tt.code)
	}
}

func TestOwnersSignups(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.set(t, `{"custom_questions":[{"id":"q","label":"Q","type":"text","required":false}]}`)
	path := listsPath + "/" + e.list
	e.as(t, http.MethodGet, path+"/signups?limit=&last_key=", "").bytes(t, 200, `{"signups":[],"count":0,"last_key":null}`)
	e.as(t, http.MethodGet, path+"/signups?limit=0&last_key=%ff", "").fails(t, 400, apierr.ValidationError, "limit", "last_key")
	first := e.post(t, e.path("/signups"), `{"email":"ada@example.com","first_name":"Ada","last_name":"<L>","utm_source":"s","utm_medium":"m",
		"utm_campaign":"c","utm_term":"t","utm_content":"n","custom_answers":{"q":"<a>"}}`)
	ada, _ := first.object(t)["referral_token"].(string)
	bob := e.join(t, "a+b/c%@example.com", ada)
	person := func(email, first, last string, position, token, count, referrer, utm, answers string) string {
		return `{"email":"` + email + `","first_name":"` + first + `","last_name":"` + last + `","phone":"","position":` + position +
			`,"referral_token":"` + token + `","referral_count":` + count + `,"referred_by":"` + referrer + `","utm":{` + utm +
			`},"custom_answers":` + answers + `,"email_verified":false,"email_opt_out":false,"email_opt_out_at":null,` +
			`"device_type":"","created_at":"` + clockText + `"}`
	}
	const none = `"utm_source":"","utm_medium":"","utm_campaign":"","utm_term":"","utm_content":""`
	one := person("ada@example.com", "Ada", "<L>", "1", ada, "1", "",
		`"utm_source":"s","utm_medium":"m","utm_campaign":"c","utm_term":"t","utm_content":"n"`, `{"q":"<a>"}`)
	two := person("a+b/c%@example.com", "", "", "2", bob, "0", ada, none, `{}`)
	page := e.as(t, http.MethodGet, path+"/signups?limit=1", "")
	next, _ := page.object(t)["last_key"].(string)
	page.bytes(t, 200, `{"signups":[`+one+`],"count":1,"last_key":"`+next+`"}`)
	e.as(t, http.MethodGet, path+"/signups?limit=1&last_key="+next, "").bytes(t, 200, `{"signups":[`+two+`],"count":1,"last_key":null}`)
	stats := e.as(t, http.MethodGet, listsPath+"/"+strings.ToUpper(e.list)+"/stats", "")
	created, _ := stats.object(t)["created_at"].(string)
	stats.bytes(t, 200, `{"waitlist_id":"`+e.list+`","total_signups":2,"referral_signups":1,"created_at":"`+created+`"}`)
	e.as(t, http.MethodPatch, path+"/signups/a+b%2Fc%25%40example.com/position", `{"position":1}`).bytes(t, 200,
		`{"email":"a+b/c%@example.com","position":1}`)
	e.as(t, http.MethodPatch, path+"/signups/a+b%2Fc%25@example.com", `{"credit":true}`).bytes(t, 200,
		`{"email":"a+b/c%@example.com","credit":true}`)
	if a := e.as(t, http.MethodDelete, path+"/signups/a+b%2Fc%25@example.com", ""); a.status != http.StatusNoContent || a.body != "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	e.as(t, http.MethodDelete, path+"/signups/a+b%2Fc%25@example.com", "").fails(t, 404, apierr.NotFound)
	csv := e.as(t, http.MethodGet, path+"/export", "")
	if csv.status != 200 || !strings.HasPrefix(csv.body, "email,first_name") || !strings.Contains(csv.body, "\r\nada@example.com,Ada,<L>") {
		t.Errorf("%d %s", csv.status, csv.body)
	}
	e.as(t, http.MethodPost, path+"/import", `{"signups":[{"email":"ada@example.com"},{"email":"<x>"},{"email":"eve@example.com"}]}`).bytes(t,
		200, `{"imported":1,"skipped":1,"errors":[{"row":2,"email":"<x>","error":"The email address is not valid."}]}`)
}

// sums stands for admin-analytics.
type sums struct {
	analyticsv1.AnalyticsServiceClient
	asked   proto.Message
	days    []*analyticsv1.Day
	origins *analyticsv1.GetOriginsResponse
	away    error
}

func (s *sums) GetSeries(_ context.Context, r *analyticsv1.GetSeriesRequest, _ ...grpc.CallOption) (*analyticsv1.GetSeriesResponse, error) {
	s.asked = r
	return &analyticsv1.GetSeriesResponse{Days: s.days}, s.away
}

func (s *sums) GetOrigins(
	_ context.Context, r *analyticsv1.GetOriginsRequest, _ ...grpc.CallOption,
) (*analyticsv1.GetOriginsResponse, error) {
	s.asked = r
	return s.origins, s.away
}

func TestAnalytics(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "c@example.com", e.join(t, "b@example.com", ""))
	path := listsPath + "/" + e.list + "/analytics"
	e.analytics = sums{
		days: []*analyticsv1.Day{
			{Day: "2026-02-28", Views: 3, Signups: 1, ReferralSignups: 1, ConversionRate: 0.3333},
			{Day: "2026-03-01", Views: 1 << 40, ConversionRate: 1},
		},
		origins: &analyticsv1.GetOriginsResponse{Sources: []*analyticsv1.Origin{{Value: "(other)", Count: 9}, {Value: "<mail>", Count: 2}}},
	}
	body := func(within string) string {
		return `{"waitlist_id":"` + e.list + `","range":"` + within + `","views_by_day":{"2026-02-28":3,"2026-03-01":1099511627776},` +
			`"signups_by_day":{"2026-02-28":1,"2026-03-01":0},"referral_signups_by_day":{"2026-02-28":1,"2026-03-01":0},` +
			`"conversion_rate_by_day":{"2026-02-28":0.3333,"2026-03-01":1},` +
			`"top_referrers":[{"email":"b@example.com","first_name":"","referral_count":1}]}`
	}
	for query, want := range map[string]struct {
		within string
		days   int32
	}{"": {"30d", 30}, "?range=": {"30d", 30}, "?range=7d": {"7d", 7}, "?range=30d": {"30d", 30}, "?range=90d": {"90d", 90}} {
		e.as(t, http.MethodGet, path+query, "").bytes(t, 200, body(want.within))
		if !proto.Equal(e.analytics.asked, &analyticsv1.GetSeriesRequest{WaitlistId: e.list, Days: want.days}) {
			t.Errorf("%q: asked %v", query, e.analytics.asked)
		}
	}
	e.as(t, http.MethodGet, path+"/utm", "").bytes(t, 200, `{"waitlist_id":"`+e.list+
		`","by_source":[{"value":"(other)","count":9},{"value":"<mail>","count":2}],"by_medium":[],"by_campaign":[]}`)
	if !proto.Equal(e.analytics.asked, &analyticsv1.GetOriginsRequest{WaitlistId: e.list}) {
		t.Errorf("asked %v", e.analytics.asked)
	}
	e.analytics.asked = nil
	for _, query := range []string{"?range=5d", "?range=30", "?range=%ff", "?range=7D", "?range=7d%20"} {
		e.as(t, http.MethodGet, path+query, "").fails(t, 400, apierr.ValidationError, "range")
	}
	e.actor.Grants[0].Entitlement.Tier = access.Advanced
	e.as(t, http.MethodGet, path+"?range=x", "").fails(t, 400, apierr.ValidationError, "range")
	for _, below := range []string{"", "/utm"} {
		e.as(t, http.MethodGet, path+below, "").fails(t, 403, apierr.TierRequired)
	}
	if e.analytics.asked != nil {
		t.Errorf("asked %v", e.analytics.asked)
	}
	e.actor.Grants[0].Entitlement.Tier = access.Pro
	e.analytics.away = errors.New("away")
	for _, below := range []string{"", "/utm"} {
		e.as(t, http.MethodGet, path+below, "").fails(t, 500, apierr.InternalError)
	}
}

// bulk stands for messaging: it keeps the last request and how long the answer may take.
type bulk struct {
	messagingv1.MessagingServiceClient
	got      proto.Message
	within   time.Duration
	blast    *messagingv1.Blast
	replayed bool
	err      error
}

func (b *bulk) CreateBlast(
	ctx context.Context, r *messagingv1.CreateBlastRequest, _ ...grpc.CallOption,
) (*messagingv1.CreateBlastResponse, error) {
	end, _ := ctx.Deadline()
	b.got, b.within = r, time.Until(end)
	return &messagingv1.CreateBlastResponse{Blast: b.blast, Replayed: b.replayed}, b.err
}

func (b *bulk) ListBlasts(
	_ context.Context, r *messagingv1.ListBlastsRequest, _ ...grpc.CallOption,
) (*messagingv1.ListBlastsResponse, error) {
	b.got = r
	out := new(messagingv1.ListBlastsResponse)
	if b.blast != nil {
		out.Blasts = append(out.Blasts, b.blast)
	}
	return out, b.err
}

func TestBlastRoutes(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	path := listsPath + "/" + e.list + "/blasts"
	e.as(t, http.MethodGet, path, "").bytes(t, 200, `{"blasts":[]}`)
	e.messaging.blast = &messagingv1.Blast{
		BlastId: "b", Subject: "<News>", RecipientCount: 7, FailedCount: 2, Status: "sent",
		SentAt: timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 5_999_999, time.UTC)),
	}
	e.as(t, http.MethodGet, path, "").bytes(t, 200, `{"blasts":[{"blast_id":"b","subject":"<News>","sent_at":"2026-03-01T12:00:00.005Z",`+
		`"recipient_count":7,"failed_count":2,"status":"sent"}]}`)
	if !proto.Equal(e.messaging.got, &messagingv1.ListBlastsRequest{WaitlistId: e.list}) {
		t.Errorf("messaging was asked %v", e.messaging.got)
	}
	const made = `{"blast_id":"b","recipient_count":7,"failed_count":2,"status":"sent"}`
	e.actor.CredentialID = "lookup"
	for _, replayed := range []bool{false, true} {
		e.messaging.replayed = replayed
		a := e.as(t, http.MethodPost, path, `{"subject":"x","text_body":"y"}`, "Idempotency-Key", "k\xff")
		a.bytes(t, 200, made)
		if (a.header.Get("Idempotent-Replayed") == "true") != replayed {
			t.Errorf("replayed %v: %v", replayed, a.header)
		}
		got, _ := proto.Clone(e.messaging.got).(*messagingv1.CreateBlastRequest)
		if len(got.GetFingerprint()) != 32 {
			t.Errorf("fingerprint %x", got.GetFingerprint())
		}
		got.Fingerprint = nil
		if !proto.Equal(got, &messagingv1.CreateBlastRequest{
			WaitlistId: e.list, OwnerId: e.owner, AccountId: e.owner, CredentialId: "lookup", Role: accessv1.Role_ROLE_OWNER,
			Subject: "x", TextBody: "y", IdempotencyKey: "k\uFFFD",
		}) {
			t.Errorf("messaging was asked %v", got)
		}
		// messaging answers after five seconds.
		if e.messaging.within < 6*time.Second {
			t.Errorf("messaging had %s", e.messaging.within)
		}
	}
	e.messaging.err = apierr.New(apierr.RateLimited, "no")
	e.as(t, http.MethodPost, path, `{"subject":"x","text_body":"y"}`).fails(t, 429, apierr.RateLimited)
	e.messaging.got = nil
	e.as(t, http.MethodPost, path, `{}`).fails(t, 400, apierr.ValidationError, "subject", "html_body")
	if e.messaging.got != nil {
		t.Errorf("messaging was asked %v", e.messaging.got)
	}
}
