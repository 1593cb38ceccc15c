package deploy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/internal/mailfile"
	"waitlist.internal/tools/internal/stripesim"
)

const (
	// patience is how long the programs may take to start on a busy machine.
	patience = 90 * time.Second
	// prepared is how long a migration may take when nothing blocks it.
	prepared = 60 * time.Second
)

func services() []string {
	return []string{"account", "signup", "admin-analytics", "billing", "messaging", "notifier"}
}

// programs are those of the services and the one that people see.
func programs() []string { return append(services(), "pages") }

// deployment is the suite with its servers, as an operator sets it up.
type deployment struct {
	t    *testing.T
	bin  string
	base map[string]string            // environment of all services
	env  map[string]map[string]string // environment of each service
	// network holds the second and third byte of the replicas' 127.x.y.z addresses.
	network [2]byte
	names   *nameServer
	mu      *sync.Mutex // of started: several programs may be started at once
	started []*process
}

// name returns the DNS name of a service's replicas.
func name(service string) string { return service + ".test" }

// host returns the address of a replica, counted from 0. As in a cluster, each replica
// has its own address and all use the same ports.
func (d *deployment) host(service string, replica int) string {
	return fmt.Sprintf("127.%d.%d.%d", 1+d.network[0]%254, d.network[1], 1+36*slices.Index(programs(), service)+replica)
}

// build builds the programs and returns their folder, or DEPLOY_PROGRAMS, a folder with built ones.
func build(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("DEPLOY_PROGRAMS"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	args := []string{"build", "-o", dir}
	for _, s := range programs() {
		args = append(args, "waitlist.internal/services/"+s+"/cmd/"+s)
	}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("build the services: %v\n%s", err, out)
	}
	return dir
}

func newDeployment(t *testing.T, d database, bin string) *deployment {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	key := func() string {
		b := make([]byte, 32)
		_, _ = rand.Read(b)
		return base64.StdEncoding.EncodeToString(b)
	}
	jwt, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := jwt.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	payments := httptest.NewServer(newSimulator(t))
	t.Cleanup(payments.Close)
	var prices []string
	for _, tier := range []string{"basic", "advanced", "pro"} {
		for _, interval := range []string{"monthly", "yearly"} {
			prices = append(prices, fmt.Sprintf("%s.%s=price_%s_%s", tier, interval, tier, interval))
		}
	}
	out := &deployment{
		t: t, mu: new(sync.Mutex), bin: bin, env: map[string]map[string]string{}, names: newNameServer(t),
		base: map[string]string{
			"KAFKA_BROKERS": strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX": prefix, "KAFKA_PARTITIONS": "3",
			"REDIS_URL": testenv.Redis(t), "MIGRATE": "false", "RATE_LIMIT_RPS": "1000", "RATE_LIMIT_BURST": "1000",
			"TOKEN_KEYS": "k1:" + key(), "SEAL_KEYS": "k1:" + key(), "SHUTDOWN_DELAY": "2s", "HTTPS_PROXY": "http://127.0.0.1:9",
			"TRUSTED_PROXIES": "127.0.0.1/32",
		},
	}
	keys := rpc.Keys{}
	_, _ = rand.Read(out.network[:])
	for _, s := range programs() {
		seed := make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed)
		id, err := rpc.NewIdentity(s, seed)
		if err != nil {
			t.Fatal(err)
		}
		keys[s] = []ed25519.PublicKey{id.Public()}
		out.env[s] = map[string]string{
			"POSTGRES_URL": d.url("waitlist_" + schema(s)), "SERVICE_KEY": base64.StdEncoding.EncodeToString(seed),
		}
		out.base[strings.ToUpper(schema(s))+"_GRPC"] = fmt.Sprintf("dns://%s/%s:9090", out.names.addr, name(s))
	}
	out.base["SERVICE_KEYS"] = keys.String()
	maps.Copy(out.env["account"], map[string]string{"JWT_KEYS": base64.StdEncoding.EncodeToString(scalar), "ADDRESS_KEY": key()})
	maps.Copy(out.env["messaging"], map[string]string{"MAIL_PROVIDER": "maildir", "MAIL_DIR": t.TempDir()})
	maps.Copy(out.env["billing"], map[string]string{
		"STRIPE_SECRET_KEY": "sk_test_x", "STRIPE_URL": payments.URL,
		"STRIPE_WEBHOOK_SECRETS": "whsec_" + key(), "STRIPE_PRICES": strings.Join(prices, ","),
		"BILLING_URL": "http://site.test/billing",
	})
	return out
}

