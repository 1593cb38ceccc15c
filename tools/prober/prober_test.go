package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/internal/webhooksink"
	waitlist "waitlist.internal/tools/sdk/go"
	"waitlist.internal/tools/test/e2e"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a running suite whose webhooks go to hooks, and an account for the prober.
type world struct {
	suite *e2e.Server
	hooks *http.Handler
	cfg   Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{hooks: new(http.Handler)}
	sink, err := webhooksink.New(t.TempDir(), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { (*w.hooks).ServeHTTP(rw, r) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	if w.suite, err = e2e.Start(t.Context(), e2e.Options{Binary: e2e.Build(t), Dir: t.TempDir(), Env: sink.Env}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.suite.Stop(); err != nil {
			t.Error(err)
		}
	})
	body := strings.NewReader(`{"email": "sre@example.com", "password": "correct horse battery"}`)
	res, err := http.Post(w.suite.URL+"/v1/auth/register", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var account struct {
		APIKey string `json:"api_key"`
	}
	if err := json.NewDecoder(res.Body).Decode(&account); err != nil {
		t.Fatal(err)
	}
	w.cfg, err = service.Load[Config]([]string{
		"PROBER_API=" + w.suite.URL + "/v1", "PROBER_API_KEY=" + account.APIKey, "PROBER_WEBHOOK_URL=" + webhooksink.URL + "/webhook",
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// signups returns how many people are on the prober's waitlist.
func (w *world) signups(t *testing.T, p *prober) int {
	t.Helper()
	n := 0
	for _, err := range w.client(t).Signups(t.Context(), p.list) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// client is the account's, past every proxy.
func (w *world) client(t *testing.T) *waitlist.Client {
	t.Helper()
	c, err := waitlist.New(w.suite.URL+"/v1", waitlist.APIKey(w.cfg.APIKey))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func metrics(t *testing.T, addr string) string {
	t.Helper()
	res, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestProber runs the program beside a suite: its rounds succeed; what breaks in the suite fails the right step, in the
// metrics as in the log; and nobody whom it invented stays.
func TestProber(t *testing.T) {
	w := newWorld(t)

	t.Run("a round succeeds", func(t *testing.T) {
		cfg := w.cfg
		var err error
		if cfg.HTTPListener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if cfg.InternalListener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		cfg.LogOutput = io.Discard
		internal := cfg.InternalListener.Addr().String()
		to, err := url.Parse("http://" + cfg.HTTPListener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		*w.hooks = httputil.NewSingleHostReverseProxy(to)
		app, err := newApp(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- app.Run(ctx) }()
		testenv.Eventually(t, "a round", func() bool {
			return strings.Contains(metrics(t, internal), `prober_rounds_total{result="ok",service="prober"} 1`)
		})
		got := metrics(t, internal)
		for _, step := range steps {
			for _, want := range []string{
				`prober_step_failures_total{service="prober",step="` + step + `"} 0`,
				`prober_step_duration_seconds_count{service="prober",step="` + step + `"} 1`,
			} {
				if !strings.Contains(got, want+"\n") {
					t.Errorf("no %s", want)
				}
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	// The suite behind a proxy that breaks some of it.
	to, err := url.Parse(w.suite.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, step string
		// refused requests have this method and an end of their path; they do not reach the suite.
		refused [2]string
		// broken changes an answer.
		broken func(res *http.Response)
		unhook bool
	}{
		{name: "no waitlists", step: stepWaitlist, refused: [2]string{"GET", "/v1/waitlists"}},
		{name: "no configuration", step: stepConfig, refused: [2]string{"GET", "/config"}},
		{name: "no signup", step: stepSignup, refused: [2]string{"POST", "/signups"}},
		{name: "a referral does not count", step: stepStatus, broken: func(res *http.Response) {
			replace(res, `"referral_count":1`, `"referral_count":0`)
		}},
		{name: "the friend stands first", step: stepStatus, broken: func(res *http.Response) {
			replace(res, `"position":1,`, `"position":3,`)
		}},
		{name: "no webhook", step: stepWebhook, unhook: true},
		{name: "no deletion", step: stepDelete, refused: [2]string{"DELETE", ""}},
		{name: "somebody deleted is there", step: stepDelete, broken: func(res *http.Response) {
			if res.StatusCode == http.StatusNotFound {
				res.StatusCode = http.StatusOK
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			proxy := httputil.NewSingleHostReverseProxy(to)
			proxy.ModifyResponse = func(res *http.Response) error {
				if tt.broken != nil {
					tt.broken(res)
				}
				return nil
			}
			front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.Method == tt.refused[0] && strings.HasSuffix(r.URL.Path, tt.refused[1]) {
					http.Error(rw, "broken", http.StatusInternalServerError)
					return
				}
				proxy.ServeHTTP(rw, r)
			}))
			defer front.Close()
			cfg := w.cfg
			cfg.API, cfg.Every = front.URL+"/v1", time.Minute
			p, err := newProber(cfg, front.Client(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			*w.hooks = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				raw, _ := io.ReadAll(r.Body)
				if !tt.unhook {
					p.hooked(raw, time.Now())
				}
			})
			err = p.round(t.Context())
			var failed *stepError
			if !errors.As(err, &failed) || failed.step != tt.step {
				t.Fatalf("the round ended with %v, not at step %s", err, tt.step)
			}
			if tt.step == stepWaitlist {
				return
			}
			p.owner, p.leftover = w.client(t), 0
			if left := w.signups(t, p); tt.name == "no deletion" {
				// The next round deletes them.
				if left != 2 {
					t.Errorf("%d people are left", left)
				}
				if err := p.prepare(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if left := w.signups(t, p); left != 0 {
				t.Errorf("%d people are left", left)
			}
		})
	}
}

// replace changes the body of an answer.
func replace(res *http.Response, old, with string) {
	raw, _ := io.ReadAll(res.Body)
	res.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(raw, []byte(old), []byte(with))))
}

// TestProblems: the configuration's problems come together.
func TestProblems(t *testing.T) {
	cfg, err := service.Load[Config]([]string{"PROBER_WEBHOOK_URL=http://example.com", "PROBER_EMAIL=nobody", "PROBER_EVERY=-1s"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = newApp(t.Context(), cfg)
	if err == nil {
		t.Fatal("it starts")
	}
	for _, want := range []string{"PROBER_API ", "PROBER_API_KEY", "PROBER_WEBHOOK_URL", "PROBER_EMAIL", "PROBER_EVERY"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
