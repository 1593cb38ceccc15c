package viewer

import (
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"waitlist.internal/tools/dashboards/engine"
)

// TestVariables chooses one of two versions, whose names have dots.
func TestVariables(t *testing.T) {
	const root = "../../.."
	e, err := engine.Open(t.Context(), t.TempDir(), root, Namespace, retention)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	now := time.Now()
	app := e.DB.Appender(t.Context())
	for _, version := range []string{"v1.2.3", "v1x2x3"} {
		series := labels.FromStrings("__name__", "waitlist_build_info", "namespace", Namespace, "service", "signup", "version", version)
		if _, err := app.Append(0, series, now.UnixMilli(), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	v := &Viewer{cfg: Config{Root: root, Interval: time.Second}, engine: e}
	boards, err := v.boards()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boards {
		if b.UID != "waitlist-release" {
			continue
		}
		for choice, want := range map[string]int{"": 2, "v1.2.3": 1} {
			d, err := v.draw(t.Context(), b, url.Values{"version": {choice}}, now.Add(-time.Minute), now.Add(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			pods := d.Panels[0]
			if pods.Title != "Pods" || len(pods.Lines) != want || pods.Lines[0].Name != "signup v1.2.3" {
				t.Errorf("version %q: %s has %d lines, want %d: %+v", choice, pods.Title, len(pods.Lines), want, pods.Lines)
			}
		}
		return
	}
	t.Error("there is no dashboard of releases")
}
