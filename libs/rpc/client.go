package rpc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"waitlist.internal/libs/telemetry"
)

// DefaultDeadline bounds unary calls without Deadline, so that HTTP clients get an
// answer within five seconds.
const DefaultDeadline = 4500 * time.Millisecond

// serviceConfig spreads calls over all addresses of a name and lets a call wait,
// within its deadline, for a service that is restarting. It has no retry policy:
// gRPC itself repeats calls that no server has begun, and only the caller knows
// whether others may be repeated.
const serviceConfig = `{
	"loadBalancingConfig": [{"round_robin": {}}],
	"methodConfig": [{"name": [{}], "waitForReady": true}]
}`

type deadline struct {
	grpc.EmptyCallOption
	d time.Duration
}

// Deadline replaces the default deadline of one unary call; 0 leaves only the
// deadline of the context.
func Deadline(d time.Duration) grpc.CallOption { return deadline{d: d} }

// Dial returns a connection to callee at target (host:port or a gRPC URL) that
// authenticates as id. It connects on first use, looks the name up every few
// seconds, and spreads calls over all its addresses.
func Dial(target string, id *Identity, callee string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if !strings.Contains(target, "://") {
		target = "dns:///" + target
	}
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithResolvers(names{}),
		// HTTPS_PROXY is for requests to other parties.
		grpc.WithNoProxy(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(credentials{id, callee}),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler()),
		grpc.WithChainUnaryInterceptor(unaryClient),
		grpc.WithChainStreamInterceptor(streamClient),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 20 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect(), MinConnectTimeout: 2 * time.Second}),
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", callee, err)
	}
	return conn, nil
}

func unaryClient(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	limit := DefaultDeadline
	for _, o := range opts {
		if d, ok := o.(deadline); ok {
			limit = d.d
		}
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return fromStatus(next(outgoing(ctx), method, req, reply, cc, opts...))
}

func streamClient(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := next(outgoing(ctx), desc, cc, method, opts...)
	if err != nil {
		return nil, fromStatus(err)
	}
	return &clientStream{s}, nil
}

// clientStream converts statuses to errors of the REST contract.
type clientStream struct{ grpc.ClientStream }

// RecvMsg implements grpc.ClientStream; io.EOF stays io.EOF.
func (s *clientStream) RecvMsg(m any) error { return fromStatus(s.ClientStream.RecvMsg(m)) }

// SendMsg implements grpc.ClientStream; io.EOF stays io.EOF.
func (s *clientStream) SendMsg(m any) error { return fromStatus(s.ClientStream.SendMsg(m)) }

// outgoing passes on the request id.
func outgoing(ctx context.Context) context.Context {
	if id := telemetry.RequestID(ctx); id != "" {
		return metadata.AppendToOutgoingContext(ctx, requestIDHeader, id)
	}
	return ctx
}

// reconnect waits two seconds at most, not gRPC's two minutes, so that calls reach
// a restarted service within seconds.
func reconnect() backoff.Config {
	return backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}
}
