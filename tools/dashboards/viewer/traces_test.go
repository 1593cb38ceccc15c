package viewer

import (
	"encoding/binary"
	"fmt"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
)

// id returns an id of a size that contains n.
func id(size, n int) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, size-8), uint64(n))
}

func send(t *testing.T, to *traces, spans ...*tracev1.Span) {
	t.Helper()
	if _, err := to.Export(t.Context(), &collectorv1.ExportTraceServiceRequest{ResourceSpans: []*tracev1.ResourceSpans{
		{ScopeSpans: []*tracev1.ScopeSpans{{Spans: spans}}},
	}}); err != nil {
		t.Fatal(err)
	}
}

// TestBounds sends more than is kept: each trace has a link to the one before, some are slow,
// and one has many spans.
func TestBounds(t *testing.T) {
	const others = maxTraces + 10
	kept := newTraces()
	for n := range maxSlow + 1 + others {
		s := &tracev1.Span{
			TraceId: id(16, n+1), SpanId: id(8, 1), Name: "root", StartTimeUnixNano: uint64(n) * 1000,
			Links: []*tracev1.Span_Link{{TraceId: id(16, n)}},
		}
		s.EndTimeUnixNano = s.StartTimeUnixNano
		if n <= maxSlow {
			s.EndTimeUnixNano += slow * 1000
		}
		send(t, kept, s)
	}
	hexed := func(n int) string { return fmt.Sprintf("%032x", n) }
	last := maxSlow + 1 + others
	for n := range maxSpans + 10 {
		send(t, kept, &tracev1.Span{TraceId: id(16, last-1), SpanId: id(8, n+2), ParentSpanId: id(8, 1), Name: "more"})
	}
	if len(kept.byID) != maxTraces+maxSlow || len(kept.linked) > maxTraces+maxSlow {
		t.Errorf("%d traces, %d linked to; at most %d", len(kept.byID), len(kept.linked), maxTraces+maxSlow)
	}
	if newest := kept.list("root", false, 1)[0]; newest.ID != hexed(last) {
		t.Errorf("the newest is %s", newest.ID)
	}
	if slowest := kept.list("root", true, maxSlow+1); slowest[0].ID != hexed(2) || slowest[maxSlow].Length != 0 {
		t.Errorf("the slowest is %s, and %d µs come after all slow ones", slowest[0].ID, slowest[maxSlow].Length)
	}
	w, ok := kept.waterfall(hexed(last - 1))
	if !ok || len(w.Rows) != maxSpans || w.Spans != maxSpans+11 || len(w.Linked) != 1 || len(w.LinksTo) != 1 {
		t.Errorf("%d spans kept of %d, linked by %d and to %d", len(w.Rows), w.Spans, len(w.Linked), len(w.LinksTo))
	}
	for _, gone := range []int{1, maxSlow + 2} {
		if _, ok := kept.waterfall(hexed(gone)); ok {
			t.Errorf("trace %d is still there", gone)
		}
	}
}

// TestWaterfall puts spans below their parents in whatever order they come, and ends on
// spans that name each other as parents.
func TestWaterfhexed(t *testing.T) {
	kept := newTraces()
	span := func(self, parent int, start uint64) *tracev1.Span {
		s := &tracev1.Span{TraceId: id(16, 1), SpanId: id(8, self), StartTimeUnixNano: start * 1000, EndTimeUnixNano: start*1000 + 2000}
		if parent > 0 {
			s.ParentSpanId = id(8, parent)
		}
		return s
	}
	send(t, kept, span(3, 2, 30), span(4, 1, 20), span(2, 1, 25), span(1, 0, 10), span(8, 9, 1), span(9, 8, 2), span(6, 77, 40))
	w, ok := kept.waterfall("00000000000000000000000000000001")
	got := ""
	for _, r := range w.Rows {
		got += string('0'+rune(r.Depth)) + r.ID[15:] + " "
	}
	if want := "01 14 12 23 06 "; !ok || got != want {
		t.Errorf("depth and id: %q, want %q", got, want)
	}
	if w.Length != 2 || w.Start.UnixMicro() != 10 {
		t.Errorf("the root takes %d µs from %v", w.Length, w.Start)
	}
}
