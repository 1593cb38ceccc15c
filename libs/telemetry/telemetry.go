// Package telemetry gives one service its logger, tracer and metrics.
//
// Only Install sets global state. Each service of a process has its own registry, and
// every metric has the label service, so the registries can be exposed separately or
// together. Spans leave the process only if OTEL_EXPORTER_OTLP_ENDPOINT is set. Without
// it, no span is sampled, but trace ids are still logged and propagated.
package telemetry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// version is set by the linker:
// -ldflags '-X waitlist.internal/libs/telemetry.version=v1.2.3'.
var version = "dev"

// Telemetry holds the logger, tracer and metrics of one service.
type Telemetry struct {
	// Log writes lines with the service, its version and the ids from the context; see NewHandler.
	Log *slog.Logger
	// Level is the level of Log, which can be changed for a while.
	Level *Level
	// Tracers never samples unless an exporter is configured.
	Tracers *sdktrace.TracerProvider
	// Meters feeds OpenTelemetry instruments into Registry.
	Meters *sdkmetric.MeterProvider
	// Registry gathers the service's metrics.
	Registry *prometheus.Registry
	// Registerer registers collectors with the label service.
	Registerer prometheus.Registerer

	logs   *lineWriter
	closed sync.Once
}

// Options configures New.
type Options struct {
	// Service is the service's name.
	Service string
	// Output takes the log lines.
	Output io.Writer
	// Level is the lowest level to log.
	Level slog.Level
	// Format is the form of the lines: json, or text for people; "" means json.
	Format string
	// OTLPEndpoint is OTEL_EXPORTER_OTLP_ENDPOINT. The exporter reads it and its other
	// settings from the environment.
	OTLPEndpoint string
	// TraceRatio is the share of requests that begin a trace, TracesPerSecond their bound.
	TraceRatio      float64
	TracesPerSecond int
}

// New returns a service's telemetry. The caller must call Close.
func New(ctx context.Context, o Options) (*Telemetry, error) {
	format, known := formats[cmp.Or(o.Format, "json")]
	if !known {
		return nil, fmt.Errorf("there is no log format %q", o.Format)
	}
	t := &Telemetry{Registry: prometheus.NewRegistry(), logs: newLineWriter(o.Output), Level: NewLevel(o.Level, time.Now)}
	t.Log = slog.New(&handler{format(t.logs, t.Level), t.logs.Flush}).
		With(slog.String("service", o.Service), slog.String("version", version))
	t.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"service": o.Service}, t.Registry)
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "waitlist_build_info", Help: "Always 1; the version is the label.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	t.Registerer.MustRegister(collectors.NewGoCollector(), build,
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	res := resource.NewWithAttributes(SchemaURL, attribute.String("service.name", o.Service), attribute.String("service.version", version))
	counts := newSpans(t.Registerer)
	sampling := []sdktrace.TracerProviderOption{sdktrace.WithSampler(sdktrace.NeverSample())}
	if o.OTLPEndpoint != "" {
		exp, err := otlptracegrpc.New(ctx)
		if err != nil {
			t.logs.Close()
			return nil, fmt.Errorf("start OTLP exporter: %w", err)
		}
		sampling = []sdktrace.TracerProviderOption{
			sdktrace.WithSpanProcessor(counts), sdktrace.WithBatcher(counting{exp, counts.exported}),
			sdktrace.WithSampler(newSampler(o.TraceRatio, o.TracesPerSecond)),
		}
	}
	t.Tracers = sdktrace.NewTracerProvider(append(sampling, sdktrace.WithResource(res))...)

	reader, err := otelprom.New(otelprom.WithRegisterer(t.Registerer), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start metrics: %w", err), t.Close(ctx))
	}
	t.Meters = sdkmetric.NewMeterProvider(append(views(), sdkmetric.WithReader(reader), sdkmetric.WithResource(res))...)
	return t, nil
}

// Install makes t the global default for libraries that accept no provider. If several
// services share a process, the last one installed wins.
func (t *Telemetry) Install() {
	otel.SetTracerProvider(t.Tracers)
	otel.SetMeterProvider(t.Meters)
	otel.SetTextMapPropagator(propagation.TraceContext{})
}

