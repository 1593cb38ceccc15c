package rpc_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/token/tokentest"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// account answers as the test configures it.
type account struct {
	accountv1.UnimplementedAccountServiceServer
	authorize func(ctx context.Context) error
}

func (a *account) Authorize(ctx context.Context, _ *accountv1.AuthorizeRequest) (*accountv1.AuthorizeResponse, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	return &accountv1.AuthorizeResponse{}, nil
}

func (a *account) SetEntitlement(context.Context, *accountv1.SetEntitlementRequest) (*accountv1.SetEntitlementResponse, error) {
	return &accountv1.SetEntitlementResponse{}, nil
}

type network struct {
	addr string
	keys rpc.Keys
	ids  map[string]*rpc.Identity
	impl *account
	srv  *grpc.Server
	// logged holds the levels of the server's log lines.
	logged levels
}

// levels is a log handler that keeps only the levels.
type levels chan slog.Level

func (l levels) Enabled(context.Context, slog.Level) bool { return true }
func (l levels) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l levels) WithGroup(string) slog.Handler            { return l }

func (l levels) Handle(_ context.Context, r slog.Record) error {
	select {
	case l <- r.Level:
	default: // no test reads it
	}
	return nil
}

func serve(t *testing.T) *network {
	t.Helper()
	n := &network{keys: rpc.Keys{}, ids: map[string]*rpc.Identity{}, impl: &account{authorize: func(context.Context) error { return nil }}}
	for _, name := range []string{"billing", "messaging", "signup"} {
		n.ids[name] = identity(t, name)
		n.keys[name] = []ed25519.PublicKey{n.ids[name].Public()}
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.addr = l.Addr().String()
	n.logged = make(levels, 1)
	n.srv = rpc.NewServer("account", n.keys, slog.New(n.logged))
	accountv1.RegisterAccountServiceServer(n.srv, n.impl)
	healthv1.RegisterHealthServer(n.srv, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- n.srv.Serve(l) }()
	t.Cleanup(func() {
		n.srv.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return n
}

func identity(t *testing.T, name string) *rpc.Identity {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	if _, err := rand.Read(seed); err != nil {
		t.Fatal(err)
	}
	id, err := rpc.NewIdentity(name, seed)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (n *network) dial(t *testing.T, id *rpc.Identity) accountv1.AccountServiceClient {
	t.Helper()
	conn, err := rpc.Dial(n.addr, id, "account")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return accountv1.NewAccountServiceClient(conn)
}

// raw makes a call with any token.
func (n *network) raw(t *testing.T, token string) codes.Code {
	t.Helper()
	conn, err := grpc.NewClient(n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	_, err = accountv1.NewAccountServiceClient(conn).Authorize(ctx, &accountv1.AuthorizeRequest{})
	return status.Code(err)
}

// Anybody can send an unknown token; that is not a failure of the service.
func TestLevelOfCauses(t *testing.T) {
	n := serve(t)
	client := n.dial(t, n.ids["billing"])
	for code, want := range map[apierr.Code]slog.Level{
		apierr.AuthenticationRequired: slog.LevelWarn, apierr.InternalError: slog.LevelError,
	} {
		n.impl.authorize = func(context.Context) error { return apierr.New(code, "No.").WithCause(errors.New("why")) }
		if _, err := client.Authorize(t.Context(), &accountv1.AuthorizeRequest{}); err == nil {
			t.Fatalf("%s: no error", code)
		}
		if got := <-n.logged; got != want {
			t.Errorf("%s is logged as %s, want %s", code, got, want)
		}
	}
}

func TestCallersOption(t *testing.T) {
	n := serve(t)
	for _, c := range []struct {
		who    string
		method string
		want   codes.Code
	}{
		{"billing", "Authorize", codes.OK},
		{"messaging", "Authorize", codes.OK},
		{"signup", "SetEntitlement", codes.PermissionDenied},
		{"billing", "SetEntitlement", codes.OK},
		{"messaging", "SetEntitlement", codes.PermissionDenied},
	} {
		client := n.dial(t, n.ids[c.who])
		var err error
		if c.method == "Authorize" {
			_, err = client.Authorize(t.Context(), &accountv1.AuthorizeRequest{})
		} else {
			_, err = client.SetEntitlement(t.Context(), &accountv1.SetEntitlementRequest{})
		}
		if status.Code(cause(err)) != c.want {
			t.Errorf("%s calls %s: %v, want %v", c.who, c.method, err, c.want)
		}
	}
	if got := rpc.Callers("/waitlist.account.v1.AccountService/SetEntitlement"); !slices.Equal(got, []string{"billing"}) {
		t.Errorf("Callers = %q", got)
	}
	for _, m := range []string{
		"", "/", "/x/y", "/waitlist.account.v1.AccountService/X", "/waitlist.account.v1.AuthorizeRequest/X",
		"/grpc.health.v1.Health/Check",
	} {
		if got := rpc.Callers(m); got != nil {
			t.Errorf("Callers(%q) = %q", m, got)
		}
	}
}

// cause returns the status within a client's error.
func cause(err error) error {
	if e, ok := errors.AsType[*apierr.Error](err); ok && e.Err != nil {
		return e.Err
	}
	return err
}

func TestTokensThatAreRefused(t *testing.T) {
	n := serve(t)
	seed := make([]byte, ed25519.SeedSize)
	key := ed25519.NewKeyFromSeed(seed)
	n.keys["known"] = []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}
	n.keys["billing"] = n.keys["known"]
	now := time.Now()
	good := jwt.MapClaims{"iss": "billing", "aud": "account", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix()}
	sign := func(m jwt.SigningMethod, key any, change func(jwt.MapClaims)) string {
		claims := maps.Clone(good)
		change(claims)
		s, err := jwt.NewWithClaims(m, claims).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	fine := sign(jwt.SigningMethodEdDSA, key, func(jwt.MapClaims) {})
	if got := n.raw(t, fine); got != codes.OK {
		t.Fatalf("the good token: %v", got)
	}
	for name, token := range map[string]string{
		"none":             "",
		"no token":         "x",
		"alg none":         sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, func(jwt.MapClaims) {}),
		"HMAC with key":    sign(jwt.SigningMethodHS256, []byte(n.keys["billing"][0]), func(jwt.MapClaims) {}),
		"unknown service":  sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { c["iss"] = "nobody" }),
		"no service":       sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { delete(c, "iss") }),
		"another callee":   sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { c["aud"] = "signup" }),
		"no callee":        sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { delete(c, "aud") }),
		"expired":          sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { c["exp"] = now.Add(-time.Minute).Unix() }),
		"without end":      sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { delete(c, "exp") }),
		"from the future":  sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { c["iat"] = now.Add(time.Hour).Unix() }),
		"another's key":    sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { c["iss"] = "messaging" }),
		"trailing garbage": fine + "A",
		"very long":        fine + strings.Repeat("A", 2000),
	} {
		if got := n.raw(t, token); got != codes.Unauthenticated {
			t.Errorf("%s: %v", name, got)
		}
	}
	// One of B, R, h and x differs from the last character in bits that mean nothing.
	for bad := range tokentest.Tampered(fine, "BRhx_.=") {
		if got := n.raw(t, bad); got != codes.Unauthenticated {
			t.Errorf("%q for %q: %v", bad, fine, got)
		}
	}
}

