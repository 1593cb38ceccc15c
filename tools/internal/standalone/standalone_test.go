package standalone_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/proto/routes"
	"waitlist.internal/tools/internal/standalone"
)

// helperDir makes the test binary, started again as a child, run the suite on
// that directory until it is killed.
const helperDir = "STANDALONE_HELPER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		cfg, err := standalone.Load([]string{"HTTP_ADDR=127.0.0.1:0", "DATA_DIR=" + dir})
		if err == nil {
			cfg.Stdout, cfg.Stderr = os.Stdout, os.Stderr
			err = standalone.Run(context.Background(), cfg)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testenv.Main(m)
}

func TestRunsAsTheBannerAndTheReadmeSay(t *testing.T) {
	t.Parallel()
	var banner bytes.Buffer
	s := start(t, t.TempDir(), &banner)
	parts := []string{s.URL + "/v1\n", "Postgres  own server", "Redis     own server", "Kafka     embedded", "Mail      one file"}
	for _, want := range parts {
		if !strings.Contains(banner.String(), want) {
			t.Errorf("the banner lacks %q:\n%s", want, &banner)
		}
	}

	_, example, _ := strings.Cut(banner.String(), "paste all three lines):\n\n")
	example, _, _ = strings.Cut(example, "\n\n")
	if n := strings.Count(example, "\n"); n != 2 {
		t.Errorf("the example has %d line ends, want three lines", n)
	}
	var joined struct {
		Email    string
		Position int
	}
	if err := json.Unmarshal([]byte(paste(t, example)), &joined); err != nil {
		t.Fatal(err)
	}
	if joined.Email != "ann@example.com" || joined.Position != 1 {
		t.Errorf("the example ends with %+v", joined)
	}

	readme, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := block(t, string(readme), "```sh quickstart\n")
	want := block(t, string(readme), "```text quickstart\n")
	commands = strings.Replace(commands, "http://127.0.0.1:8080", s.URL, 1)
	if got := paste(t, commands); got != want {
		t.Errorf("the quickstart prints\n%s\nwant\n%s", got, want)
	}
}

// paste runs lines as somebody does who pastes them into a shell.
func paste(t *testing.T, lines string) string {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash")
	shell.Stdin = strings.NewReader(lines)
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// block is the content of the fenced block that begins with fence.
func block(t *testing.T, doc, fence string) string {
	t.Helper()
	_, rest, ok := strings.Cut(doc, fence)
	content, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("the README has no block %q", fence)
	}
	return content
}

func TestEveryPrefixHasAServiceAndTheRestIsNotFound(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), nil, "PAGES=false")
	table, err := routes.Table()
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{"/", "/v1", "/v2/auth", "/v1/nothing", "/v1/authors"}
	for _, line := range table {
		paths = append(paths, strings.TrimSuffix(line.Prefix, "/")+"/no/such/path")
	}
	for _, path := range paths {
		status, body := call(t, http.MethodGet, s.URL+path, "")
		var answer struct {
			Code string `json:"error_code"`
		}
		if err := json.Unmarshal(body, &answer); err != nil || status != http.StatusNotFound || answer.Code != "NOT_FOUND" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := call(t, http.MethodGet, s.URL+"/readyz", ""); status != http.StatusOK {
		t.Errorf("/readyz: %d %s", status, body)
	}
}

func TestPagesServeWhatIsNotBelowV1(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), nil)
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/": {200, "<!doctype html>"}, "/nothing": {404, "<!doctype html>"}, "/v1nothing": {404, "<!doctype html>"},
		"/v1": {404, `{"error"`}, "/v1/nothing": {404, `{"error"`},
	} {
		if status, body := call(t, http.MethodGet, s.URL+path, ""); status != want.status || !strings.HasPrefix(string(body), want.body) {
			t.Errorf("%s: %d %.80s", path, status, body)
		}
	}
}

func TestOneRunnerAtATimeUsesADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, dir, nil)
	_, err := standalone.Start(t.Context(), config(t, dir))
	if err == nil || !strings.Contains(err.Error(), "another standalone") {
		t.Errorf("the second runner says %v", err)
	}
}

func TestAnAddressInUseIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	_, err = standalone.Start(t.Context(), config(t, dir, "HTTP_ADDR="+l.Addr().String()))
	if err == nil || !strings.Contains(err.Error(), "HTTP_ADDR") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil {
		t.Error("it started Postgres first")
	}
}

func TestAKilledRunnerLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for round := range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		url := bannerURL(t, out)
		for before := range round {
			if status, body := call(t, http.MethodPost, url+"/auth/login", credentials(before)); status != http.StatusOK {
				t.Errorf("round %d: login of round %d: %d %s", round, before, status, body)
			}
		}
		if status, body := call(t, http.MethodPost, url+"/auth/register", credentials(round)); status != http.StatusCreated {
			t.Fatalf("round %d: register: %d %s", round, status, body)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	start(t, dir, nil) // its end leaves nothing running
}

// A server that dies, as by the kernel's want of memory, is started again.
func TestServersThatDieComeBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir, nil)
	register := func(n int) int {
		status, _ := call(t, http.MethodPost, s.URL+"/v1/auth/register", credentials(n))
		return status
	}
	if status := register(0); status != http.StatusCreated {
		t.Fatalf("register: %d", status)
	}
	for _, file := range []string{"postgres/data/postmaster.pid", "redis/redis.pid"} {
		raw, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Sscan(string(raw), &pid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	ready := func() bool {
		status, _ := call(t, http.MethodGet, s.URL+"/readyz", "")
		return status == http.StatusOK
	}
	testenv.Eventually(t, "not ready", func() bool { return !ready() })
	testenv.Eventually(t, "ready again", ready)
	if status, body := call(t, http.MethodPost, s.URL+"/v1/auth/login", credentials(0)); status != http.StatusOK {
		t.Errorf("login: %d %s", status, body)
	}
	if status := register(1); status != http.StatusCreated {
		t.Errorf("register: %d", status)
	}
}

func credentials(round int) string {
	return fmt.Sprintf(`{"email":"owner%d@example.com","password":"correct horse battery"}`, round)
}

// bannerURL reads the banner up to the address of the interface.
func bannerURL(t *testing.T, out io.Reader) string {
	t.Helper()
	var seen []byte
	buf := make([]byte, 4096)
	for {
		n, err := out.Read(buf)
		seen = append(seen, buf[:n]...)
		if _, rest, ok := strings.Cut(string(seen), "ready at "); ok {
			if url, _, ok := strings.Cut(rest, "\n"); ok {
				return url
			}
		}
		if err != nil {
			t.Fatalf("the banner ends early (%v): %s", err, seen)
		}
	}
}

func TestUsesTheServersThatAreNamed(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Kafka(t)
	redis := testenv.RedisServer(t, devservers.RedisOptions{Volatile: true})
	dir := t.TempDir()
	var banner bytes.Buffer
	s := start(t, dir, &banner,
		"POSTGRES_URL="+testenv.Postgres(t), "REDIS_URL="+redis.URL,
		"KAFKA_BROKERS="+strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX="+prefix)
	for _, want := range []string{
		"external server from POSTGRES_URL", "external server from REDIS_URL", "external brokers from KAFKA_BROKERS",
	} {
		if !strings.Contains(banner.String(), want) {
			t.Errorf("the banner lacks %q", want)
		}
	}
	for _, none := range []string{"postgres", "redis", "kafka"} {
		if _, err := os.Stat(filepath.Join(dir, none)); err == nil {
			t.Errorf("there is a folder %s", none)
		}
	}

	redis.Kill()
	status, body := call(t, http.MethodGet, s.URL+"/readyz", "")
	if status != http.StatusServiceUnavailable || !strings.Contains(string(body), "Redis") {
		t.Errorf("without Redis /readyz says %d %s", status, body)
	}
	if status, body := call(t, http.MethodPost, s.URL+"/v1/auth/register", credentials(0)); status != http.StatusCreated {
		t.Errorf("without Redis: register: %d %s", status, body)
	}
}

func TestKeysAreTheOwnersAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir, nil)
	before := files(t, filepath.Join(dir, "keys"))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	start(t, dir, nil)
	after := files(t, filepath.Join(dir, "keys"))
	if len(before) < 10 {
		t.Errorf("there are only %d keys", len(before))
	}
	for name, content := range before {
		if after[name] != content {
			t.Errorf("key %s changed", name)
		}
	}
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", e.Name(), info.Mode().Perm())
		}
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		content[e.Name()] = string(raw)
	}
	return content
}

func config(t *testing.T, dir string, environ ...string) standalone.Config {
	t.Helper()
	cfg, err := standalone.Load(append([]string{"HTTP_ADDR=127.0.0.1:0", "DATA_DIR=" + dir}, environ...))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Stderr = t.Output()
	return cfg
}

func start(t *testing.T, dir string, stdout io.Writer, environ ...string) *standalone.Standalone {
	t.Helper()
	cfg := config(t, dir, environ...)
	cfg.Stdout = stdout
	s, err := standalone.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func call(t *testing.T, method, url, body string) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, answer
}
