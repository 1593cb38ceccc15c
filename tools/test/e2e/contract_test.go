package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"waitlist.internal/proto/openapi"
	"waitlist.internal/proto/routes"
)

// TestDocument checks rules that every operation of the OpenAPI document must follow.
func TestDocument(t *testing.T) {
	contract, err := LoadContract()
	if err != nil {
		t.Fatal(err)
	}
	table, err := routes.Table()
	if err != nil {
		t.Fatal(err)
	}
	operations := contract.Operations()
	if len(operations) < 50 {
		t.Fatalf("%d operations; the contract has more", len(operations))
	}
	ids := map[string]bool{}
	for _, op := range operations {
		t.Run(op.Method+" "+op.Path, func(t *testing.T) {
			if op.ID == "" || ids[op.ID] {
				t.Errorf("operationId %q is missing or used twice", op.ID)
			}
			ids[op.ID] = true
			if routes.Service(table, basePath+op.Path) == "" {
				t.Error("no prefix in routes.yaml covers the path")
			}
			item := contract.doc.Paths.Value(op.Path)
			spec := item.GetOperation(op.Method)
			if len(spec.Tags) != 1 || contract.doc.Tags.Get(spec.Tags[0]) == nil {
				t.Errorf("tags %v: want one of the document's", spec.Tags)
			}
			if spec.Summary == "" {
				t.Error("no summary")
			}
			if s, ok := spec.Extensions[openapi.StatusExtension]; ok && s != openapi.StatusPlanned {
				t.Errorf("%s is %v", openapi.StatusExtension, s)
			}
			outcomes := strings.Join(op.Outcomes, ",") + ","
			want := []string{"500 INTERNAL_ERROR,"}
			if op.ID != "receivePaymentEvent" {
				want = append(want, "429 RATE_LIMITED,")
			}
			if len(op.Schemes) > 0 {
				want = append(want, "401 AUTHENTICATION_REQUIRED,")
			}
			if strings.Contains(op.Path, "{") {
				want = append(want, "404 NOT_FOUND,")
			}
			if spec.RequestBody != nil {
				want = append(want, "400 INVALID_BODY,")
				// Providers define the bodies that they sign.
				if op.ID != "receiveMailNotification" && op.ID != "receivePaymentEvent" {
					want = append(want, "400 VALIDATION_ERROR,")
				}
				if !spec.RequestBody.Value.Required {
					t.Error("the body is not required")
				}
			}
			for _, w := range want {
				if !strings.Contains(outcomes, w) {
					t.Errorf("outcomes %q without %q", outcomes, w)
				}
			}
			for status, response := range spec.Responses.Map() {
				checkResponse(t, op, status, contract)
				if response.Value.Headers["X-Request-Id"] == nil {
					t.Errorf("%s has no X-Request-Id", status)
				}
				if strings.HasPrefix(op.Path, "/public/") && response.Value.Headers["Access-Control-Allow-Origin"] == nil {
					t.Errorf("%s has no Access-Control-Allow-Origin", status)
				}
			}
			public := strings.HasPrefix(op.Path, "/public/")
			if public && len(op.Schemes) > 0 {
				t.Error("a public operation asks for credentials")
			}
			checkAccess(t, op)
		})
	}
}

// checkAccess requires operations with credentials to state what else they require and to document the resulting answers.
func checkAccess(t *testing.T, op Operation) {
	t.Helper()
	if len(op.Schemes) == 0 {
		if op.Access != (Access{}) {
			t.Errorf("access %+v without credentials", op.Access)
		}
		return
	}
	member := slices.Contains(op.Parameters, "waitlist_id") || slices.Contains(op.Parameters, "X-Account-Email")
	gated := op.Access.Gate == "subscription" || op.Access.Gate == "any"
	switch {
	case rank(op.Access.Role, roles) < 0 || (op.Access.Gate != "none" && !gated) || (op.Access.Tier != "" && rank(op.Access.Tier, tiers) < 0):
		t.Errorf("access %+v", op.Access)
	case member && op.Access.Role == "owner", !member && op.Access.Role != "owner" && op.Access.Gate != "any":
		t.Errorf("role is %s; members can reach the operation: %t", op.Access.Role, member)
	}
	for outcome, want := range map[string]bool{
		"403 TRIAL_EXPIRED":      gated,
		"403 TIER_REQUIRED":      op.Access.Tier != "" || member,
		"403 EMAIL_NOT_VERIFIED": op.Access.Verified || member,
		"403 FORBIDDEN":          gated || !slices.Contains(op.Schemes, "apiKey"),
	} {
		if slices.Contains(op.Outcomes, outcome) != want {
			t.Errorf("%s documented: %t; implied by its access: %t", outcome, !want, want)
		}
	}
}

