package scrape

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"waitlist.internal/k8s/canary/judge"
)

// fake is a pod's metrics: requests of 10 ms and of 300 ms with status 200, and immediate ones with status 500.
type fake struct {
	fast, slow, failed uint64
	away               bool
	text               string // in place of all that
}

func (f *fake) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if f.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if f.text != "" {
		fmt.Fprint(w, f.text)
		return
	}
	fmt.Fprintln(w, "# TYPE seconds histogram")
	for _, s := range []struct {
		status             string
		below, within, all uint64
	}{{"200", f.fast, f.fast + f.slow, f.fast + f.slow}, {"500", f.failed, f.failed, f.failed}} {
		fmt.Fprintf(w, "seconds_bucket{status=%q,le=\"0.1\"} %d\nseconds_bucket{status=%[1]q,le=\"1\"} %[3]d\n", s.status, s.below, s.within)
		fmt.Fprintf(w, "seconds_bucket{status=%q,le=\"+Inf\"} %d\nseconds_sum{status=%[1]q} 1\nseconds_count{status=%[1]q} %[2]d\n",
			s.status, s.all)
	}
	fmt.Fprintf(w, "# TYPE retries_total counter\nretries_total %d\n", f.slow)
}

func pattern(t *testing.T, p string) *regexp.Regexp {
	t.Helper()
	r, err := Matching(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// start serves a candidate's pod and two of the stable version.
func start(t *testing.T, fakes ...*fake) (w *Watch, addresses []string) {
	t.Helper()
	for _, f := range fakes {
		s := httptest.NewServer(f)
		t.Cleanup(s.Close)
		addresses = append(addresses, s.URL)
	}
	status := func(p string) map[string]*regexp.Regexp { return map[string]*regexp.Regexp{"status": pattern(t, p)} }
	w, err := New([]Check{
		{All: Series{Metric: "seconds_count"}, Bad: Series{Metric: "seconds_count", Labels: status("5..")}},
		{All: Series{Metric: "seconds", Labels: status("2..")}},
		{All: Series{Metric: "seconds_count"}, Bad: Series{Metric: "retries_total"}},
	}, []judge.Check{{}, {Boundaries: []float64{0.1, 1}}, {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w, addresses
}

// windows are what so many requests make of the three checks.
func windows(fast, slow, failed uint64) []judge.Window {
	return []judge.Window{
		{Bad: failed, All: fast + slow + failed}, {Buckets: []uint64{fast, slow, 0}}, {Bad: slow, All: fast + 2*slow + failed},
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	candidate, stable, other := &fake{fast: 1_000, failed: 7}, &fake{fast: 5_000, slow: 50}, &fake{fast: 5_000}
	w, a := start(t, candidate, stable, other)
	look := func(when string, c, s []string, wantC, wantS []judge.Window, wantErr bool) {
		t.Helper()
		gotC, gotS, err := w.Look(t.Context(), c, s)
		if (err != nil) != wantErr || !reflect.DeepEqual(gotC, wantC) || !reflect.DeepEqual(gotS, wantS) {
			t.Fatalf("%s:\n%+v and %+v, %v\nwant\n%+v and %+v", when, gotC, gotS, err, wantC, wantS)
		}
	}
	none := windows(0, 0, 0)
	look("counting begins with the first answer", a[:1], a[1:], none, none, false)

	candidate.fast, candidate.failed, stable.fast, other.slow = 1_003, 9, 5_010, 4
	look("pods of a side are summed", a[:1], a[1:], windows(3, 0, 2), windows(10, 4, 0), false)
	look("nothing happened", a[:1], a[1:], none, none, false)

	other.away, candidate.fast, stable.fast = true, 1_004, 5_011
	look("a pod does not answer", a[:1], a[1:], nil, nil, true)
	other.away, other.fast = false, 5_100
	look("it answers again", a[:1], a[1:], windows(1, 0, 0), windows(101, 0, 0), false)

	other.away, candidate.fast = true, 1_005
	look("a pod does not answer, 1", a[:1], a[1:], nil, nil, true)
	look("a pod does not answer, 2", a[:1], a[1:], nil, nil, true)
	look("the others are judged without it", a[:1], a[1:], windows(1, 0, 0), none, true)
	other.away, other.fast = false, 9_000
	look("its counting begins anew", a[:1], a[1:], none, none, false)

	*candidate = fake{fast: 2, slow: 1}
	look("a pod restarted", a[:1], a[1:], windows(2, 1, 0), none, false)

	stable.fast, other.fast = 6_000, 9_001
	look("a pod is gone", a[:1], a[2:], none, windows(1, 0, 0), false)
	candidate.fast = 500
	look("a pod is promoted", a[:0], a, none, none, false)
}

// TestRedirect: a pod cannot send the operator to another host, nor be judged by its answers.
func TestRedirect(t *testing.T) {
	t.Parallel()
	var asked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	defer elsewhere.Close()
	pod := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer pod.Close()
	w, _ := start(t)
	if _, _, err := w.Look(t.Context(), []string{pod.URL}, nil); err == nil || asked.Load() {
		t.Errorf("followed: %v, %v", asked.Load(), err)
	}
}

func TestWhatPodsMayAnswer(t *testing.T) {
	t.Parallel()
	const histogram = `# TYPE seconds histogram
seconds_bucket{le="3",status="200"} 1
seconds_count{status="200"} 1
`
	for name, c := range map[string]struct{ text, want string }{
		"no metrics":     {"<html>", "parse metrics"},
		"no histogram":   {"# TYPE seconds counter\nseconds{status=\"200\"} 3\n", "not a histogram"},
		"other buckets":  {histogram, "no bucket 0.1"},
		"not a word yet": {"# TYPE other counter\nother 3\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, a := start(t, &fake{text: c.text})
			_, _, err := w.Look(t.Context(), a, nil)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestChecksThatCannotBe(t *testing.T) {
	t.Parallel()
	all, bad := Series{Metric: "all"}, Series{Metric: "bad"}
	for name, c := range map[string]struct {
		check      Check
		boundaries []float64
	}{
		"nothing":                     {Check{}, nil},
		"a share without its bad":     {Check{All: all}, nil},
		"a histogram with a bad part": {Check{All: all, Bad: bad}, []float64{1}},
	} {
		if _, err := New([]Check{c.check}, []judge.Check{{Boundaries: c.boundaries}}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
