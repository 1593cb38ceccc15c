package pg

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
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
			if table := word(words[i+1]); table != "" {
				return verb + " " + table
			}
		}
	}
	return verb
}

// word returns the identifier that s begins with.
func word(s string) string {
	end := strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '.'
	})
	if end >= 0 {
		s = s[:end]
	}
	return s
}

// summaries adds a span's name as its query's summary, and leaves out the spans of the
// statements of a batch: the batch is one round trip.
type summaries struct{ trace.TracerProvider }

func (s summaries) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return summaryTracer{s.TracerProvider.Tracer(name, opts...)}
}

type summaryTracer struct{ trace.Tracer }

func (t summaryTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if strings.HasPrefix(name, "batch query ") {
		return ctx, trace.SpanFromContext(context.Background())
	}
	return t.Tracer.Start(ctx, name, append(opts, trace.WithAttributes(
		attribute.String("db.system.name", "postgresql"), attribute.String("db.query.summary", name)))...)
}
