// Package dns looks up TXT records at a recursive resolver. Unlike the standard library it
// distinguishes a name without records from a failed lookup.
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
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"waitlist.internal/libs/telemetry"
	"waitlist.internal/services/messaging/domains"
)

const (
	scope = "waitlist.internal/services/messaging/providers/dns"

	// tryTimeout limits one query, lookupTimeout all queries for one name: the REST request that
	// waits for them has to be answered within five seconds.
	tryTimeout    = 1500 * time.Millisecond
	lookupTimeout = 3500 * time.Millisecond
	tries         = 2
	// udpSize is the largest answer by UDP, in bytes; longer ones are requested by TCP.
	udpSize = 1232
	// systemConfig lists the resolvers of the machine.
	systemConfig = "/etc/resolv.conf"
)

// Resolver implements domains.Texts.
type Resolver struct {
	servers []string
	tracer  trace.Tracer
	lookups *prometheus.CounterVec
}

// Metrics returns the resolver's metrics for a registry.
func (r *Resolver) Metrics() prometheus.Collector { return r.lookups }

// New returns a Resolver that queries the server at address (host:port), or the machine's resolvers if
// it is empty.
func New(address string) (*Resolver, error) {
	r := &Resolver{tracer: telemetry.Tracer(nil, scope), lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "messaging_dns_lookups_total", Help: "Names looked up, by outcome: found, none, unknown.",
	}, []string{"outcome"})}
	for _, outcome := range []string{"found", "none", "unknown"} {
		r.lookups.WithLabelValues(outcome)
	}
	if address != "" {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("parse the resolver's address: %w", err)
		}
		r.servers = []string{address}
		return r, nil
	}
	cfg, err := mdns.ClientConfigFromFile(systemConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the DNS resolvers: %w", err)
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

// Texts implements domains.Texts.
func (r *Resolver) Texts(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ctx, span := r.tracer.Start(ctx, "DNS TXT", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("dns.question.name", name)))
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
	r.lookups.WithLabelValues(outcome).Inc()
	return texts, err
}

func (r *Resolver) lookup(ctx context.Context, name string) ([]string, error) {
	if _, ok := mdns.IsDomainName(name); !ok {
		return nil, nil // too long to have records
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
	return nil, fmt.Errorf("%w: %w", domains.ErrNoAnswer, failed)
}

// ask queries one server, by TCP if the answer is too long for UDP.
func ask(ctx context.Context, q *mdns.Msg, server string) (*mdns.Msg, error) {
	answer, _, err := (&mdns.Client{Timeout: tryTimeout}).ExchangeContext(ctx, q, server)
	if err == nil && answer.Truncated {
		answer, _, err = (&mdns.Client{Net: "tcp", Timeout: tryTimeout}).ExchangeContext(ctx, q, server)
	}
	if err == nil && answer.Truncated {
		err = errors.New("truncated answer")
	}
	return answer, err
}

// texts returns the TXT records of an answer, including those found through a CNAME, each joined to one
// string.
func texts(answer *mdns.Msg) []string {
	var out []string
	for _, rr := range answer.Answer {
		if t, ok := rr.(*mdns.TXT); ok {
			out = append(out, strings.Join(t.Txt, ""))
		}
	}
	return out
}
