package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// collector takes spans by OTLP and counts them.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer

	spans atomic.Int64
}

// Export implements collectorv1.TraceServiceServer.
func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	for _, from := range req.GetResourceSpans() {
		for _, scope := range from.GetScopeSpans() {
			c.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// telemetry measures B16: what traces at their defaults cost, beside a service that exports none. Both have logs and metrics.
func (b *bench) telemetry(ctx context.Context) (err error) {
	const database = "telemetry"
	conn, err := b.database(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for spans: %w", err)
	}
	taken, sink := new(collector), grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(sink, taken)
	go func() { _ = sink.Serve(listener) }()
	defer sink.Stop()
	program, err := b.build(ctx, packages()[signupProgram])
	if err != nil {
		return err
	}
	type side = func(context.Context, time.Duration) (sample, error)
	var looks, joins [2]side
	var lists [2]*list
	for i, env := range [][]string{{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + listener.Addr().String()}, nil} {
		srv, err := b.lab.start(ctx, program, b.postgres.URL(database), fmt.Sprint(database, i), env...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, srv.stop()) }()
		if lists[i], err = newList(ctx, conn); err != nil {
			return err
		}
		request := []byte("GET /v1/public/waitlists/" + lists[i].id + "/config HTTP/1.1\r\nHost: bench\r\n\r\n")
		looks[i] = func(ctx context.Context, d time.Duration) (sample, error) {
			return repeatRequest(ctx, srv.addr, request, configConns, d)
		}
		gen, one := &generator{addr: srv.addr}, lists[i:i+1]
		joins[i] = func(ctx context.Context, d time.Duration) (sample, error) { return gen.signUp(ctx, one, b.conns, d) }
	}
	for _, r := range []struct {
		id, what string
		sides    [2]side
		settle   func(context.Context) error
	}{
		{
			"B16 config", fmt.Sprintf("Requests a second for a form's config over %d connections", configConns), looks,
			func(context.Context) error { return nil },
		},
		{
			"B16 signup", fmt.Sprintf("Signups into one hot waitlist over %d connections", b.conns), joins,
			func(ctx context.Context) error { return published(ctx, conn) },
		},
	} {
		pairs, err := b.turns(ctx, r.id, r.settle, r.sides[0], r.sides[1], b.slice)
		if err != nil {
			return err
		}
		ours, theirs, ratio := of(pairs, rate)
		b.add(row{
			id: r.id, goal: "≥ 0.95 ×", ratio: ratio, met: ratio >= .95,
			what: r.what + ", with traces at their defaults (5 %, 50 a second) against none.",
			ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
		})
	}
	if taken.spans.Load() == 0 {
		return errors.New("B16: no span reached the collector")
	}
	for _, l := range lists {
		if err := l.exact(); err != nil {
			return err
		}
	}
	return b.audit(ctx, conn)
}