func TestErrorsCross(t *testing.T) {
	n := serve(t)
	client := n.dial(t, n.ids["billing"])
	for name, c := range map[string]struct {
		err  error
		want *apierr.Error
		away bool
	}{
		"contract": {
			apierr.New(apierr.TierRequired, "Pro only."),
			&apierr.Error{Code: apierr.TierRequired, Kind: apierr.Denied, Message: "Pro only."},
			false,
		},
		"second kind": {
			apierr.New(apierr.DomainRestricted, "No.").WithKind(apierr.Invalid),
			&apierr.Error{Code: apierr.DomainRestricted, Kind: apierr.Invalid, Message: "No."},
			false,
		},
		"wrapped with fields": {
			fmt.Errorf("x: %w", apierr.Validation(apierr.Field{Field: "a.b", Message: "m"}, apierr.Field{Field: "c", Message: "n"})),
			&apierr.Error{
				Code: apierr.ValidationError, Kind: apierr.Invalid, Message: `Check the field "a.b". m`,
				Fields: []apierr.Field{{Field: "a.b", Message: "m"}, {Field: "c", Message: "n"}},
			},
			false,
		},
		"retry after": {
			apierr.New(apierr.RateLimited, "Wait.").WithRetryAfter(1500 * time.Millisecond),
			&apierr.Error{Code: apierr.RateLimited, Kind: apierr.Throttled, Message: "Wait.", RetryAfter: 2 * time.Second},
			false,
		},
		"unmapped": {
			errors.New("secret"),
			&apierr.Error{Code: apierr.InternalError, Message: "Something went wrong on our side."},
			false,
		},
		"Postgres away": {
			&pgconn.PgError{Code: "57P01", Message: "secret"},
			&apierr.Error{Code: apierr.InternalError, Message: "Something went wrong on our side.", RetryAfter: 2 * time.Second},
			true,
		},
		"its deadline": {
			context.DeadlineExceeded,
			&apierr.Error{Code: apierr.InternalError, Message: "Something went wrong on our side.", RetryAfter: 2 * time.Second},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n.impl.authorize = func(context.Context) error { return c.err }
			_, err := client.Authorize(t.Context(), &accountv1.AuthorizeRequest{})
			got, ok := errors.AsType[*apierr.Error](err)
			if !ok || got.Code != c.want.Code || got.Kind != c.want.Kind || got.Message != c.want.Message ||
				got.RetryAfter != c.want.RetryAfter || !slices.Equal(got.Fields, c.want.Fields) {
				t.Fatalf("%+v, want %+v", err, c.want)
			}
			if outage.Is(err) != c.away {
				t.Errorf("outage.Is = %v", !c.away)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the cause crossed: %v", err)
			}
		})
	}
}

