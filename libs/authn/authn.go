// Package authn turns the credentials of a request into its actor, by asking
// account: once per request, never from a cache, so that what is revoked stops
// working at once.
package authn

import (
	"context"
	"strings"

	"github.com/gin-gonic/gin"
	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

const (
	actorKey = "waitlist.actor"
	// maxCredential bounds what is passed on, in bytes.
	maxCredential = 8 << 10
)

// Authorizer answers who a credential belongs to. accountv1's client is one;
// account itself brings its own.
type Authorizer interface {
	Authorize(ctx context.Context, in *accountv1.AuthorizeRequest, opts ...grpc.CallOption) (*accountv1.AuthorizeResponse, error)
}

// Middleware lets authenticated requests through only, from an ID token or an
// API key. The rest is 401 AUTHENTICATION_REQUIRED.
func Middleware(client Authorizer) gin.HandlerFunc { return middleware(client, false) }

// WithQueryToken is Middleware that also takes the token from the query
// parameter token, for downloads by a browser. A header goes first.
func WithQueryToken(client Authorizer) gin.HandlerFunc { return middleware(client, true) }

func middleware(client Authorizer, query bool) gin.HandlerFunc {
	return func(c *gin.Context) {
		req, err := credentials(c, query)
		if err != nil {
			httpapi.Fail(c, err)
			return
		}
		res, err := client.Authorize(c.Request.Context(), req)
		if err != nil {
			httpapi.Fail(c, err)
			return
		}
		c.Set(actorKey, access.ActorFromProto(res.GetActor()))
	}
}

// credentials reads both as sent. The token decides where both are there, and
// so a token that cannot be one refuses the request beside a good key.
func credentials(c *gin.Context, query bool) (*accountv1.AuthorizeRequest, error) {
	refused := apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")
	req := &accountv1.AuthorizeRequest{ApiKey: c.GetHeader("X-Api-Key")}
	if header := c.GetHeader("Authorization"); header != "" {
		scheme, token, _ := strings.Cut(header, " ")
		if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
			return nil, refused
		}
		req.BearerToken = token
	} else if query {
		req.BearerToken = httpapi.Query(c, "token")
	}
	if (req.GetBearerToken() == "" && req.GetApiKey() == "") || len(req.GetBearerToken()) > maxCredential || len(req.GetApiKey()) > maxCredential {
		return nil, refused
	}
	// A gRPC string must be valid UTF-8; no credential of ours has other bytes.
	if !ascii(req.GetBearerToken()) || !ascii(req.GetApiKey()) {
		return nil, refused
	}
	return req, nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Actor returns who makes the request, behind Middleware; elsewhere it is the
// zero actor, who has no grants.
func Actor(c *gin.Context) access.Actor {
	a, _ := c.Get(actorKey)
	actor, _ := a.(access.Actor)
	return actor
}
