package deploytest

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
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/stripesim"
)

const (
	// patience bounds the start of the programs on a busy machine.
	patience = 90 * time.Second
	// prepared bounds a migration that has nothing to wait for.
	prepared = 60 * time.Second
)

func services() []string {
	return []string{"account", "signup", "admin-analytics", "billing", "messaging", "notifier"}
}

// deployment is the suite as an operator sets it up.
type deployment struct {
	t    *testing.T
	bin  string
	base map[string]string            // environment of all
	env  map[string]map[string]string // and of each
	addr map[string]string            // host of each
}

func newDeployment(t *testing.T, d database) *deployment {
	t.Helper()
	dir := t.TempDir()
	args := []string{"build", "-o", dir}
	for _, s := range services() {
		args = append(args, "waitlist.internal/services/"+s+"/cmd/"+s)
	}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("build the services: %v\n%s", err, out)
	}
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
		t: t, bin: dir, env: map[string]map[string]string{}, addr: map[string]string{},
		base: map[string]string{
			"KAFKA_BROKERS": strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX": prefix, "KAFKA_PARTITIONS": "3",
			"REDIS_URL": testenv.Redis(t), "MIGRATE": "false", "RATE_LIMIT_RPS": "1000", "RATE_LIMIT_BURST": "1000",
			"TOKEN_KEYS": "k1:" + key(), "SEAL_KEYS": "k1:" + key(), "SHUTDOWN_DELAY": "10ms", "HTTPS_PROXY": "http://127.0.0.1:9",
		},
	}
	keys := rpc.Keys{}
	// As in a cluster each has an address of its own, and all the same ports.
	var net24 [2]byte
	_, _ = rand.Read(net24[:])
	for i, s := range services() {
		seed := make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed)
		id, err := rpc.NewIdentity(s, seed)
		if err != nil {
			t.Fatal(err)
		}
		keys[s] = id.Public()
		host := fmt.Sprintf("127.%d.%d.%d", 1+net24[0]%254, net24[1], 10+i)
		out.addr[s] = host
		out.env[s] = map[string]string{
			"POSTGRES_URL": d.url("waitlist_" + schema(s)), "SERVICE_KEY": base64.StdEncoding.EncodeToString(seed),
			"HTTP_ADDR": host + ":8080", "GRPC_ADDR": host + ":9090", "INTERNAL_ADDR": host + ":8081",
		}
		out.base[strings.ToUpper(schema(s))+"_GRPC"] = "dns:///" + host + ":9090"
	}
	out.base["SERVICE_KEYS"] = keys.String()
	maps.Copy(out.env["account"], map[string]string{"JWT_KEYS": base64.StdEncoding.EncodeToString(scalar), "ADDRESS_KEY": key()})
	maps.Copy(out.env["messaging"], map[string]string{"MAIL_PROVIDER": "maildir", "MAIL_DIR": t.TempDir()})
	maps.Copy(out.env["billing"], map[string]string{
		"STRIPE_SECRET_KEY": "sk_test_x", "STRIPE_URL": payments.URL, "STRIPE_WEBHOOK_SECRETS": "whsec_" + key(), "STRIPE_PRICES": strings.Join(prices, ","),
		"BILLING_SUCCESS_URL": "http://site.test/s", "BILLING_CANCEL_URL": "http://site.test/c", "BILLING_PORTAL_RETURN_URL": "http://site.test/p",
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

// run runs a program to its end, with the variables named alone, and returns its
// exit code and what it said.
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

// environ is what a service is deployed with.
func (d *deployment) environ(service string) []string {
	var out []string
	for k, v := range d.base {
		out = append(out, k+"="+v)
	}
	for k, v := range d.env[service] {
		out = append(out, k+"="+v)
	}
	return out
}

// process is a service that runs.
type process struct {
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{} // closed at its end, whose error is err
	err  error
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

func (d *deployment) start(service string) *process {
	d.t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(d.bin, service)), log: new(logBuffer), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = d.environ(service), p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	d.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if d.t.Failed() {
			d.t.Logf("%s said:\n%s", service, p.log)
		}
	})
	return p
}

// stop ends it as a cluster does, and wants that it ends well.
func (p *process) stop(t *testing.T, service string) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
		return
	}
	select {
	case <-p.done:
		if p.err != nil {
			t.Errorf("%s ended with %v", service, p.err)
		}
	case <-time.After(patience):
		t.Errorf("%s does not end", service)
	}
}

// do sends a request to one service and returns the status and the body.
func (d *deployment) do(method, service, port, path, key, body string) (int, map[string]any) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, "http://"+net.JoinHostPort(d.addr[service], port)+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	var answer map[string]any
	_ = json.Unmarshal(raw, &answer)
	return res.StatusCode, answer
}