func newSimulator(t *testing.T) http.Handler {
	t.Helper()
	sim, err := stripesim.New(stripesim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return sim
}

// run runs a program to its end with the given environment only. It returns the exit
// code and the output.
func (d *deployment) run(service string, env []string, args ...string) (code int, said string) {
	ctx, cancel := context.WithTimeout(d.t.Context(), prepared)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, service), args...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(out)
	}
	if err != nil {
		return -1, err.Error()
	}
	return 0, string(out)
}

// environ returns the environment of a service's replica.
func (d *deployment) environ(service string, replica int) []string {
	host := d.host(service, replica)
	out := []string{"HTTP_ADDR=" + host + ":8080", "GRPC_ADDR=" + host + ":9090", "INTERNAL_ADDR=" + host + ":8081"}
	for k, v := range d.base {
		out = append(out, k+"="+v)
	}
	for k, v := range d.env[service] {
		out = append(out, k+"="+v)
	}
	return out
}

// migrate runs all migrations in parallel, with only the variables that they need.
func (d *deployment) migrate() {
	d.t.Helper()
	var migrations sync.WaitGroup
	for _, s := range services() {
		env := []string{"POSTGRES_URL=" + d.env[s]["POSTGRES_URL"], "POSTGRES_DIRECT_URL=" + d.env[s]["POSTGRES_DIRECT_URL"]}
		for _, variable := range []string{"KAFKA_BROKERS", "KAFKA_TOPIC_PREFIX", "KAFKA_PARTITIONS"} {
			env = append(env, variable+"="+d.base[variable])
		}
		migrations.Go(func() {
			if code, said := d.run(s, env, "migrate"); code != 0 || !strings.Contains(said, `"msg":"migration applied"`) {
				d.t.Errorf("%s migrate: exit code %d: %s", s, code, said)
			}
		})
	}
	migrations.Wait()
	if d.t.Failed() {
		d.t.FailNow()
	}
}

// process is a running replica of a service.
type process struct {
	service, host string

	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{} // closed when the process has ended; err holds its error
	err  error
	// killed: the test ended it, so that its log tells nothing.
	killed bool
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (d *deployment) start(service string, replica int) *process {
	d.t.Helper()
	p := &process{
		service: service, host: d.host(service, replica), cmd: exec.Command(filepath.Join(d.bin, service)),
		log: new(logBuffer), done: make(chan struct{}),
	}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = d.environ(service, replica), p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	d.started = append(d.started, p)
	d.mu.Unlock()
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	d.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if d.t.Failed() && !p.killed {
			d.t.Logf("%s at %s said:\n%s", service, p.host, p.log)
		}
	})
	return p
}

// stop sends SIGTERM as a cluster does and requires a clean exit.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
		return
	}
	select {
	case <-p.done:
		if p.err != nil {
			t.Errorf("%s ended with %v", p.service, p.err)
		}
	case <-time.After(patience):
		t.Errorf("%s does not stop", p.service)
	}
}

// ready reports whether the replica's /readyz answers 200. A replica that has ended by
// itself fails the test.
func (p *process) ready(t *testing.T) bool {
	t.Helper()
	select {
	case <-p.done:
		if p.err != nil {
			t.Errorf("%s ended: %v", p.service, p.err)
		}
		return false
	default:
	}
	status, _, err := send(t.Context(), &http.Transport{DisableKeepAlives: true}, http.MethodGet, "http://"+p.host+":8081/readyz", "", "")
	return err == nil && status == http.StatusOK
}

