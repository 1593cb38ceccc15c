// Package authn turns the credentials of a request into its actor. It asks the
// account service once per request and caches nothing, so that a revocation
// takes effect at once.
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
	// maxCredential bounds each credential, in bytes.
	maxCredential = 8 << 10
)

// Authorizer looks up the actor of a credential. The client of accountv1 is one;
// the account service has its own.
type Authorizer interface {
	Authorize(ctx context.Context, in *accountv1.AuthorizeRequest, opts ...grpc.CallOption) (*accountv1.AuthorizeResponse, error)
}

// Middleware authenticates requests by ID token or API key. It answers all others
// with 401 AUTHENTICATION_REQUIRED.
func Middleware(client Authorizer) gin.HandlerFunc { return middleware(client, false) }

// WithQueryToken is Middleware that also takes the token from the query
// parameter token, for downloads by a browser. The header takes precedence.
func WithQueryToken(client Authorizer) gin.HandlerFunc { return middleware(client, true) }

// Optional is Middleware for requests that have a credential. It lets all others pass
// without an actor.
func Optional(client Authorizer) gin.HandlerFunc {
	authenticate := Middleware(client)
	return func(c *gin.Context) {
		if c.GetHeader("Authorization") != "" || c.GetHeader("X-Api-Key") != "" {
			authenticate(c)
		}
	}
}

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

// Again authenticates a long request once more, after Middleware or WithQueryToken. It
// returns the actor as it is now. The ID token may have expired meanwhile. The error is
// AUTHENTICATION_REQUIRED if the credential was revoked.
func Again(c *gin.Context, client Authorizer) (access.Actor, error) {
	req, err := credentials(c, true)
	if err != nil {
		return access.Actor{}, err
	}
	req.UnderWay = true
	res, err := client.Authorize(c.Request.Context(), req)
	if err != nil {
		return access.Actor{}, err
	}
	return access.ActorFromProto(res.GetActor()), nil
}

// credentials reads the token and the key. If a request has both, the token
// decides: a malformed token fails the request despite a valid key. A token in the
// query counts only without credential headers.
func credentials(c *gin.Context, query bool) (*accountv1.AuthorizeRequest, error) {
	refused := apierr.New(apierr.AuthenticationRequired, "Credentials are missing or invalid.")
	req := &accountv1.AuthorizeRequest{ApiKey: c.GetHeader("X-Api-Key")}
	if header := c.GetHeader("Authorization"); header != "" {
		scheme, token, _ := strings.Cut(header, " ")
		if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
			return nil, refused
		}
		req.BearerToken = token
	} else if query && req.ApiKey == "" {
		req.BearerToken = httpapi.Query(c, "token")
	}
	token, key := req.GetBearerToken(), req.GetApiKey()
	if (token == "" && key == "") || !plausible(token) || !plausible(key) {
		return nil, refused
	}
	return req, nil
}

// plausible reports whether s can be a credential: short and printable ASCII. A
// gRPC string must be valid UTF-8.
func plausible(s string) bool {
	if len(s) > maxCredential {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Actor returns the actor that Middleware authenticated. Without Middleware or a
// credential it returns the zero actor, which has no grants.
func Actor(c *gin.Context) access.Actor {
	a, _ := c.Get(actorKey)
	actor, _ := a.(access.Actor)
	return actor
}
