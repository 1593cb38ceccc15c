package e2e

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/kafka/kafkatest"
	"waitlist.internal/libs/testenv"
)

// recorder receives spans by OTLP.
type recorder struct {
	collectorv1.UnimplementedTraceServiceServer

	addr string
	mu   sync.Mutex
	all  []recorded
}

// recorded is a span with the service that made it.
type recorded struct {
	*tracev1.Span
	service string
}

func newRecorder(t testing.TB) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: l.Addr().String()}
	s := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(s, r)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return r
}

// Export implements collectorv1.TraceServiceServer.
func (r *recorder) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range req.GetResourceSpans() {
		service := ""
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.all = append(r.all, recorded{s, service})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (r *recorder) spans() []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// remote is the parent of the spans that continue a proxy's trace.
var remote = []byte{0, 0, 0, 0, 0, 0, 0, 0xff}

// incidental are spans whose place is chance: which signup makes a pool open a connection or a reader catch up, and below which of
// a batch's events analytics stores all of them.
var incidental = []string{"connect", "SELECT change", "INSERT arrival"}

// tree draws what a proxy's trace became: a line for each span, indented below its parent, siblings in order of what is below them.
func (r *recorder) tree(trace []byte) string {
	children := map[string][]recorded{}
	for _, s := range r.spans() {
		if string(s.GetTraceId()) == string(trace) && !slices.Contains(incidental, s.GetName()) {
			children[string(s.GetParentSpanId())] = append(children[string(s.GetParentSpanId())], s)
		}
	}
	var draw func(parent []byte, depth int) string
	draw = func(parent []byte, depth int) string {
		var below []string
		for _, s := range children[string(parent)] {
			below = append(below, strings.Repeat("  ", depth)+s.service+" "+s.GetName()+"\n"+draw(s.GetSpanId(), depth+1))
		}
		slices.Sort(below)
		return strings.Join(below, "")
	}
	return draw(remote, 0)
}

// signupTrace is the trace of a referred signup with a mail and two webhooks.
const signupTrace = `signup POST /v1/public/waitlists/:waitlist_id/signups
  signup send waitlist.signups.v1
    admin-analytics process waitlist.signups.v1
    messaging process waitlist.signups.v1
      messaging INSERT sent_mail
      messaging send mail
        messaging SELECT domain
        messaging SELECT template
        messaging UPDATE sent_mail
        messaging waitlist.signup.v1.SignupService/GetMailing
          signup waitlist.signup.v1.SignupService/GetMailing
            signup SELECT waitlist
    notifier process waitlist.signups.v1
      notifier INSERT delivery
      notifier notify
        notifier waitlist.signup.v1.SignupService/GetNotice
          signup waitlist.signup.v1.SignupService/GetNotice
            signup SELECT waitlist
  signup send waitlist.signups.v1
    notifier process waitlist.signups.v1
      notifier INSERT delivery
      notifier notify
        notifier waitlist.signup.v1.SignupService/GetNotice
          signup waitlist.signup.v1.SignupService/GetNotice
            signup SELECT waitlist
`

// testTraces: what a signup causes in four services is one trace, also where 50 share a commit; the commit links to them; and
// no span, no log line and no record's header names anybody.
func (s *suite) testTraces(t *testing.T) {
	const crowd = 50
	spans, owners := newRecorder(t), newReceiver(t)
	brokers, prefix := testenv.Kafka(t)
	env := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + spans.addr, "OTEL_BSP_SCHEDULE_DELAY": "100",
		"TRACE_RATIO": "1", "TRACES_PER_SECOND": "100000",
		"KAFKA_BROKERS": strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX": prefix,
	}
	maps.Copy(env, owners.env)
	d := s.deploy(t, env)
	o := d.owner(t)
	id := o.waitlist(t, Obj{"webhook_url": "https://example.com/traces"})
	o.set(t, id, Obj{"email_templates": Obj{"signup_confirmation": o.template(t, "signup_confirmation", nil)}})
	secrets := []string{o.email, o.key, o.token, o.refresh}

	// The requests come from a trusted proxy, whose trace they continue.
	trace := func(n int) (id []byte, header string) {
		id = binary.BigEndian.AppendUint64(make([]byte, 8), uint64(n)+1)
		return id, "00-" + hex.EncodeToString(id) + "-" + hex.EncodeToString(remote) + "-01"
	}
	ann := address("ann")
	token := o.join(t, id, ann).Str("referral_token")
	secrets = append(secrets, ann, token)
	one, header := trace(0)
	bob := address("bob")
	o.Do(t, signup(id, bob, Obj{"referred_by_token": token}).With("Traceparent", header)).Want(http.StatusCreated)
	seen := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last trace that was looked at is\n%s", seen)
		}
	})
	whole := func(trace []byte) bool {
		seen = spans.tree(trace)
		return seen == signupTrace
	}
	testenv.Eventually(t, "the whole trace of a signup", func() bool { return whole(one) })
	secrets = append(secrets, bob)

	var all sync.WaitGroup
	for n := range crowd {
		email := address(fmt.Sprintf("crowd%d", n))
		secrets = append(secrets, email)
		all.Go(func() {
			_, header := trace(n + 1)
			o.Do(t, signup(id, email, Obj{"referred_by_token": token}).With("Traceparent", header)).Want(http.StatusCreated)
		})
	}
	all.Wait()
	testenv.Eventually(t, "the traces of a crowd", func() bool {
		for n := range crowd {
			if id, _ := trace(n + 1); !whole(id) {
				return false
			}
		}
		return true
	})
	s.testSpansOfASignup(t, o, spans, func() ([]byte, string) { return trace(crowd + 1) })
	linked := map[string]bool{}
	for _, sp := range spans.spans() {
		if sp.GetName() == "signup commit" {
			if len(sp.GetParentSpanId()) > 0 || len(sp.GetLinks()) > 64 {
				t.Errorf("a commit below another span, or with %d links", len(sp.GetLinks()))
			}
			for _, l := range sp.GetLinks() {
				linked[string(l.GetTraceId())] = true
			}
		}
	}
	for n := range crowd + 1 {
		if id, _ := trace(n); !linked[string(id)] {
			t.Errorf("no commit links to request %d", n)
		}
	}

	told := d.server.Log()
	for _, sp := range spans.spans() {
		told += "\n" + sp.String()
	}
	traced := 0
	for _, topic := range kafka.Topics() {
		for _, m := range kafkatest.Messages(t, kafka.Config{Brokers: brokers, TopicPrefix: prefix}, topic) {
			headers := kafkatest.Headers(m)
			told += fmt.Sprintf("\n%q", headers)
			if headers[kafka.HeaderTraceparent] != "" {
				traced++
			}
		}
	}
	if traced < 2*crowd {
		t.Errorf("%d records have a trace, and each of %d signups has two", traced, crowd)
	}
	for _, secret := range secrets {
		if strings.Contains(told, secret) {
			t.Errorf("%q is in a span, in the log or in a record's header", secret)
		}
	}
}