// send sends a request and returns the status and the body; a 204 has no body.
func send(ctx context.Context, by http.RoundTripper, method, url, key, body string) (int, map[string]any, error) {
	status, raw, err := sendRaw(ctx, by, method, url, key, body)
	if err != nil || status == http.StatusNoContent {
		return status, nil, err
	}
	var answer map[string]any
	if err := json.Unmarshal(raw, &answer); err != nil {
		return 0, nil, fmt.Errorf("status %d: %w", status, err)
	}
	return status, answer, nil
}

func sendRaw(ctx context.Context, by http.RoundTripper, method, url, key, body string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("X-Api-Key", key)
	res, err := by.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, raw, err
}

// post sends a request to the first replica, requires the given status and returns the
// answer.
func (d *deployment) post(status int, service, path, key, body string) map[string]any {
	d.t.Helper()
	url := "http://" + d.host(service, 0) + ":8080" + path
	got, answer, err := send(d.t.Context(), &http.Transport{DisableKeepAlives: true}, http.MethodPost, url, key, body)
	if err != nil || got != status {
		d.t.Fatalf("%s: %d %v %v", path, got, answer, err)
	}
	return answer
}

const credentials = `{"email":"owner@example.com","password":"correct horse battery"}`

// owner registers an account and creates a waitlist.
func (d *deployment) owner() (key, list string) {
	d.t.Helper()
	key, _ = d.post(http.StatusCreated, "account", "/v1/auth/register", "", credentials)["api_key"].(string)
	list, _ = d.post(http.StatusCreated, "signup", "/v1/waitlists", key, `{"name":"Launch"}`)["waitlist_id"].(string)
	return key, list
}

// counted returns the number of signups in the analytics of a list.
func (d *deployment) counted(host, key, list string) int {
	d.t.Helper()
	n, err := d.count(host, key, list)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

func (d *deployment) count(host, key, list string) (sum int, err error) {
	url := "http://" + host + ":8080/v1/waitlists/" + list + "/analytics?range=7d"
	status, got, err := send(d.t.Context(), &http.Transport{DisableKeepAlives: true}, http.MethodGet, url, key, "")
	if err != nil || status != http.StatusOK {
		return 0, fmt.Errorf("analytics: %d %v: %w", status, got, err)
	}
	days, _ := got["signups_by_day"].(map[string]any)
	for _, n := range days {
		sum += int(n.(float64))
	}
	return sum, nil
}

// startAll starts one replica of each service.
func (d *deployment) startAll(t *testing.T) (stop func()) {
	t.Helper()
	var running []*process
	for _, s := range services() {
		running = append(running, d.start(s, 0))
	}
	for _, p := range running {
		testenv.Within(d.t, patience, p.service+" is ready", func() bool { return p.ready(t) })
		d.names.set(name(p.service), p.host)
	}
	return func() {
		var stops sync.WaitGroup
		for _, p := range running {
			stops.Go(func() { p.stop(t) })
		}
		stops.Wait()
	}
}

func TestPrograms(t *testing.T) {
	dir := build(t)
	t.Run("deployment", func(t *testing.T) { testDeployment(t, dir) })
	t.Run("pooled sessions", func(t *testing.T) { testPooled(t, dir, "session") })
	t.Run("pooled transactions", func(t *testing.T) { testPooled(t, dir, "transaction") })
	t.Run("failover", func(t *testing.T) { testFailover(t, dir) })
	t.Run("restore", func(t *testing.T) { testRestore(t, dir) })
	t.Run("rolling restart", func(t *testing.T) { testRollingRestart(t, dir) })
	t.Run("kills", func(t *testing.T) { testKills(t, dir) })
	t.Run("outages", func(t *testing.T) { testOutages(t, dir) })
	if text := os.Getenv("SOAK"); text != "" {
		length, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("SOAK: %v", err)
		}
		t.Run("soak", func(t *testing.T) { testSoak(t, dir, length) })
	}
	t.Run("linearizable", func(t *testing.T) { testLinearizable(t, dir) })
}

