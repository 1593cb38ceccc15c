package telemetry_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/telemetry"
)

// TestLevel changes the level for a while, by itself and over HTTP.
func TestLevel(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	one, two := telemetry.NewLevel(slog.LevelInfo, clock), telemetry.NewLevel(slog.LevelWarn, clock)
	h := telemetry.LevelHandler(one, two)
	put := func(body string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/log/level", strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	levels := func() [2]slog.Level { return [2]slog.Level{one.Level(), two.Level()} }
	usual := [2]slog.Level{slog.LevelInfo, slog.LevelWarn}
	for _, body := range []string{
		"", "DEBUG", "{}", `{"level":"LOUD"}`, `{"level":"DEBUG","for":"1 day"}`, `{"level":"DEBUG","for":"25h"}`,
		`{"level":"DEBUG","for":"-1s"}`, `{"level":"DEBUG","until":"10m"}`, `{"level":"DEBUG","for":"` + strings.Repeat("0", 2000) + `1m"}`,
	} {
		if status, text := put(body); status != http.StatusBadRequest || !strings.HasSuffix(strings.TrimSpace(text), ".") {
			t.Errorf("%.60s: %d %q", body, status, text)
		}
	}
	if levels() != usual {
		t.Errorf("%v after nothing but refusals", levels())
	}
	if status, _ := put(`{"level":"debug","for":"5m"}`); status != http.StatusNoContent {
		t.Fatal(status)
	}
	debug := [2]slog.Level{slog.LevelDebug, slog.LevelDebug}
	for _, c := range []struct {
		after time.Duration
		want  [2]slog.Level
	}{{0, debug}, {5*time.Minute - 1, debug}, {5 * time.Minute, usual}} {
		now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(c.after)
		if levels() != c.want {
			t.Errorf("after %s: %v, want %v", c.after, levels(), c.want)
		}
	}
	put(`{"level":"ERROR"}`)
	now = now.Add(9 * time.Minute)
	if one.Level() != slog.LevelError {
		t.Error("ended before ten minutes")
	}
	now = now.Add(time.Minute)
	if one.Level() != slog.LevelInfo {
		t.Error("lasts longer than ten minutes")
	}
}

// TestFormat writes lines for people, without addresses and with ids, as it does for machines.
func TestFormat(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"json": `"level":"WARN","msg":"hello <address>","service":"signup","version":"dev","n":1`,
		"text": `level=WARN msg="hello <address>" service=signup version=dev n=1`,
	} {
		var out bytes.Buffer
		tel, err := telemetry.New(t.Context(), telemetry.Options{Service: "signup", Output: &out, Format: format})
		if err != nil {
			t.Fatal(err)
		}
		ctx := telemetry.WithRequestID(t.Context(), "r1")
		tel.Log.WarnContext(ctx, "hello a@example.com", slog.Int("n", 1))
		if err := tel.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "r1") {
			t.Errorf("%s: %s", format, out.String())
		}
	}
	if _, err := telemetry.New(t.Context(), telemetry.Options{Service: "signup", Output: &bytes.Buffer{}, Format: "xml"}); err == nil {
		t.Error("xml")
	}
}
