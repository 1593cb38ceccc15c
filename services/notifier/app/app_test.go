package app_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"
	"time"

	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/notifier/app"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestStartsReportsReadyAndStops(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := service.Load[app.Config](nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.InternalListener, cfg.LogOutput = listener, t.Output()
	a, err := app.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	deadline := time.After(10 * time.Second)
	for !ready(t, "http://"+listener.Addr().String()+"/readyz") {
		select {
		case <-deadline:
			t.Fatal("not ready")
		default:
		}
	}
	if err := a.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if a.Ready(t.Context()) == nil {
		t.Error("ready after its end")
	}
}

func ready(t *testing.T, url string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body struct{ Ready bool }
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return body.Ready && res.StatusCode == http.StatusOK
}