// maxSpans bounds what a signup costs that nobody is told of, the whole commit included. Each
// mail and webhook adds what signupTrace shows.
const maxSpans = 8

func (*suite) testSpansOfASignup(t *testing.T, o *owner, spans *recorder, trace func() ([]byte, string)) {
	t.Helper()
	id, header := trace()
	o.Do(t, signup(o.waitlist(t, nil), address("plain"), nil).With("Traceparent", header)).Want(http.StatusCreated)
	var own []string
	testenv.Eventually(t, "the spans of a plain signup", func() bool {
		own = nil
		commit := ""
		for _, sp := range spans.spans() {
			for _, l := range sp.GetLinks() {
				if string(l.GetTraceId()) == string(id) {
					commit = string(sp.GetTraceId())
				}
			}
		}
		for _, sp := range spans.spans() {
			if in := string(sp.GetTraceId()); (in == string(id) || in == commit) && sp.GetName() != "connect" {
				own = append(own, sp.GetName())
			}
		}
		return !slices.ContainsFunc(
			[]string{"POST /v1/public/waitlists/:waitlist_id/signups", "send waitlist.signups.v1", "process waitlist.signups.v1", "signup commit"},
			func(name string) bool { return !slices.Contains(own, name) })
	})
	slices.Sort(own)
	if len(own) > maxSpans {
		t.Errorf("%d spans, at most %d: %q", len(own), maxSpans, own)
	}
	t.Logf("%d spans: %q", len(own), own)
}