func TestPanicIsAnError(t *testing.T) {
	n := serve(t)
	n.impl.authorize = func(context.Context) error { panic("secret") }
	_, err := n.dial(t, n.ids["billing"]).Authorize(t.Context(), &accountv1.AuthorizeRequest{})
	if !apierr.Is(err, apierr.InternalError) || strings.Contains(err.Error(), "secret") {
		t.Fatal(err)
	}
}

func TestContextCrosses(t *testing.T) {
	n := serve(t)
	var id string
	var left time.Duration
	n.impl.authorize = func(ctx context.Context) error {
		id = telemetry.RequestID(ctx)
		d, _ := ctx.Deadline()
		left = time.Until(d)
		return nil
	}
	client := n.dial(t, n.ids["billing"])
	if _, err := client.Authorize(telemetry.WithRequestID(t.Context(), "r1"), &accountv1.AuthorizeRequest{}); err != nil {
		t.Fatal(err)
	}
	if id != "r1" || left <= 3*time.Second || left > rpc.DefaultDeadline {
		t.Errorf("request id %q, %v left", id, left)
	}
	if _, err := client.Authorize(t.Context(), &accountv1.AuthorizeRequest{}, rpc.Deadline(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if left < 50*time.Minute {
		t.Errorf("%v left of an hour", left)
	}
}

func TestServiceAway(t *testing.T) {
	n := serve(t)
	client := n.dial(t, n.ids["billing"])
	n.srv.Stop()
	_, err := client.Authorize(t.Context(), &accountv1.AuthorizeRequest{}, rpc.Deadline(200*time.Millisecond))
	if e := apierr.From(err); e.Code != apierr.InternalError || e.RetryAfter <= 0 || !outage.Is(err) {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Authorize(ctx, &accountv1.AuthorizeRequest{}); !errors.Is(err, context.Canceled) || outage.Is(err) {
		t.Fatalf("%v", err)
	}
}

func TestHealthNeedsNoCredentials(t *testing.T) {
	n := serve(t)
	conn, err := grpc.NewClient(n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
}

// A callee that knows the old and the new key of a caller accepts both.
func TestKeysRotate(t *testing.T) {
	n := serve(t)
	old := n.ids["billing"]
	fresh, err := rpc.NewIdentity("billing", bytes.Repeat([]byte{7}, ed25519.SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	call := func(id *rpc.Identity) error {
		_, err := n.dial(t, id).Authorize(t.Context(), &accountv1.AuthorizeRequest{})
		return err
	}
	if err := call(fresh); err == nil {
		t.Fatal("an unknown key passed")
	}
	n.keys["billing"] = []ed25519.PublicKey{fresh.Public(), old.Public()}
	for name, id := range map[string]*rpc.Identity{"old": old, "new": fresh} {
		if err := call(id); err != nil {
			t.Errorf("the %s key: %v", name, err)
		}
	}
}

func TestKeys(t *testing.T) {
	n := serve(t)
	again, err := rpc.ParseKeys(n.keys.String())
	if err != nil || len(again) != len(n.keys) {
		t.Fatal(again, err)
	}
	for name, keys := range n.keys {
		if len(again[name]) != 1 || !keys[0].Equal(again[name][0]) {
			t.Errorf("key of %s changed", name)
		}
	}
	if twice, err := rpc.ParseKeys(n.keys.String() + "," + n.keys.String()); err != nil || len(twice["billing"]) != 2 {
		t.Errorf("%v, %v: want two keys for each name", twice, err)
	}
	for _, s := range []string{"", "a", "a:", ":AAAA", "a:!!!", "a:AAAA"} {
		if _, err := rpc.ParseKeys(s); err == nil {
			t.Errorf("ParseKeys(%q) passed", s)
		}
	}
	for _, s := range []string{"", "!", "AAAA"} {
		if _, err := rpc.ParseSeed(s); err == nil {
			t.Errorf("ParseSeed(%q) passed", s)
		}
	}
	if _, err := rpc.ParseSeed(base64.StdEncoding.EncodeToString(make([]byte, 32))); err != nil {
		t.Error(err)
	}
	if _, err := rpc.NewIdentity("x", nil); err == nil {
		t.Error("an empty seed passed")
	}
}

// TestStreams runs the stream interceptors over the health watch, which needs no
// schema of its own, and over an unknown method.
func TestStreams(t *testing.T) {
	n := serve(t)
	conn, err := rpc.Dial(n.addr, n.ids["billing"], "account")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	w, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := w.Recv(); !errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func BenchmarkCall(b *testing.B) {
	seed := make([]byte, ed25519.SeedSize)
	id, err := rpc.NewIdentity("billing", seed)
	if err != nil {
		b.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := rpc.NewServer("account", rpc.Keys{"billing": {id.Public()}}, slog.New(slog.DiscardHandler))
	accountv1.RegisterAccountServiceServer(srv, &account{authorize: func(context.Context) error { return nil }})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() {
		srv.Stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	conn, err := rpc.Dial(l.Addr().String(), id, "account")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := accountv1.NewAccountServiceClient(conn)
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := client.Authorize(b.Context(), &accountv1.AuthorizeRequest{}); err != nil {
				b.Error(err)
			}
		}
	})
}
