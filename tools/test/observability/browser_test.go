package observability_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"waitlist.internal/tools/dashboards/viewer"
)

// empty are the panels that need not have a line after the test's traffic, with the reason.
var empty = map[string]string{ // a constant
	"Certificates":     "the suite's servers speak without TLS",
	"Canaries":         operator,
	"Candidates":       operator,
	"Stalled canaries": operator,
}

// blankPanels lists the panels without a line: axes are grey, so a pixel of a colour is a line's.
const blankPanels = `[...document.querySelectorAll('.panel')].filter(p => {
	const canvas = p.querySelector('canvas');
	if (!canvas) return true;
	const {width, height} = canvas;
	const copy = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
	copy.drawImage(canvas, 0, 0);
	const {data} = copy.getImageData(0, 0, width, height);
	for (let i = 0; i < data.length; i += 4) {
		const [r, g, b, a] = data.slice(i, i + 4);
		if (a > 128 && Math.max(r, g, b) - Math.min(r, g, b) > 60) return false;
	}
	return true;
}).map(p => p.dataset.title).join('\n')`

// TestPage opens each view of make dashboards in Chromium beside a suite in use. SCREENSHOTS
// names a folder that gets a picture of each.
func TestPage(t *testing.T) {
	t.Parallel()
	internal := freePort(t)
	v, err := viewer.New(t.Context(), viewer.Config{
		Root: root, Data: t.TempDir(), Listen: "127.0.0.1:0", OTLP: "127.0.0.1:0", Interval: time.Second,
		Metrics: []string{"http://" + internal + "/metrics"}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- v.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil {
			t.Errorf("viewer: %v", err)
		}
	})
	s := start(t, "INTERNAL_ADDR="+internal, "OTEL_EXPORTER_OTLP_ENDPOINT="+v.Endpoint(), "OTEL_BSP_SCHEDULE_DELAY=200", "TRACE_RATIO=1")
	stranger(t, v.URL())

	// Traffic goes on until the last view has been seen, as rates need it. Short lists have no index in Redis.
	w := s.world()
	rows := make([]object, 1100)
	for i := range rows {
		rows[i] = object{"email": fmt.Sprintf("row%d@example.com", i)}
	}
	s.post("/waitlists/"+w.list+"/import", w.key, object{"signups": rows})
	var driver sync.WaitGroup
	seen := make(chan struct{})
	defer driver.Wait()
	defer close(seen)
	driver.Go(func() {
		for i := 0; ; i++ {
			friend := s.signup(w, fmt.Sprint("ann", i), "")
			s.signup(w, fmt.Sprint("bob", i), friend)
			s.do("GET", "/waitlists/"+w.list+"/signups", "wrong", nil)
			s.do("GET", "/public/waitlists/"+w.list+"/signups/"+fmt.Sprint("ann", i)+"@example.com", "", nil)
			s.page(w)
			if i%8 == 0 { // a new account gets a mail, and may pay
				owner := object{"email": fmt.Sprint("owner", i, "@example.com"), "password": "correct horse battery"}
				key := s.post("/auth/register", "", owner)["api_key"].(string)
				s.do("POST", "/billing/checkout", key, object{"tier": "pro"})
			}
			select {
			case <-seen:
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	})

	tab := browse(t)
	var views struct {
		Dashboards []struct{ UID, Title string }
		Up         int
	}
	answer := func(path string, into any) {
		t.Helper()
		res, err := http.Get(v.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	s.await("a scrape", func() bool { answer("/api/dashboards", &views); return views.Up == 1 })
	if len(views.Dashboards) != 9 {
		t.Errorf("%d dashboards, want 9", len(views.Dashboards))
	}
	for _, d := range views.Dashboards {
		tab.open(v.URL()+"/#/"+d.UID, d.UID)
		var blank string
		deadline := time.Now().Add(30 * time.Second)
		for {
			blank = tab.text(blankPanels)
			blank = without(blank, empty)
			if blank == "" || time.Now().After(deadline) {
				break
			}
			tab.wait(time.Second)
		}
		if blank != "" {
			t.Errorf("%s: nothing is drawn in %q", d.Title, blank)
		}
		if n := tab.text(`String(document.querySelectorAll('.panel').length)`); n == "0" {
			t.Errorf("%s has no panel", d.Title)
		}
		tab.picture(d.UID)
	}
	// A point on the panel of signups leads to that signup's trace.
	const point = `document.querySelector('.panel[data-title="Time of a signup"] a.exemplar')`
	tab.open(v.URL()+"/#/waitlist-signup", "waitlist-signup")
	s.await("an exemplar", func() bool { return tab.text(`String(!!`+point+`)`) == "true" })
	id := strings.TrimPrefix(tab.text(`(() => { const a = `+point+`; a.click(); return a.hash; })()`), "#/traces/")
	tab.drawn("traces/" + id)
	if title := tab.text(`document.querySelector('h1').innerText`); title != "signup POST /v1/public/waitlists/:waitlist_id/signups" {
		t.Errorf("the exemplar leads to %q", title)
	}

	tab.open(v.URL()+"/#/alerts", "alerts")
	for _, alert := range []string{"WaitlistPostgresAway", "WaitlistBudgetSignupFast 1h"} {
		if !strings.Contains(tab.text(`document.body.innerText`), alert) {
			t.Errorf("%s is not among the alerts", alert)
		}
	}
	tab.picture("alerts")

	// The trace of a referred signup, which went through four services.
	var list []struct {
		ID, Name string
		Services int
	}
	s.await("a whole trace", func() bool {
		answer("/api/traces?order=newest&name=signup+POST", &list)
		for _, tr := range list {
			if tr.Services >= 3 {
				list[0] = tr
				return true
			}
		}
		return false
	})
	tab.open(v.URL()+"/#/traces", "traces")
	tab.picture("traces")
	tab.open(v.URL()+"/#/traces/"+list[0].ID, "traces/"+list[0].ID)
	shown := tab.text(`document.body.innerText`)
	for _, span := range []string{
		"POST /v1/public/waitlists/:waitlist_id/signups", "send waitlist.signups.v1", "process waitlist.signups.v1", "notify",
	} {
		if !strings.Contains(shown, span) {
			t.Errorf("the waterfall has no span %s:\n%s", span, shown)
		}
	}
	tab.picture("trace")

	// What goes wrong shows, with what it means.
	for _, pid := range s.children("redis-server") {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	tab.open(v.URL()+"/#/alerts", "alerts")
	s.await("a pending alert on the page", func() bool {
		rows := tab.text(`[...document.querySelectorAll('tbody tr')].map(r => r.innerText.replaceAll('\n', ' ')).join('\n')`)
		for row := range strings.SplitSeq(rows, "\n") {
			if strings.HasPrefix(row, "pending") && strings.Contains(row, "No pod of signup reaches redis.") {
				return true
			}
		}
		return false
	})
	tab.picture("pending")
	tab.quiet()
}

// without drops the lines that are keys of some.
func without(lines string, some map[string]string) string {
	var out []string
	for line := range strings.SplitSeq(lines, "\n") {
		if some[line] == "" && line != "" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// stranger asks as a page would whose name resolves to this machine, and for what no series has.
func stranger(t *testing.T, page string) {
	t.Helper()
	for _, c := range []struct {
		host, path string
		want       int
	}{
		{"rebound.example.com", "/api/traces", http.StatusMisdirectedRequest},
		{"127.0.0.1", "/api/traces", http.StatusOK},
		{"127.0.0.1", "/api/dashboards/waitlist-suite?range=5m&service=" + url.QueryEscape(`x"} or vector(1)`), http.StatusNotFound},
		{"127.0.0.1", "/api/dashboards/waitlist-suite?range=9000h", http.StatusNotFound},
		{"127.0.0.1", "/api/dashboards/none?range=5m", http.StatusNotFound},
		{"127.0.0.1", "/package.json", http.StatusNotFound},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = net.JoinHostPort(c.host, req.URL.Port())
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s of %s: %d, want %d", c.path, c.host, res.StatusCode, c.want)
		}
	}
	if _, err := viewer.New(t.Context(), viewer.Config{Listen: "0.0.0.0:0"}); !errors.Is(err, viewer.ErrNotLoopback) {
		t.Errorf("listening on every address: %v", err)
	}
}

// tab is a tab of a headless Chromium.
type tab struct {
	testing.TB
	ctx context.Context

	mu    sync.Mutex
	wrong []string
}

// browse starts Chromium (Debian's chromium) until the test ends, and notes what its console
// complains about.
func browse(t testing.TB) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox) // root has no other way; the pages are ours
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	b := &tab{TB: t, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1360, 700)); err != nil {
		t.Fatalf("Chromium: %v", err)
	}
	console := chromedp.Console(ctx)
	go func() {
		for m, err := range console {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.wrong = append(b.wrong, fmt.Sprintf("%+v", m))
			b.mu.Unlock()
		}
	}()
	return b
}

// open shows an address and waits until its view is drawn.
func (b *tab) open(url, view string) {
	b.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(url)); err != nil {
		b.Fatalf("%s: %v", url, err)
	}
	b.drawn(view)
}

// drawn waits until a view is drawn.
func (b *tab) drawn(view string) {
	b.Helper()
	drawn := fmt.Sprintf(`document.getElementById('main')?.dataset.drawn === %q`, view)
	if _, err := chromedp.Run(b.ctx, chromedp.Poll[bool](drawn, chromedp.WithPollingTimeout(20*time.Second))); err != nil {
		b.Fatalf("%s is not drawn: %v\n%s\n%v", view, err, b.text(`document.body.innerText`), b.wrong)
	}
}

// text is the value of an expression.
func (b *tab) text(expr string) string {
	b.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](expr))
	if err != nil {
		b.Fatalf("%s: %v", expr, err)
	}
	return out
}

func (b *tab) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
	}
}

func (b *tab) picture(name string) {
	b.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	body, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), body, 0o600)
	}
	if err != nil {
		b.Errorf("picture of %s: %v", name, err)
	}
}

// quiet fails if the console has complained.
func (b *tab) quiet() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.wrong {
		b.Errorf("console: %s", line)
	}
}
