// Package clients tests what is offered to those who call the interface: the TypeScript
// client and the MCP server, as programs of their own against a running suite. Every
// exchange is held against the contract.
//
// The Go client is tested in tools/test/e2e, which drives it. This package needs npm.
package clients_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"waitlist.internal/libs/testenv"
	waitlist "waitlist.internal/tools/sdk/go"
	"waitlist.internal/tools/test/e2e"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// suite is a running suite behind a judge.
type suite struct {
	// url is the judge's, with the version; key is that of an owner on trial.
	url, key string
	owner    *waitlist.Client
	server   *e2e.Server

	mu   sync.Mutex
	seen map[string]int
}

// start starts a suite. If lossy, the answer to the first request of each operation is
// lost on the way.
func start(t *testing.T, lossy bool) *suite {
	t.Helper()
	contract, err := e2e.LoadContract()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{seen: map[string]int{}, server: e2e.Run(t, e2e.Options{Binary: e2e.Build(t), Env: map[string]string{
		"POSTGRES_URL": testenv.Postgres(t), "RATE_LIMIT_RPS": "100000", "RATE_LIMIT_BURST": "100000",
	}})}
	judge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read a request: %v", err)
		}
		if strings.Contains(r.URL.RawQuery, "wl_live_") {
			t.Errorf("%s %s has the key in its query", r.Method, r.URL.Path)
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, s.server.URL+r.URL.RequestURI(), bytes.NewReader(sent))
		if err != nil {
			t.Errorf("forward a request: %v", err)
			return
		}
		req.Header = r.Header.Clone()
		req.Header.Del("Accept-Encoding")
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Errorf("forward a request: %v", err)
			return
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil {
			t.Errorf("read an answer: %v", err)
		}
		operation, _, err := contract.Check(r.Context(), e2e.Exchange{
			Request: req, RequestBody: sent, Status: res.StatusCode, Header: res.Header, ResponseBody: got,
			InvalidRequest: res.StatusCode == http.StatusBadRequest,
		})
		if err != nil {
			t.Errorf("%s %s → %d %s: %v", r.Method, r.URL.Path, res.StatusCode, got, err)
		}
		s.mu.Lock()
		s.seen[operation]++
		first := s.seen[operation] == 1
		s.mu.Unlock()
		if lossy && first {
			panic(http.ErrAbortHandler) // cuts the connection
		}
		maps.Copy(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		_, _ = w.Write(got)
	}))
	t.Cleanup(judge.Close)
	s.url = judge.URL + "/v1"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+"/v1/auth/register",
		strings.NewReader(`{"email":"owner@example.com","password":"correct horse battery"}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var account struct {
		Key string `json:"api_key"`
	}
	if err := json.NewDecoder(res.Body).Decode(&account); err != nil || account.Key == "" {
		t.Fatalf("register: %d %v", res.StatusCode, err)
	}
	s.key = account.Key
	if s.owner, err = waitlist.New(s.server.URL+"/v1", waitlist.APIKey(s.key)); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTypeScript compares the types with the contract, checks the client, and drives it.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	s := start(t, true)
	dir := filepath.Join("..", "..", "sdk", "ts")
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "WAITLIST_URL="+s.url, "WAITLIST_KEY="+s.key)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	run("npm", "ci", "--silent")
	run("npm", "run", "--silent", "generate", "--", "--check")
	run("npm", "run", "--silent", "build")
	run("node", "--test", "dist/client.test.js")
	for _, operation := range []string{"createWaitlist", "createSignup", "importSignups", "listSignups", "deleteSignup", "listAuditEntries"} {
		if s.seen[operation] < 2 {
			t.Errorf("%s was asked %d times, once in vain: %v", operation, s.seen[operation], s.seen)
		}
	}
	// A registration whose answer was lost is not sent again.
	if s.seen["register"] != 1 {
		t.Errorf("register was asked %d times", s.seen["register"])
	}
}