// checkResponse requires every object in a response to be closed or to define its values, so that the suite notices leaked
// fields.
func checkResponse(t *testing.T, op Operation, status string, contract *Contract) {
	t.Helper()
	response := contract.doc.Paths.Value(op.Path).GetOperation(op.Method).Responses.Value(status).Value
	if status >= "4" {
		if len(errorCodes(response)) == 0 {
			t.Errorf("%s lists no error codes", status)
		}
		return
	}
	media := response.Content.Get("application/json")
	if media == nil {
		if status == "200" && op.ID != "exportSignups" {
			t.Error("status 200 has no body")
		}
		return
	}
	schema := media.Schema.Value
	alternatives := schema.OneOf
	if len(alternatives) == 0 || len(schema.Properties) > 0 { // alternatives beside properties judge the same object
		alternatives = openapi3.SchemaRefs{media.Schema}
	}
	for _, alternative := range alternatives {
		if has := alternative.Value.AdditionalProperties.Has; has == nil || *has {
			t.Errorf("an object in %s is not closed", status)
		}
	}
}

// TestContractNoticesDepartures shows that the checks can fail.
func TestContractNoticesDepartures(t *testing.T) {
	contract, err := LoadContract()
	if err != nil {
		t.Fatal(err)
	}
	const id = "0193d4a2-5c1e-7a41-9b7c-7a2d90f0c1de"
	const count = `{"waitlist_id":"` + id + `","count":null}`
	const card = `{"invoices":[],"payment_method":{"brand":"visa","last4":"4242","exp_month":1,"exp_year":2030`
	const notFound = `{"error":"No.","error_code":"NOT_FOUND","request_id":"r"}`
	const invalid = `{"error":"No.","error_code":"VALIDATION_ERROR","request_id":"r","errors":[{"field":"limit","message":`
	for _, tc := range []struct {
		name, method, path, request string
		status                      int
		origin, body                string
		invalid, ok                 bool
	}{
		{"allowed", "GET", "/public/waitlists/" + id + "/count", "", 200, "*", count, false, true},
		{
			"an extra field", "GET", "/public/waitlists/" + id + "/count", "", 200, "*",
			`{"waitlist_id":"` + id + `","count":null,"email":"a@b.c"}`, false, false,
		},
		{
			"an extra field of an element", "GET", "/public/waitlists/" + id + "/leaderboard", "", 200, "*",
			`{"waitlist_id":"` + id + `","leaderboard":[{"rank":1,"referral_count":2,"email":"a@b.c"}]}`, false, false,
		},
		{"a card", "GET", "/billing/info", "", 200, "", card + `}}`, false, true},
		{"an extra field of one of several objects", "GET", "/billing/info", "", 200, "", card + `,"number":"x"}}`, false, false},
		{
			"a field that x-strict leaves as it is", "POST", "/waitlists/" + id + "/blasts", `{"subject":"a","text_body":"b","html_body":5}`,
			200, "", `{"blast_id":"` + id + `","recipient_count":0,"failed_count":0,"status":"sent"}`, false, false,
		},
		{"a count of ten", "GET", "/public/waitlists/" + id + "/count", "", 200, "*", `{"waitlist_id":"` + id + `","count":10}`, false, false},
		{"no CORS header", "GET", "/public/waitlists/" + id + "/count", "", 200, "", count, false, false},
		{"another status", "GET", "/public/waitlists/" + id + "/count", "", 202, "*", count, false, false},
		{
			"another code", "GET", "/public/waitlists/" + id + "/count", "", 404, "*",
			`{"error":"No.","error_code":"FORBIDDEN","request_id":"r"}`, false, false,
		},
		{"a code of the operation", "GET", "/public/waitlists/" + id + "/count", "", 404, "*", notFound, false, true},
		{
			"errors on another code", "GET", "/public/waitlists/" + id + "/count", "", 404, "*",
			`{"error":"No.","error_code":"NOT_FOUND","request_id":"r","errors":[{"field":"a","message":"b"}]}`, false, false,
		},
		{
			"validation error without errors", "GET", "/public/waitlists/" + id + "/leaderboard?limit=99", "", 400, "*",
			`{"error":"No.","error_code":"VALIDATION_ERROR","request_id":"r"}`, true, false,
		},
		{
			"a request out of bounds", "GET", "/public/waitlists/" + id + "/leaderboard?limit=99", "", 200, "*",
			`{"waitlist_id":"` + id + `","leaderboard":[]}`, false, false,
		},
		{
			"a request out of bounds on purpose", "GET", "/public/waitlists/" + id + "/leaderboard?limit=99", "", 200, "*",
			`{"waitlist_id":"` + id + `","leaderboard":[]}`, true, true,
		},
		{
			"an error that is not a sentence", "GET", "/public/waitlists/" + id + "/count", "", 404, "*",
			`{"error":"waitlist not found","error_code":"NOT_FOUND","request_id":"r"}`, false, false,
		},
		{
			"a field error", "GET", "/public/waitlists/" + id + "/leaderboard?limit=99", "", 400, "*",
			invalid + `"This is too large."}]}`, true, true,
		},
		{
			"a field error that is not a sentence", "GET", "/public/waitlists/" + id + "/leaderboard?limit=99", "", 400, "*",
			invalid + `"is too large"}]}`, true, false,
		},
		{
			"another request id", "GET", "/public/waitlists/" + id + "/count", "", 404, "*",
			`{"error":"No.","error_code":"NOT_FOUND","request_id":"other"}`, false, false,
		},
		{"unknown path", "GET", "/nope", "", 404, "", notFound, false, true},
		{"unknown path with another answer", "GET", "/nope", "", 405, "", notFound, false, false},
		{"no error body", "GET", "/nope", "", 404, "", "404 page not found", false, false},
		{"a body beside 204", "POST", "/auth/logout", `{"refresh_token":"x"}`, 204, "", "{}", false, false},
		{
			"unknown setting sent", "POST", "/waitlists", `{"name":"a","settings":{"nope":1}}`, 201, "",
			`{"waitlist_id":"` + id + `","name":"a","signup_count":0,"created_at":"2026-11-20T12:00:00.000Z"}`, false, false,
		},
		{
			"null setting sent", "POST", "/waitlists", `{"name":"a","settings":{"headline":null}}`, 201, "",
			`{"waitlist_id":"` + id + `","name":"a","signup_count":0,"created_at":"2026-11-20T12:00:00.000Z"}`, false, true,
		},
		{
			"no milliseconds", "POST", "/waitlists", `{"name":"a"}`, 201, "",
			`{"waitlist_id":"` + id + `","name":"a","signup_count":0,"created_at":"2026-11-20T12:00:00Z"}`, false, false,
		},
		{
			"position without total", "GET", "/public/waitlists/" + id + "/signups/a%2Fb@example.com", "", 200, "*",
			`{"email":"a/b@example.com","first_name":"","last_name":"","referral_count":0,"position":1,` +
				`"created_at":"2026-11-20T12:00:00.000Z"}`, false, false,
		},
		{
			"hidden position", "GET", "/public/waitlists/" + id + "/signups/a%2Fb@example.com", "", 200, "*",
			`{"email":"a/b@example.com","first_name":"","last_name":"","referral_count":0,"created_at":"2026-11-20T12:00:00.000Z"}`, false, true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://127.0.0.1:1"+basePath+tc.path, strings.NewReader(tc.request))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			h := http.Header{"X-Request-Id": {"r"}}
			if tc.body != "" {
				h.Set("Content-Type", "application/json; charset=utf-8")
			}
			if tc.origin != "" {
				h.Set("Access-Control-Allow-Origin", tc.origin)
			}
			_, _, err = contract.Check(t.Context(), Exchange{
				Request: req, RequestBody: []byte(tc.request), Status: tc.status, Header: h,
				ResponseBody: []byte(tc.body), InvalidRequest: tc.invalid,
			})
			if (err == nil) != tc.ok {
				t.Errorf("Check: %v, want ok %v", err, tc.ok)
			}
		})
	}
}
