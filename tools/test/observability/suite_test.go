package observability_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// Bounds of what a scrape may cost after each operation has been used: of all services
// together, and of one.
const (
	maxSeries    = 3000
	maxOfService = 800
	maxBytes     = 600 << 10
)

// unseen are metrics that no panel shows, with the reason.
var unseen = map[string]string{ // a constant
	"go_.*":                       "the rest of the runtime, for questions that a profile raises",
	"process_.*":                  "the rest of the process",
	"target_info":                 "OpenTelemetry's own",
	"rpc_server_call_duration_.*": "the panel shows its count; the time is the caller's",
}

// elsewhere are metrics that alerts ask for and that this suite cannot have, with the reason.
var elsewhere = map[string]string{ // a constant
	"waitlist_certificate_.*": "its servers speak without TLS; a test of libs/redisconn has one that does",
	"canary_.*":               operator,
	"prober_.*":               "the prober is a program of its own; its tests have its metrics",
}

// operator is why there are no metrics of canaries.
const operator = "the operator is a program of its own; its tests have its metrics"

// suite is a running standalone program.
type suite struct {
	testing.TB
	binary, api, metrics, dir string
	env                       []string
	cmd                       *exec.Cmd
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

var (
	buildOnce  sync.Once
	programDir string
	errBuild   error
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(programDir)
	os.Exit(code)
}

// programs returns the folder of the programs that tests run, which the first test builds.
func programs(t testing.TB) string {
	t.Helper()
	buildOnce.Do(func() {
		if programDir, errBuild = os.MkdirTemp("", "observability"); errBuild != nil { //nolint:usetesting // outlives the first test
			return
		}
		build := exec.Command("go", "build", "-o", programDir, "./cmd/standalone", "./cmd/devkafka", "./prober")
		build.Dir, build.Env = filepath.Join(root, "tools"), append(os.Environ(), "GOWORK=")
		if out, err := build.CombinedOutput(); err != nil {
			errBuild = fmt.Errorf("build the programs: %w\n%s", err, out)
		}
	})
	if errBuild != nil {
		t.Fatal(errBuild)
	}
	return programDir
}

// start runs the standalone program, which E2E_STANDALONE may name, until the test ends.
func start(t testing.TB, env ...string) *suite {
	t.Helper()
	dir, addr, internal := t.TempDir(), freePort(t), freePort(t)
	binary := os.Getenv("E2E_STANDALONE")
	if binary == "" {
		binary = filepath.Join(programs(t), "standalone")
	}
	s := &suite{TB: t, binary: binary, api: "http://" + addr + "/v1", metrics: "http://" + internal + "/metrics", dir: dir}
	s.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "HTTP_ADDR=" + addr, "INTERNAL_ADDR=" + internal,
		"DATA_DIR=" + filepath.Join(dir, "data"), "MAIL_DIR=" + filepath.Join(dir, "mail"), "LOG_FILE=-", "HTTPS_PROXY=http://127.0.0.1:9",
	}, env...)
	s.boot()
	t.Cleanup(s.halt)
	return s
}

