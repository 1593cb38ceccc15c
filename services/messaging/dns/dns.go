// Package dns looks up what domains publish, from a recursive resolver: unlike
// the standard library it tells a name that has no records from one that nobody
// answers for.
package dns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"time"

	mdns "github.com/miekg/dns"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/services/messaging"
)

const (
	scope = "waitlist.internal/services/messaging/dns"

	// tryTimeout bounds one question, lookupTimeout all that are asked for one name: a
	// request that waits for them must be answered within five seconds.
	tryTimeout    = 1500 * time.Millisecond
	lookupTimeout = 3500 * time.Millisecond
	tries         = 2
	// udpSize is how long an answer may be before it is asked for by TCP, in bytes.
	udpSize = 1232
	// systemConfig names the machine's resolvers.
	systemConfig = "/etc/resolv.conf"
)

// Resolver implements messaging.Texts.
type Resolver struct {
	servers []string
	tracer  trace.Tracer
	lookups metric.Int64Counter
}

// New returns a Resolver that asks the server at an address (host:port); "": the
// machine's resolvers.
func New(address string) (*Resolver, error) {
	r := &Resolver{tracer: otel.Tracer(scope)}
	var err error
	if r.lookups, err = otel.Meter(scope).Int64Counter("messaging.dns_lookups", metric.WithDescription("Names looked up, by outcome: found, none, unknown.")); err != nil {
		return nil, fmt.Errorf("DNS metrics: %w", err)
	}
	if address != "" {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("DNS resolver: %w", err)
		}
		r.servers = []string{address}
		return r, nil
	}
	cfg, err := mdns.ClientConfigFromFile(systemConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("DNS resolvers: %w", err)
	}
	if err == nil {
		for _, s := range cfg.Servers {
			r.servers = append(r.servers, net.JoinHostPort(s, cfg.Port))
		}
	}
	if len(r.servers) == 0 {
		r.servers = []string{"127.0.0.1:53"} // as the C library does
	}
	return r, nil
}

// Texts implements messaging.Texts.
func (r *Resolver) Texts(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ctx, span := r.tracer.Start(ctx, "DNS TXT", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("dns.question.name", name)))
	defer span.End()
	texts, err := r.lookup(ctx, name)
	outcome := "found"
	switch {
	case err != nil:
		outcome = "unknown"
		span.SetStatus(codes.Error, outcome)
	case len(texts) == 0:
		outcome = "none"
	}
	r.lookups.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
	return texts, err
}

func (r *Resolver) lookup(ctx context.Context, name string) ([]string, error) {
	if _, ok := mdns.IsDomainName(name); !ok {
		return nil, nil // too long for a record to have it
	}
	q := new(mdns.Msg).SetQuestion(mdns.Fqdn(name), mdns.TypeTXT)
	q.SetEdns0(udpSize, false)
	var failed error
	for i := range max(tries, len(r.servers)) {
		answer, err := ask(ctx, q, r.servers[i%len(r.servers)])
		if err == nil && (answer.Rcode == mdns.RcodeSuccess || answer.Rcode == mdns.RcodeNameError) {
			return texts(answer), nil
		}
		if err == nil {
			err = errors.New(mdns.RcodeToString[answer.Rcode])
		}
		failed = err
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("%w: %w", messaging.ErrNoAnswer, failed)
}

// ask asks one server, by TCP where an answer is too long for UDP.
func ask(ctx context.Context, q *mdns.Msg, server string) (*mdns.Msg, error) {
	answer, _, err := (&mdns.Client{Timeout: tryTimeout}).ExchangeContext(ctx, q, server)
	if err == nil && answer.Truncated {
		answer, _, err = (&mdns.Client{Net: "tcp", Timeout: tryTimeout}).ExchangeContext(ctx, q, server)
	}
	if err == nil && answer.Truncated {
		err = errors.New("the answer was cut off")
	}
	return answer, err //nolint:wrapcheck // by lookup
}

// texts returns those of an answer, also below a CNAME, each in one piece.
func texts(answer *mdns.Msg) []string {
	var out []string
	for _, rr := range answer.Answer {
		if t, ok := rr.(*mdns.TXT); ok {
			out = append(out, strings.Join(t.Txt, ""))
		}
	}
	return out
}