// want is do, with an answer that it must be.
func (d *deployment) want(status int, method, service, path, key, body string) map[string]any {
	d.t.Helper()
	got, answer := d.do(method, service, "8080", path, key, body)
	if got != status {
		d.t.Fatalf("%s %s: %d %v", method, path, got, answer)
	}
	return answer
}

// until waits for ok.
func (d *deployment) until(what string, ok func() bool) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			d.t.Fatalf("%s did not come true", what)
		case <-tick.C:
		}
	}
}

// TestDeployment sets the suite up as the operator of a cluster does: roles, one
// migration of each service, six programs. Then people use it.
func TestDeployment(t *testing.T) {
	db := newDatabase(t)
	db.applyRoles(t, "postgres")
	d := newDeployment(t, db)

	for _, args := range [][]string{{"migrat"}, {"migrate", "now"}} {
		if code, said := d.run("account", nil, args...); code != 2 || !strings.Contains(said, "usage") {
			t.Errorf("account %s: exit code %d: %s", args, code, said)
		}
	}
	if code, said := d.run("account", nil, "migrate"); code != 1 || !strings.Contains(said, "POSTGRES_URL") || !strings.Contains(said, "KAFKA_BROKERS") {
		t.Errorf("a migration of nothing: exit code %d: %s", code, said)
	}
	var early sync.WaitGroup
	for _, s := range services() {
		early.Go(func() {
			if code, said := d.run(s, d.environ(s)); code != 1 || !strings.Contains(said, "schema "+schema(s)+" lacks 00001_") {
				t.Errorf("%s before its migration: exit code %d: %s", s, code, said)
			}
		})
	}
	early.Wait()

	// All at once, and with what a migration needs alone.
	var migrations sync.WaitGroup
	for _, s := range services() {
		var env []string
		for _, name := range []string{"KAFKA_BROKERS", "KAFKA_TOPIC_PREFIX", "KAFKA_PARTITIONS"} {
			env = append(env, name+"="+d.base[name])
		}
		env = append(env, "POSTGRES_URL="+d.env[s]["POSTGRES_URL"])
		migrations.Go(func() {
			if code, said := d.run(s, env, "migrate"); code != 0 || !strings.Contains(said, `"file":"00001_`) {
				t.Errorf("%s migrate: exit code %d: %s", s, code, said)
			}
		})
	}
	migrations.Wait()
	if t.Failed() {
		t.FailNow()
	}
	db.checkRoles(t)

	running := map[string]*process{}
	for _, s := range services() {
		running[s] = d.start(s)
	}
	for _, s := range services() {
		d.until(s+" is ready", func() bool {
			select {
			case <-running[s].done:
				t.Fatalf("%s ended: %v", s, running[s].err)
			default:
			}
			status, _ := d.do(http.MethodGet, s, "8081", "/readyz", "", "")
			return status == http.StatusOK
		})
	}

	// Every service, and each of its ways to Postgres that is not a plain statement.
	key, _ := d.want(http.StatusCreated, http.MethodPost, "account", "/v1/auth/register", "", `{"email":"owner@example.com","password":"correct horse battery"}`)["api_key"].(string)
	list, _ := d.want(http.StatusCreated, http.MethodPost, "admin-analytics", "/v1/waitlists", key, `{"name":"Launch"}`)["waitlist_id"].(string)
	d.want(http.StatusCreated, http.MethodPost, "signup", "/v1/public/waitlists/"+list+"/signups", "", `{"email":"ann@example.com"}`)
	if got := d.want(http.StatusOK, http.MethodPost, "admin-analytics", "/v1/waitlists/"+list+"/import", key, `{"signups":[{"email":"bob@example.com"}]}`); got["imported"] != 1.0 {
		t.Errorf("import: %v", got)
	}
	d.want(http.StatusCreated, http.MethodPost, "messaging", "/v1/templates", key, `{"template_type":"blast","subject_template":"Hi","text_body_template":"Hi"}`)
	mails := d.env["messaging"]["MAIL_DIR"]
	d.until("a mail", func() bool {
		found, err := os.ReadDir(mails)
		if err != nil {
			t.Fatal(err)
		}
		return len(found) > 0
	})
	d.until("the sums", func() bool {
		got := d.want(http.StatusOK, http.MethodGet, "admin-analytics", "/v1/waitlists/"+list+"/analytics?range=7d", key, "")
		days, _ := got["signups_by_day"].(map[string]any)
		sum := 0.0
		for _, n := range days {
			sum += n.(float64)
		}
		return sum == 2
	})
	// At last: it ends the trial.
	if got := d.want(http.StatusOK, http.MethodPost, "billing", "/v1/billing/checkout", key, `{"tier":"pro","interval":"monthly"}`); got["url"] == nil {
		t.Errorf("checkout: %v", got)
	}

	var stops sync.WaitGroup
	for s, p := range running {
		stops.Go(func() { p.stop(t, s) })
	}
	stops.Wait()
}