// boot starts the program and waits until it is ready.
func (s *suite) boot() {
	s.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(s.binary)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = s.dir, log, log, s.env
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.await("a ready suite", func() bool {
		res, err := http.Get(strings.TrimSuffix(s.api, "/v1") + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// halt ends the program and waits for it.
func (s *suite) halt() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	if err := s.cmd.Wait(); err != nil {
		s.Errorf("standalone: %v", err)
	}
}

// await waits for a condition.
func (s *suite) await(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); {
		if time.Now().After(end) {
			s.Fatalf("waited for %s", what)
		}
		select {
		case <-s.Context().Done():
			s.Fatal(s.Context().Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

type object = map[string]any

// do sends a request as the account with an API key and returns the answer.
func (s *suite) do(method, path, key string, body any) (int, object) {
	s.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		s.Fatal(err)
	}
	if body == nil {
		raw = nil
	}
	req, err := http.NewRequestWithContext(s.Context(), method, s.api+path, bytes.NewReader(raw))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	out := object{}
	if raw, err = io.ReadAll(res.Body); err != nil {
		s.Fatal(err)
	}
	_ = json.Unmarshal(raw, &out) // an export is no object
	return res.StatusCode, out
}

// post sends a POST that must succeed.
func (s *suite) post(path, key string, body any) object {
	s.Helper()
	status, out := s.do(http.MethodPost, path, key, body)
	if status >= 300 {
		s.Fatalf("POST %s: %d %v", path, status, out)
	}
	return out
}

// world is an account with a list.
type world struct{ key, list string }

func (s *suite) world() world {
	s.Helper()
	key := s.post("/auth/register", "", object{"email": "owner@example.com", "password": "correct horse battery"})["api_key"].(string)
	list := s.post("/waitlists", key, object{"name": "Launch", "settings": object{"webhook_url": "https://example.com/hook"}})
	return world{key, list["waitlist_id"].(string)}
}

func (s *suite) signup(w world, name, referrer string) string {
	s.Helper()
	body := object{"email": name + "@example.com"}
	if referrer != "" {
		body["referred_by_token"] = referrer
	}
	token, _ := s.post("/public/waitlists/"+w.list+"/signups", "", body)["referral_token"].(string)
	return token
}

// page shows somebody the form of a list.
func (s *suite) page(w world) {
	s.Helper()
	res, err := http.Get(strings.TrimSuffix(s.api, "/v1") + "/w/" + w.list)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		s.Fatalf("a page: %s, %v", res.Status, err)
	}
}

// operations are all of the contract, with the path of a request in place of the template.
func operations(t testing.TB, list string) [][2]string {
	t.Helper()
	var out [][2]string
	path := ""
	for line := range strings.SplitSeq(read(t, "proto/openapi/openapi.yaml"), "\n") {
		if m := regexp.MustCompile(`^  (/\S+):`).FindStringSubmatch(line); m != nil {
			path = strings.NewReplacer("{waitlist_id}", list, "{email}", "ann@example.com", "{domain}", "example.com").Replace(m[1])
			path = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "0197f0c4-6d0e-7cc1-a2a3-aaaaaaaaaaaa")
		}
		if m := regexp.MustCompile(`^    (get|post|put|patch|delete):`).FindStringSubmatch(line); m != nil {
			out = append(out, [2]string{strings.ToUpper(m[1]), path})
		}
	}
	return out
}

// TestSuite uses each operation and asks every panel. Whatever is exported stands on a panel
// or on the list of those that do not, and costs no more than it may.
func TestSuite(t *testing.T) {
	t.Parallel()
	s, e := start(t), newEngine(t)
	w := s.world()
	// Short lists have no index.
	rows := make([]object, 1100)
	for i := range rows {
		rows[i] = object{"email": fmt.Sprintf("row%d@example.com", i)}
	}
	s.post("/waitlists/"+w.list+"/import", w.key, object{"signups": rows})
	// The rate of a series needs two scrapes, and what happens between them.
	var attempts, mails, asked float64
	some := func(round string) {
		for i := range 20 {
			referrer := s.signup(w, fmt.Sprint(round, i), "")
			s.signup(w, fmt.Sprint(round, "friend", i), referrer)
			s.page(w)
		}
		other := s.post("/auth/register", "", object{"email": round + "@example.com", "password": "correct horse battery"})
		s.do("POST", "/billing/checkout", other["api_key"].(string), object{"tier": "pro"})
		s.post("/auth/forgot-password", "", object{"email": round + "@example.com"})
		s.await("a mail, a delivery and a page that is not remembered", func() bool {
			s.page(w)
			now, _ := scrape(t, s.metrics)
			a, m := total(now, "notifier_attempt_duration_seconds_count"), total(now, "messaging_mail_delay_seconds_count")
			p := total(slices.DeleteFunc(now, func(s sample) bool { return !strings.HasSuffix(s.labels.Get("rpc_method"), "/GetForm") }),
				"rpc_client_call_duration_seconds_count")
			if a == attempts || m == mails || p == asked {
				return false
			}
			attempts, mails, asked = a, m, p
			return true
		})
	}
	some("one")
	before, _ := scrape(t, s.metrics)
	e.step(time.Minute, before)
	some("two")
	all := operations(t, w.list)
	for _, op := range all {
		if op[0] == "DELETE" || regexp.MustCompile(`delete|logout|regenerate`).MatchString(op[1]) {
			continue // they would end the account; below they come without its key
		}
		status, body := s.do(op[0], op[1], w.key, object{})
		if status >= 500 && status != http.StatusBadGateway {
			t.Errorf("%s %s: %d %v", op[0], op[1], status, body)
		}
	}
	for _, key := range []string{"", "wrong"} {
		for _, op := range all {
			s.do(op[0], op[1], key, object{})
		}
	}
	var now []sample
	s.await("checks of all dependencies", func() bool {
		now, _ = scrape(t, s.metrics)
		return total(now, "waitlist_dependency_up") >= 6+6+1
	})
	now, size := scrape(t, s.metrics)
	e.step(time.Minute, now)
	for range 3 {
		more, _ := scrape(t, s.metrics)
		e.step(time.Minute, more)
	}

	used, exported := map[string]bool{}, map[string]bool{}
	for _, m := range now {
		exported[m.name()] = true
	}
	for _, p := range panels(t) {
		numbers := 0
		for _, q := range p.Targets {
			for _, name := range selected(t, q.Expr) {
				used[name] = true
			}
			for _, v := range e.query(q.Expr) {
				if !math.IsNaN(v.F) {
					numbers++
				}
			}
		}
		if numbers == 0 && !matches(elsewhere, selected(t, p.Targets[0].Expr)[0]) {
			t.Errorf("%s, %s: no number from %s", p.dashboard, p.Title, p.Targets[0].Expr)
		}
	}
	for _, g := range e.Groups {
		for _, r := range g.Rules() {
			for _, name := range selected(t, r.Query().String()) {
				if !strings.HasPrefix(name, "slo:") && !exported[name] && !matches(elsewhere, name) {
					t.Errorf("%s asks for %s, which nobody exports", r.Name(), name)
				}
			}
		}
	}
	perService, family := map[string]int{}, map[string]int{}
	for _, m := range now {
		name := m.name()
		perService[m.labels.Get("service")]++
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		family[base]++
		seen := used[name] || used[base] || used[base+"_bucket"] || used[base+"_count"] || used[base+"_sum"]
		if !seen && !matches(unseen, name) {
			t.Errorf("%s is on no panel", name)
			used[name] = true
		}
	}
	if len(now) > maxSeries || size > maxBytes {
		t.Errorf("%d series in %d bytes, at most %d in %d", len(now), size, maxSeries, maxBytes)
	}
	for service, n := range perService {
		if n > maxOfService {
			t.Errorf("%d series of %s, at most %d", n, service, maxOfService)
		}
	}
	most := slices.SortedFunc(maps.Keys(family), func(a, b string) int { return cmp.Compare(family[b], family[a]) })
	for _, name := range most[:8] {
		t.Logf("%5d %s", family[name], name)
	}
	t.Logf("%d series in %d KiB: %v", len(now), size>>10, perService)
	if len(e.fired) > 0 {
		t.Errorf("fired without a fault: %v", e.firing())
	}
}

// matches reports whether one of the patterns is that of name.
func matches(patterns map[string]string, name string) bool {
	for pattern := range patterns {
		if regexp.MustCompile("^" + pattern + "$").MatchString(name) {
			return true
		}
	}
	return false
}

func total(samples []sample, name string) (sum float64) {
	for _, s := range samples {
		if s.name() == name {
			sum += s.value
		}
	}
	return sum
}

// selected returns the names of the metrics that an expression reads.
func selected(t testing.TB, expr string) (names []string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatal(err)
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			names = append(names, v.Name)
		}
		return nil
	})
	return names
}
