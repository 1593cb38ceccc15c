package viewer

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Bounds of what is kept: a new trace replaces the oldest one, but slow ones stay longer,
// since people look for them. Spans of a trace beyond maxSpans are only counted.
const (
	maxTraces = 10000
	maxSlow   = 1000
	slow      = 250_000 // µs, the bound of the objective signup_fast
	maxSpans  = 1000
)

// span is a span as the page shows it. Start is in Unix microseconds, Length in microseconds.
type span struct {
	ID         string            `json:"id"`
	Parent     string            `json:"parent,omitempty"`
	Service    string            `json:"service"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	Start      int64             `json:"start"`
	Length     int64             `json:"length"`
	Error      bool              `json:"error,omitempty"`
	Attributes map[string]string `json:"attributes"`
	// Links are the traces that this span names as causes.
	Links []string `json:"links,omitempty"`
	// Depth is the distance from the root, in the order of a waterfall.
	Depth int `json:"depth"`
}

// trace has its spans in the order of their arrival.
type trace struct {
	spans   []span
	dropped int
}

// traces receives spans by OTLP and keeps the newest traces in memory.
type traces struct {
	collectorv1.UnimplementedTraceServiceServer

	mu   sync.Mutex
	byID map[string]*trace
	// order has the newest traces, slow the slow ones before them; the oldest is first.
	order, slow []string
	// linked has, for each trace, the traces that link to it.
	linked map[string][]string
}

func newTraces() *traces { return &traces{byID: map[string]*trace{}, linked: map[string][]string{}} }

// Export implements collectorv1.TraceServiceServer.
func (t *traces) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, from := range req.GetResourceSpans() {
		service := text(from.GetResource().GetAttributes())["service.name"]
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				t.add(service, s)
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (t *traces) add(service string, s *tracev1.Span) {
	id := hex.EncodeToString(s.GetTraceId())
	of := t.byID[id]
	if of == nil {
		if len(t.order) >= maxTraces {
			t.retire(t.order[0])
			t.order = t.order[1:]
		}
		of = &trace{}
		t.byID[id], t.order = of, append(t.order, id)
	}
	if len(of.spans) >= maxSpans {
		of.dropped++
		return
	}
	out := span{
		ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()), Service: service, Name: s.GetName(),
		Kind:  strings.ToLower(strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_")),
		Start: int64(s.GetStartTimeUnixNano() / 1000), Length: int64(s.GetEndTimeUnixNano()-s.GetStartTimeUnixNano()) / 1000,
		Error: s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR, Attributes: text(s.GetAttributes()),
	}
	for _, l := range s.GetLinks() {
		to := hex.EncodeToString(l.GetTraceId())
		out.Links = append(out.Links, to)
		if !slices.Contains(t.linked[to], id) {
			t.linked[to] = append(t.linked[to], id)
		}
	}
	of.spans = append(of.spans, out)
}

// retire moves a trace to the slow ones if it is slow, and otherwise forgets it.
func (t *traces) retire(id string) {
	if t.summary(id).Length < slow {
		t.forget(id)
		return
	}
	if len(t.slow) >= maxSlow {
		t.forget(t.slow[0])
		t.slow = t.slow[1:]
	}
	t.slow = append(t.slow, id)
}

// forget drops a trace and its links to others.
func (t *traces) forget(id string) {
	for _, s := range t.byID[id].spans {
		for _, to := range s.Links {
			t.linked[to] = slices.DeleteFunc(t.linked[to], func(from string) bool { return from == id })
			if len(t.linked[to]) == 0 {
				delete(t.linked, to)
			}
		}
	}
	delete(t.byID, id)
}

// summary is a trace in a list. Length is that of its root, in microseconds; what the root
// causes may go on for longer.
type summary struct {
	ID       string    `json:"id"`
	Service  string    `json:"service"`
	Name     string    `json:"name"`
	Status   string    `json:"status,omitempty"`
	Start    time.Time `json:"start"`
	Length   int64     `json:"length"`
	Spans    int       `json:"spans"`
	Services int       `json:"services"`
	Error    bool      `json:"error"`
}

func (t *traces) summary(id string) summary {
	spans := t.byID[id].spans
	root := spans[0]
	services := map[string]bool{}
	out := summary{ID: id, Spans: len(spans) + t.byID[id].dropped}
	for _, s := range spans {
		services[s.Service] = true
		out.Error = out.Error || s.Error
		if s.Parent == "" || root.Parent != "" && s.Start < root.Start {
			root = s
		}
	}
	out.Service, out.Name, out.Length, out.Services = root.Service, root.Name, root.Length, len(services)
	out.Start, out.Status = time.UnixMicro(root.Start), root.Attributes["http.response.status_code"]
	return out
}

// list returns at most n traces whose root's name contains text, the slowest or the newest first.
func (t *traces) list(text string, slowest bool, n int) []summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []summary{}
	for _, id := range slices.Concat(t.slow, t.order) {
		if s := t.summary(id); strings.Contains(strings.ToLower(s.Service+" "+s.Name), strings.ToLower(text)) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b summary) int {
		if slowest {
			return int(b.Length - a.Length)
		}
		return b.Start.Compare(a.Start)
	})
	return out[:min(n, len(out))]
}

// has reports whether a trace is kept.
func (t *traces) has(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id] != nil
}

// waterfall is a trace with its spans below their parents.
type waterfall struct {
	summary
	Rows []span `json:"rows"`
	// Linked are the traces whose spans link here: the commits that a request shared.
	Linked []summary `json:"linked"`
	// LinksTo are the traces that spans of this one link to and that are still kept.
	LinksTo []summary `json:"linksTo"`
}

func (t *traces) waterfall(id string) (waterfall, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.byID[id]
	if of == nil {
		return waterfall{}, false
	}
	out := waterfall{summary: t.summary(id), Rows: []span{}, Linked: []summary{}, LinksTo: []summary{}}
	known, below := map[string]bool{}, map[string][]span{}
	for _, s := range of.spans {
		known[s.ID] = true
	}
	for _, s := range of.spans {
		parent := s.Parent
		if !known[parent] { // a root, or its parent has not come or is a caller's
			parent = ""
		}
		below[parent] = append(below[parent], s)
		for _, to := range s.Links {
			if t.byID[to] != nil {
				out.LinksTo = append(out.LinksTo, t.summary(to))
			}
		}
	}
	var walk func(parent string, depth int)
	walk = func(parent string, depth int) {
		children := below[parent]
		delete(below, parent) // a span that is its own ancestor ends here
		slices.SortStableFunc(children, func(a, b span) int { return int(a.Start - b.Start) })
		for _, s := range children {
			s.Depth = depth
			out.Rows = append(out.Rows, s)
			walk(s.ID, depth+1)
		}
	}
	walk("", 0)
	for _, from := range t.linked[id] {
		out.Linked = append(out.Linked, t.summary(from))
	}
	return out, true
}

// text returns attributes as text.
func text(attributes []*commonv1.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *commonv1.AnyValue_StringValue:
			out[a.GetKey()] = v.StringValue
		case *commonv1.AnyValue_IntValue:
			out[a.GetKey()] = fmt.Sprint(v.IntValue)
		case *commonv1.AnyValue_BoolValue:
			out[a.GetKey()] = fmt.Sprint(v.BoolValue)
		case *commonv1.AnyValue_DoubleValue:
			out[a.GetKey()] = fmt.Sprint(v.DoubleValue)
		default:
			out[a.GetKey()] = a.GetValue().String()
		}
	}
	return out
}
