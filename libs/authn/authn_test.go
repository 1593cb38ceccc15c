package authn_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// account accepts the token "good" and the key "key".
type account struct{}

func (account) Authorize(_ context.Context, in *accountv1.AuthorizeRequest, _ ...grpc.CallOption) (*accountv1.AuthorizeResponse, error) {
	a := &accessv1.Actor{AccountId: "a1"}
	switch {
	case in.GetBearerToken() == "good":
		a.Method = accessv1.Method_METHOD_JWT
	case in.GetBearerToken() == "" && in.GetApiKey() == "key":
		a.Method = accessv1.Method_METHOD_API_KEY
	case in.GetBearerToken() == "away":
		return nil, errors.New("away")
	default:
		return nil, apierr.New(apierr.AuthenticationRequired, "No.")
	}
	return &accountv1.AuthorizeResponse{Actor: a}, nil
}

func TestMiddleware(t *testing.T) {
	g, err := httpapi.NewEngine(httpapi.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	answer := func(c *gin.Context) {
		if a := authn.Actor(c); a.APIKey {
			c.String(200, a.AccountID+" by key")
		} else {
			c.String(200, a.AccountID+" by token")
		}
	}
	g.GET("/v1/plain", authn.Middleware(account{}), answer)
	g.GET("/v1/export", authn.WithQueryToken(account{}), answer)
	g.GET("/v1/optional", authn.Optional(account{}), answer)
	g.GET("/v1/open", answer)
	for _, c := range []struct {
		name, path, auth, key string
		status                int
		want                  string
	}{
		{"nothing", "/v1/plain", "", "", 401, ""},
		{"token", "/v1/plain", "Bearer good", "", 200, "a1 by token"},
		{"scheme in small letters", "/v1/plain", "bearer  good ", "", 200, "a1 by token"},
		{"key", "/v1/plain", "", "key", 200, "a1 by key"},
		{"both", "/v1/plain", "Bearer good", "key", 200, "a1 by token"},
		{"bad token, good key", "/v1/plain", "Bearer bad", "key", 401, ""},
		{"empty token, good key", "/v1/plain", "Bearer", "key", 401, ""},
		{"another scheme, good key", "/v1/plain", "Basic Z29vZA==", "key", 401, ""},
		{"bad key", "/v1/plain", "", "bad", 401, ""},
		{"no scheme", "/v1/plain", "good", "", 401, ""},
		{"token with a blank", "/v1/plain", "Bearer good good", "", 401, ""},
		{"bytes that are no UTF-8", "/v1/plain", "Bearer go\xffod", "", 401, ""},
		{"very long", "/v1/plain", "Bearer " + strings.Repeat("x", 9000), "", 401, ""},
		{"account away", "/v1/plain", "Bearer away", "", 500, ""},
		{"query where not asked", "/v1/plain?token=good", "", "", 401, ""},
		{"query", "/v1/export?token=good", "", "", 200, "a1 by token"},
		{"key before query", "/v1/export?token=bad", "", "key", 200, "a1 by key"},
		{"bad key before query", "/v1/export?token=good", "", "bad", 401, ""},
		{"header before query", "/v1/export?token=good", "Bearer bad", "", 401, ""},
		{"empty query", "/v1/export?token=", "", "key", 200, "a1 by key"},
		{"optional, nothing", "/v1/optional", "", "", 200, " by token"},
		{"optional, token", "/v1/optional", "Bearer good", "", 200, "a1 by token"},
		{"optional, key", "/v1/optional", "", "key", 200, "a1 by key"},
		{"optional, bad token", "/v1/optional", "Bearer bad", "", 401, ""},
		{"optional, bad key", "/v1/optional", "", "bad", 401, ""},
		{"without middleware", "/v1/open", "Bearer good", "", 200, " by token"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil)
			if c.auth != "" {
				req.Header.Set("Authorization", c.auth)
			}
			if c.key != "" {
				req.Header.Set("X-Api-Key", c.key)
			}
			rec := httptest.NewRecorder()
			g.ServeHTTP(rec, req)
			if rec.Code != c.status || (c.status == 200 && rec.Body.String() != c.want) {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
			if c.status == 401 && !strings.Contains(rec.Body.String(), "AUTHENTICATION_REQUIRED") {
				t.Fatal(rec.Body)
			}
		})
	}
}
