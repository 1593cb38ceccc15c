package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

const (
	answers   = "http_server_responses_total"
	status    = "http_response_status_code"
	durations = "http_server_request_duration_seconds"
)

// pod serves metrics that grow by so many requests between two reads.
func pod(t *testing.T, good, bad uint64) string {
	t.Helper()
	var reads atomic.Uint64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := reads.Add(1)
		fmt.Fprintf(w, "# TYPE %s counter\n", answers)
		for code, count := range map[string]uint64{"200": n * good, "503": n * bad} {
			fmt.Fprintf(w, "%s{%s=%q} %d\n", answers, status, code, count)
		}
		fmt.Fprintf(w, "# TYPE %s histogram\n", durations)
		for route, count := range map[string]uint64{"/a": n * good, "/b": n * bad} {
			for _, le := range []string{"0.005", "0.025", "0.1", "0.25", "0.5", "1", "2.5", "10", "+Inf"} {
				fmt.Fprintf(w, "%s_bucket{http_route=%q,le=%q} %d\n", durations, route, le, count)
			}
			fmt.Fprintf(w, "%s_count{http_route=%q} %d\n", durations, route, count)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		good, bad uint64 // of the candidate between two looks; the stable version answers 90 well
		args      []string
		code      int
		says      string
	}{
		"good":                   {30, 0, nil, 0, "Passing"},
		"half of it fails":       {5, 5, nil, 1, "errors: 50 % (5 of 10) on the candidate, 0 % (0 of 90)"},
		"nothing reaches it":     {0, 0, nil, 3, "Insufficient: 0 requests on the candidate"},
		"an alpha of 2":          {0, 0, []string{"-alpha", "2"}, 2, "between 0 and 1"},
		"an unknown flag":        {0, 0, []string{"-stabel", "x"}, 2, "not defined"},
		"no stable pods":         {0, 0, []string{"-stable", ""}, 2, "-stable"},
		"somebody asks for help": {0, 0, []string{"-h"}, 0, "Usage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			args := []string{"-candidate", pod(t, c.good, c.bad), "-stable", pod(t, 90, 0), "-for", "3500ms"}
			code := run(t.Context(), append(args, c.args...), &out, &out)
			if code != c.code || !strings.Contains(out.String(), c.says) {
				t.Errorf("ended with %d, want %d with %q:\n%s", code, c.code, c.says, &out)
			}
		})
	}
}
