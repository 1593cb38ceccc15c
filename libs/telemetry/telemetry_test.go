package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"waitlist.internal/libs/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type output struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	writes int
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes++
	return o.buf.Write(p)
}

func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Split(strings.TrimSuffix(o.buf.String(), "\n"), "\n")
}

func start(t *testing.T, service string, out io.Writer) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.New(t.Context(), telemetry.Options{Service: service, Output: out})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tel.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return tel
}

func TestLogLines(t *testing.T) {
	out := new(output)
	tel := start(t, "signup", out)
	ctx := telemetry.WithRequestID(t.Context(), "r1")
	ctx, span := tel.Tracers.Tracer("test").Start(ctx, "op")
	defer span.End()
	// A warning is not kept waiting.
	tel.Log.With("a", 1).WithGroup("g").WarnContext(ctx, "hello", "b", 2)
	var got map[string]any
	if err := json.Unmarshal([]byte(out.lines()[0]), &got); err != nil {
		t.Fatal(err)
	}
	g, _ := got["g"].(map[string]any)
	if got["service"] != "signup" || got["a"] != 1.0 || g["b"] != 2.0 || g["request_id"] != "r1" ||
		g["trace_id"] != span.SpanContext().TraceID().String() || g["span_id"] != span.SpanContext().SpanID().String() {
		t.Fatalf("%v", got)
	}
	if span.SpanContext().IsSampled() {
		t.Error("sampled without an exporter")
	}
}

// TestLinesStayWhole writes from many goroutines to one output of two
// services, with lines longer than the buffer among them.
func TestLinesStayWhole(t *testing.T) {
	out := new(output)
	one, two := start(t, "one", out), start(t, "two", out)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				log := one.Log
				if i%2 == 0 {
					log = two.Log
				}
				n := 300
				if j == 100 {
					n = 100_000
				}
				log.InfoContext(t.Context(), "line", slog.String("fill", strings.Repeat("x", n)))
			}
		})
	}
	wg.Wait()
	for _, tel := range []*telemetry.Telemetry{one, two} {
		if err := tel.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	one.Log.InfoContext(t.Context(), "after the end")
	lines := out.lines()
	if len(lines) != 1601 {
		t.Errorf("%d lines", len(lines))
	}
	for _, l := range lines {
		if !json.Valid([]byte(l)) {
			t.Fatalf("broken line %.100s", l)
		}
	}
	if out.writes > 200 {
		t.Errorf("%d writes for %d lines", out.writes, len(lines))
	}
}

// TestServicesShareAProcess registers the same metric for two services and
// gathers both together.
func TestServicesShareAProcess(t *testing.T) {
	var all prometheus.Gatherers
	for _, name := range []string{"one", "two"} {
		tel := start(t, name, io.Discard)
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "Things."})
		tel.Registerer.MustRegister(c)
		n, err := tel.Meters.Meter("x").Int64Counter("others")
		if err != nil {
			t.Fatal(err)
		}
		n.Add(t.Context(), 1)
		all = append(all, tel.Registry)
	}
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "service" {
					seen[f.GetName()]++
				}
			}
		}
	}
	if seen["things_total"] != 2 || seen["others_total"] != 2 || seen["go_goroutines"] != 2 {
		t.Fatalf("%v", seen)
	}
}

// The handler hides addresses, whoever logs them and however.
func TestLogsHideAddresses(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(telemetry.NewHandler(&out, slog.LevelInfo))
	for in, want := range map[string]string{
		`no such signup "a.b+c@example.com"`:          `no such signup "<address>"`,
		"dial postgres://user:secret@host:5432/x: no": "dial <address> no",
		"nothing to hide":                             "nothing to hide",
		"Key (email)=(a@b.c) already exists":          "Key (email)=(<address>) already exists",
	} {
		out.Reset()
		//nolint:sloglint // messages of libraries are not constant
		log.With(slog.String("with", in)).WithGroup("group").Info(in, slog.String("text", in), telemetry.Err(errors.New(in)),
			slog.Any("cause", errors.New(in)), slog.Any("list", []string{in}), slog.Group("inner", slog.String("text", in)),
			telemetry.Panic(in), slog.Any("number", 5))
		var line struct {
			Msg, With string
			Group     struct {
				Text, Error, Cause, Panic string
				List                      any
				Number                    int
				Inner                     struct{ Text string }
			}
		}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%v in %s", err, out.String())
		}
		g := line.Group
		for name, got := range map[string]string{
			"message": line.Msg, "with": line.With, "text": g.Text, "error": g.Error, "cause": g.Cause, "inner": g.Inner.Text, "panic": g.Panic,
		} {
			if got != want {
				t.Errorf("%s: %q became %q, want %q", name, in, got, want)
			}
		}
		if strings.Contains(out.String(), "@") || g.Number != 5 {
			t.Errorf("line %s", out.String())
		}
	}
	if telemetry.Err(nil).Value.String() != "" {
		t.Error("nil")
	}
}

func TestRequestID(t *testing.T) {
	if id := telemetry.RequestID(t.Context()); id != "" {
		t.Error(id)
	}
	if trace.SpanContextFromContext(t.Context()).IsValid() {
		t.Error("a span out of nothing")
	}
}

// The linker's stamp shows in a metric, so that a rollout can be followed.
func TestBuildInfo(t *testing.T) {
	tel, err := telemetry.New(t.Context(), telemetry.Options{Service: "signup", Output: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tel.Close(t.Context()) }()
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "waitlist_build_info" {
			continue
		}
		for _, label := range f.GetMetric()[0].GetLabel() {
			if label.GetName() == "version" && label.GetValue() == "dev" {
				return
			}
		}
	}
	t.Error("no waitlist_build_info with the version dev")
}