// testDeployment deploys the suite as the operator of a cluster does (roles, one
// migration for each service, seven programs) and then uses it.
func testDeployment(t *testing.T, programs string) {
	db := newDatabase(t)
	db.applyRoles(t, "postgres")
	d := newDeployment(t, db, programs)

	for _, args := range [][]string{{"migrat"}, {"migrate", "now"}} {
		if code, said := d.run("account", nil, args...); code != 2 || !strings.Contains(said, "usage") {
			t.Errorf("account %s: exit code %d: %s", args, code, said)
		}
	}
	code, said := d.run("account", nil, "migrate")
	if code != 1 || !strings.Contains(said, "POSTGRES_URL") || !strings.Contains(said, "KAFKA_BROKERS") {
		t.Errorf("a migration of nothing: exit code %d: %s", code, said)
	}
	var early sync.WaitGroup
	for _, s := range services() {
		early.Go(func() {
			if code, said := d.run(s, d.environ(s, 0)); code != 1 || !strings.Contains(said, "schema "+schema(s)+" lacks 000") {
				t.Errorf("%s before its migration: exit code %d: %s", s, code, said)
			}
		})
	}
	early.Wait()

	d.migrate()
	db.checkRoles(t)

	defer d.startAll(t)()

	key, _ := d.use(t)
	// The checkout comes last because it ends the trial.
	if got := d.post(http.StatusOK, "billing", "/v1/billing/checkout", key, `{"tier":"pro","interval":"monthly"}`); got["url"] == nil {
		t.Errorf("checkout: %v", got)
	}
}

// use calls every service, with each kind of Postgres access beyond a plain statement.
func (d *deployment) use(t *testing.T) (key, list string) {
	t.Helper()
	key, list = d.owner()
	d.post(http.StatusCreated, "signup", "/v1/public/waitlists/"+list+"/signups", "", `{"email":"ann@example.com"}`)
	bob := `{"signups":[{"email":"bob@example.com"}]}`
	if got := d.post(http.StatusOK, "signup", "/v1/waitlists/"+list+"/import", key, bob); got["imported"] != 1.0 {
		t.Errorf("import: %v", got)
	}
	template := `{"template_type":"blast","subject_template":"Hi","text_body_template":"Hi"}`
	d.post(http.StatusCreated, "messaging", "/v1/templates", key, template)
	session := d.post(http.StatusOK, "account", "/v1/auth/login", "", credentials)
	d.post(http.StatusOK, "account", "/v1/auth/refresh", "", fmt.Sprintf(`{"refresh_token":%q}`, session["refresh_token"]))
	d.post(http.StatusOK, "signup", "/v1/waitlists/"+list+"/blasts", key, `{"subject":"Open","text_body":"Come"}`)
	testenv.Within(d.t, patience, "mails to the owner and of the blast", func() bool {
		mails, err := mailfile.All(os.DirFS(d.env["messaging"]["MAIL_DIR"]))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, m := range mails {
			got[m.To] = true
		}
		return got["owner@example.com"] && got["ann@example.com"] && got["bob@example.com"]
	})
	url := "http://" + d.host("signup", 0) + ":8080/v1/waitlists/" + list + "/export"
	status, file, err := sendRaw(t.Context(), &http.Transport{DisableKeepAlives: true}, http.MethodGet, url, key, "")
	if err != nil || status != http.StatusOK || !strings.Contains(string(file), "\r\nann@example.com,") ||
		!strings.Contains(string(file), "\r\nbob@example.com,") {
		t.Errorf("export: %d %v %s", status, err, file)
	}
	testenv.Within(d.t, patience, "the sums", func() bool { return d.counted(d.host("signup", 0), key, list) == 2 })
	// A statement that is tried again until it succeeds shows only in a log.
	for _, p := range d.started {
		if strings.Contains(p.log.String(), "(SQLSTATE ") {
			t.Errorf("Postgres refused a statement of %s", p.service)
		}
	}
	return key, list
}
