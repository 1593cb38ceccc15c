package service

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.URL.Path == "/late" && asked < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if r.URL.Path == "/nothing" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	if err := checkAnswers(t.Context(), []string{"200=" + server.URL + "/late", "404=" + server.URL + "/nothing"}); err != nil {
		t.Error(err)
	}
	if asked != 4 {
		t.Errorf("asked %d times", asked)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := checkAnswers(
		ctx,
		[]string{"200=" + server.URL, "200=" + server.URL + "/nothing"},
	); err == nil ||
		!strings.Contains(err.Error(), "status 404, want 200") {
		t.Error(err)
	}
	for _, bad := range []string{"200", "=http://x", "http://x"} {
		if checkAnswers(ctx, []string{bad}) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