// Close sends buffered spans and log lines until ctx ends. Later calls do nothing.
func (t *Telemetry) Close(ctx context.Context) error {
	var errs []error
	t.closed.Do(func() {
		if t.Tracers != nil {
			errs = append(errs, t.Tracers.Shutdown(ctx))
		}
		if t.Meters != nil {
			errs = append(errs, t.Meters.Shutdown(ctx))
		}
		t.logs.Close()
	})
	return errors.Join(errs...)
}

type requestIDKey struct{}

// WithRequestID returns a context that adds a request's id to log lines.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the id in ctx, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

var addresses = regexp.MustCompile(`[^\s"'<>()=,;]+@[^\s"'<>()=,;]+`)

// Redact replaces what looks like an email address or the credentials of a URL.
func Redact(text string) string {
	if strings.IndexByte(text, '@') < 0 {
		return text
	}
	return addresses.ReplaceAllString(text, "<address>")
}

// redact redacts the value of an attribute, and reports whether that changed it. It shows
// errors as their text, and other values of no basic kind as JSON if they contain an address.
func redact(a slog.Attr) (slog.Attr, bool) {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		if text := v.String(); strings.IndexByte(text, '@') >= 0 {
			return slog.String(a.Key, Redact(text)), true
		}
	case slog.KindGroup:
		if members, changed := redactAll(v.Group()); changed {
			return slog.Attr{Key: a.Key, Value: slog.GroupValue(members...)}, true
		}
	case slog.KindAny:
		switch v := v.Any().(type) {
		case error:
			return slog.String(a.Key, Redact(v.Error())), true
		default:
			if text, err := json.Marshal(v); err == nil && bytes.IndexByte(text, '@') >= 0 {
				return slog.String(a.Key, Redact(string(text))), true
			}
		}
	}
	return a, false
}

// redactAll copies the attributes only if one of them changes.
func redactAll(attrs []slog.Attr) (redacted []slog.Attr, changed bool) {
	redacted = attrs
	for i, a := range attrs {
		if a, dirty := redact(a); dirty {
			if !changed {
				redacted, changed = slices.Clone(attrs), true
			}
			redacted[i] = a
		}
	}
	return redacted, changed
}

// Err returns an attribute with the text of an error.
func Err(err error) slog.Attr {
	if err == nil {
		return slog.String("error", "")
	}
	return slog.String("error", err.Error())
}

// Panic returns an attribute with the value of a panic.
func Panic(p any) slog.Attr { return slog.String("panic", fmt.Sprint(p)) }

// handler adds the ids of the context to each record, and redacts its message and attributes,
// whoever logs them. A ReplaceAttr would do the same at twice the cost of a line: slog then
// gives up its quick ways to write times, levels and the attributes of With.
type handler struct {
	slog.Handler
	flush func()
}

// NewHandler returns a handler that writes JSON lines without email addresses and adds
// trace_id, span_id and request_id from the context.
func NewHandler(w io.Writer, level slog.Leveler) slog.Handler {
	return &handler{formats["json"](w, level), func() {}}
}

// formats are the forms of log lines.
var formats = map[string]func(io.Writer, slog.Leveler) slog.Handler{ // a constant
	"json": func(w io.Writer, level slog.Leveler) slog.Handler {
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	},
	"text": func(w io.Writer, level slog.Leveler) slog.Handler {
		return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.String(a.Key, a.Value.Time().Format("15:04:05.000")) // people know the day
			}
			return a
		}})
	},
}

// Handle implements slog.Handler. It flushes after a warning or error.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	r = redactRecord(r)
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	if id := RequestID(ctx); id != "" {
		r.AddAttrs(slog.String("request_id", id))
	}
	err := h.Handler.Handle(ctx, r)
	if r.Level >= slog.LevelWarn {
		h.flush()
	}
	return err
}

// redactRecord copies the record only if something in it changes.
func redactRecord(r slog.Record) slog.Record {
	dirty := strings.IndexByte(r.Message, '@') >= 0
	r.Attrs(func(a slog.Attr) bool {
		if !dirty {
			_, dirty = redact(a)
		}
		return !dirty
	})
	if !dirty {
		return r
	}
	clean := slog.NewRecord(r.Time, r.Level, Redact(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		a, _ = redact(a)
		clean.AddAttrs(a)
		return true
	})
	return clean
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	attrs, _ = redactAll(attrs)
	return &handler{h.Handler.WithAttrs(attrs), h.flush}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.flush}
}
