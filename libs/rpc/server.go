package rpc

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/telemetry"
	optionsv1 "waitlist.internal/proto/gen/waitlist/options/v1"
)

const (
	// MaxMessage bounds messages in both directions, in bytes. The largest are bodies
	// of 1 MiB with their envelope, and pages of recipients.
	MaxMessage = 8 << 20
	// maxServerTime bounds unary methods whose caller set no deadline.
	maxServerTime   = 30 * time.Second
	requestIDHeader = "x-request-id"
)

type server struct {
	verifier *verifier
	log      *slog.Logger
	callers  sync.Map // full method → []string
}

// NewServer returns the gRPC server of service. The caller registers the
// implementations and the health service, then serves it.
func NewServer(service string, keys Keys, log *slog.Logger, opts ...grpc.ServerOption) *grpc.Server {
	s := &server{verifier: newVerifier(service, keys, time.Now), log: log}
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.StatsHandler(otelgrpc.NewServerHandler()),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second,
			// Where one address stands for several replicas, closing old connections lets
			// new replicas get some. The grace period lets calls finish: an export takes up
			// to an hour.
			MaxConnectionAge: 5 * time.Minute, MaxConnectionAgeGrace: time.Hour + time.Minute,
		}),
	}, opts...)...)
}

func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (res any, err error) {
	if health(info.FullMethod) {
		return next(ctx, req)
	}
	defer func() {
		if p := recover(); p != nil {
			res, err = nil, s.panicked(ctx, info.FullMethod, p)
		}
	}()
	ctx, err = s.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, maxServerTime)
		defer cancel()
	}
	res, err = next(ctx, req)
	return res, s.leave(ctx, info.FullMethod, err)
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	if health(info.FullMethod) {
		return next(srv, ss)
	}
	ctx := ss.Context()
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(ctx, info.FullMethod, p)
		}
	}()
	ctx, err = s.enter(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	return s.leave(ctx, info.FullMethod, next(srv, &stream{ss, ctx}))
}

// stream is a ServerStream with another context.
type stream struct {
	grpc.ServerStream
	ctx context.Context // grpc's own way
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

func health(method string) bool {
	return strings.HasPrefix(method, "/"+healthv1.Health_ServiceDesc.ServiceName+"/")
}

// enter authenticates and authorizes a call.
func (s *server) enter(ctx context.Context, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	auth := md.Get("authorization")
	if len(auth) != 1 || !strings.HasPrefix(auth[0], "Bearer ") {
		return nil, status.Error(codes.Unauthenticated, "no service credentials")
	}
	service, err := s.verifier.caller(strings.TrimPrefix(auth[0], "Bearer "))
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "service credentials refused", slog.String("method", method), telemetry.Err(err))
		return nil, status.Error(codes.Unauthenticated, "service credentials are not valid")
	}
	if !slices.Contains(s.allowed(method), service) {
		s.log.LogAttrs(ctx, slog.LevelWarn, "caller refused", slog.String("method", method), slog.String("caller", service))
		return nil, status.Errorf(codes.PermissionDenied, "%s may not call %s", service, method)
	}
	if id := md.Get(requestIDHeader); len(id) == 1 {
		ctx = telemetry.WithRequestID(ctx, id[0])
	}
	return ctx, nil
}

// allowed returns the callers option of a method, cached; nil if there is none.
func (s *server) allowed(method string) []string {
	if c, ok := s.callers.Load(method); ok {
		return c.([]string) // the only type stored
	}
	c := Callers(method)
	if c != nil {
		s.callers.Store(method, c)
	}
	return c
}

// Callers returns the services that may call a method, given as
// /package.Service/Method.
func Callers(method string) []string {
	name, m, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if !ok {
		return nil
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	md := sd.Methods().ByName(protoreflect.Name(m))
	if md == nil {
		return nil
	}
	callers, _ := proto.GetExtension(md.Options(), optionsv1.E_Callers).([]string)
	return callers
}

// leave converts the error of a method to a status and logs its cause.
func (s *server) leave(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	// Pass on a status that the method itself made.
	if st, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return st.GRPCStatus().Err()
	}
	if e := apierr.From(err); e.Err != nil && ctx.Err() == nil {
		level := slog.LevelError
		if !e.Kind.Failure() {
			// A caller's mistake, such as an unknown token, is not a failure of the service.
			level = slog.LevelWarn
		}
		s.log.LogAttrs(ctx, level, "call failed", slog.String("method", method),
			slog.String("code", string(e.Code)), telemetry.Err(err))
	}
	return toStatus(err)
}

func (s *server) panicked(ctx context.Context, method string, p any) error {
	s.log.LogAttrs(ctx, slog.LevelError, "panic in method", slog.String("method", method),
		telemetry.Panic(p), slog.String("stack", string(debug.Stack())))
	return toStatus(apierr.New(apierr.InternalError, "Something went wrong on our side."))
}
