package pg

import (
	"context"
	"strings"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/telemetry"
)

const scope = "waitlist.internal/libs/pg"

// summary returns the verb and the table of a statement, such as "INSERT signup": little
// enough to group by, and nothing that a user wrote.
func summary(sql string) string {
	words := strings.Fields(sql)
	for len(words) > 0 && strings.HasPrefix(words[0], "--") {
		// The comment in which sqlc names a query ends with its kind, such as :one.
		i := 1
		for i < len(words) && !strings.HasPrefix(words[i], ":") {
			i++
		}
		words = words[min(i+1, len(words)):]
	}
	if len(words) == 0 {
		return "query"
	}
	verb := strings.ToUpper(words[0])
	for i, w := range words[:len(words)-1] {
		switch strings.ToUpper(w) {
		case "FROM", "INTO", "UPDATE", "COPY", "TABLE":
			if table := leadingIdentifier(words[i+1]); table != "" {
				return verb + " " + table
			}
		}
	}
	return verb
}

// leadingIdentifier returns the identifier that s begins with.
func leadingIdentifier(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '.'
	})
	if end >= 0 {
		s = s[:end]
	}
	return s
}

// tracer makes a span of each query and each batch below a span that is recorded, in the
// service of that span. It shows which statement ran, never its text or its values.
type tracer struct{ *otelpgx.Tracer }

func newTracer() tracer {
	return tracer{otelpgx.NewTracer(otelpgx.WithTracerProvider(telemetry.Provider()), otelpgx.WithDisableSQLStatementInAttributes(),
		otelpgx.WithDisableConnectionDetailsInAttributes(), otelpgx.WithDisableAcquireTracer(), otelpgx.WithSpanNameFunc(summary))}
}

// TraceQueryStart implements pgx.QueryTracer.
func (t tracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	ctx = t.Tracer.TraceQueryStart(ctx, conn, data)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("db.query.summary", summary(data.SQL)))
	}
	return ctx
}

// TraceBatchStart implements pgx.BatchTracer.
func (t tracer) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	ctx = t.Tracer.TraceBatchStart(ctx, conn, data)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetName("BATCH")
		span.SetAttributes(attribute.String("db.operation.name", "BATCH"))
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer. The statements of a batch have no spans of
// their own: it is one round trip, and nobody knows when each of them ran.
func (t tracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	t.Tracer.TraceBatchQuery(trace.ContextWithSpan(ctx, nil), conn, data)
}

// TracePrepareStart implements pgx.PrepareTracer. A preparation is part of its query and
// has no span of its own.
func (t tracer) TracePrepareStart(ctx context.Context, conn *pgx.Conn, data pgx.TracePrepareStartData) context.Context {
	return t.Tracer.TracePrepareStart(trace.ContextWithSpan(ctx, nil), conn, data)
}
