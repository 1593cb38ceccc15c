package http

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"waitlist.internal/libs/httpapi"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/pages/api"
	"waitlist.internal/services/pages/forms"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTexts compares the catalogues with each other and with the keys that the pages use.
func TestTexts(t *testing.T) {
	all, err := loadLanguages()
	if err != nil {
		t.Fatal(err)
	}
	verbs := regexp.MustCompile(`%[a-z]`)
	first := all.list[0]
	for _, c := range all.list {
		for key, text := range c.texts {
			if strings.HasPrefix(key, apiPrefix) {
				continue
			}
			other, ok := first.texts[key]
			if !ok {
				t.Errorf("%s: %s has no %q", key, first.lang, key)
			}
			if !slices.Equal(verbs.FindAllString(text, -1), verbs.FindAllString(other, -1)) {
				t.Errorf("%s: %q and %q say other values", key, text, other)
			}
		}
		for key := range first.texts {
			if _, ok := c.texts[key]; !ok {
				t.Errorf("%s has no %q", c.lang, key)
			}
		}
	}
	used := regexp.MustCompile(`(?:T|text)[ (]"([a-z_.]+)"|(?:Key|Data|say|message)[^"\n]*"([a-z]+\.[a-z.]+)"(?:, "([a-z]+\.[a-z.]+)")?`)
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	templates, err := filepath.Glob("templates/*.html")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range append(sources, templates...) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range used.FindAllStringSubmatch(string(source), -1) {
			for _, key := range m[1:] {
				if key == "" || strings.HasSuffix(key, ".js") || strings.HasSuffix(key, ".css") || strings.HasSuffix(key, ".svg") {
					continue
				}
				found++
				if _, ok := first.texts[key]; !ok {
					t.Errorf("%s: there is no text %q", path, key)
				}
			}
		}
	}
	if found < 80 {
		t.Errorf("found only %d keys", found)
	}
}

// backend stands for signup, with one form.
type backend struct {
	form string
	err  error
}

func (s backend) GetForm(
	context.Context, *signupv1.GetFormRequest, ...grpc.CallOption,
) (*signupv1.GetFormResponse, error) {
	return &signupv1.GetFormResponse{Version: "1", ConfigJson: []byte(s.form)}, s.err
}

func (backend) CountViews(
	context.Context, *signupv1.CountViewsRequest, ...grpc.CallOption,
) (*signupv1.CountViewsResponse, error) {
	return nil, errors.New("not asked here")
}

const list = "0193d4a2-5c1e-7a41-8000-000000000001"

// pages returns the pages in front of an API and of signup.
func pages(t *testing.T, base string, s backend) http.Handler {
	t.Helper()
	engine, err := httpapi.NewEngine(httpapi.Config{TrustedProxies: []string{"192.0.2.1"}})
	if err != nil {
		t.Fatal(err)
	}
	client := api.New(base + "/v1")
	t.Cleanup(client.Close)
	if err := Routes(engine, Backends{
		API: client, Forms: forms.New(s, time.Now), Shown: func(string) {}, Public: "https://example.com", Log: slog.New(slog.DiscardHandler),
	}); err != nil {
		t.Fatal(err)
	}
	return engine
}

// ask sends a request through a trusted proxy; a form makes it a POST.
func ask(t *testing.T, h http.Handler, path string, form url.Values) *httptest.ResponseRecorder {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(form.Encode()))
	r.Header.Set("User-Agent", "Browser/1")
	r.Header.Set("X-Forwarded-For", "203.0.113.9")
	r.Header.Set("Accept-Language", "de-AT,de;q=0.8")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestFailures has no API, and something else in its place.
func TestFailures(t *testing.T) {
	nobody := httptest.NewServer(nil)
	nobody.Close()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>no upstream", http.StatusServiceUnavailable)
	}))
	t.Cleanup(gateway.Close)
	for name, base := range map[string]string{"nobody": nobody.URL, "a gateway": gateway.URL} {
		t.Run(name, func(t *testing.T) {
			h := pages(t, base, backend{err: errors.New("away")})
			for path, form := range map[string]url.Values{
				"/w/" + list: nil, "/w/id/leaderboard": nil, "/verify": {"token": {"x"}}, "/login": {"email": {"a@example.com"}},
			} {
				w := ask(t, h, path, form)
				if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "Bei uns ist etwas schiefgegangen") ||
					!strings.Contains(w.Body.String(), "Anfrage "+w.Header().Get("X-Request-Id")) {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
		})
	}
}

// TestForwards checks what the API learns of a visitor, and what the visitor of the API.
func TestForwards(t *testing.T) {
	var got *http.Request
	var sent map[string]any
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		_ = json.NewDecoder(r.Body).Decode(&sent)
		w.Header().Set("Retry-After", "17")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error":"Too many requests.","error_code":"RATE_LIMITED","request_id":"r1"}`))
	}))
	t.Cleanup(upstream.Close)
	w := ask(t, pages(t, upstream.URL, backend{form: `{"waitlist_id":"` + list + `","name":"Kites","status":"open"}`}), "/w/"+list, url.Values{
		"email": {"a@example.com"}, "ref": {"abc"}, "elapsed_ms": {"1e9"}, "unknown": {"x"}, "utm_source": {""},
	})
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "17" || w.Header().Get("Access-Control-Allow-Origin") != "" ||
		!strings.Contains(w.Body.String(), "in 17 Sekunden") || !strings.Contains(w.Body.String(), `data-seconds="17"`) ||
		!strings.Contains(w.Body.String(), `value="a@example.com"`) {
		t.Errorf("%d %v\n%s", w.Code, w.Header(), w.Body)
	}
	if got.UserAgent() != "Browser/1" || got.Header.Get("X-Forwarded-For") != "203.0.113.9" ||
		got.Header.Get("X-Request-Id") != w.Header().Get("X-Request-Id") {
		t.Errorf("sent %v", got.Header)
	}
	if want := map[string]any{"email": "a@example.com", "referred_by_token": "abc"}; fmt.Sprint(sent) != fmt.Sprint(want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
}
