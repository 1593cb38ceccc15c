package observability_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// certificates are the files of a server that changes its certificate: one for 13 days, one for 90.
type certificates struct{ dir string }

func (c certificates) file(name string) string { return filepath.Join(c.dir, name) }

// newCertificates writes a certificate with its key for each name and all of them as authorities.
func newCertificates(t testing.TB, days map[string]int) certificates {
	t.Helper()
	c := certificates{t.TempDir()}
	var all []byte
	for name, n := range days {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		form := &x509.Certificate{
			SerialNumber: big.NewInt(int64(n)), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, n), IsCA: true, BasicConstraintsValid: true,
		}
		raw, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		one := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
		all = append(all, one...)
		c.write(t, name+".pem", one)
		c.write(t, name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	}
	c.write(t, "authorities.pem", all)
	return c
}

func (c certificates) write(t testing.TB, name string, body []byte) {
	t.Helper()
	if err := os.WriteFile(c.file(name), body, 0o600); err != nil {
		t.Fatal(err)
	}
}

// openOutside starts a suite whose Redis speaks TLS, with a certificate for 90 days.
func openOutside(t *testing.T) *running {
	t.Helper()
	c := newCertificates(t, map[string]int{"long": 90, "short": 13})
	address := freePort(t)
	_, port, _ := net.SplitHostPort(address)
	server := exec.Command("redis-server", "--port", "0", "--tls-port", port, "--bind", "127.0.0.1", "--tls-auth-clients", "no",
		"--tls-cert-file", c.file("long.pem"), "--tls-key-file", c.file("long.key"), "--save", "", "--dir", c.dir)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
	})
	r := open(t, "REDIS_URL=rediss://"+address, "REDIS_CA_FILE="+c.file("authorities.pem"))
	r.shows = func(name string) {
		cli := []string{"-p", port, "--tls", "--cacert", c.file("authorities.pem")}
		for _, order := range [][]string{
			{"CONFIG", "SET", "tls-cert-file", c.file(name + ".pem"), "tls-key-file", c.file(name + ".key")},
			{"CLIENT", "KILL", "TYPE", "normal"}, // whoever stays connected does not see the new one
		} {
			if out, err := exec.CommandContext(t.Context(), "redis-cli", append(cli, order...)...).CombinedOutput(); err != nil {
				t.Fatalf("redis-cli %v: %v\n%s", order, err, out)
			}
		}
	}
	return r
}

// outsideFaults are in what surrounds the suite.
func outsideFaults() map[string]fault {
	var cut atomic.Bool
	var k *kubernetes
	return map[string]fault{
		"a certificate for 13 days": {
			speed: 60, want: []string{"CertificateExpires/warning"},
			begin: func(r *running) { r.shows("short") },
			end:   func(r *running) { r.shows("long") },
		},
		"a key of 401 days": {
			step: time.Minute, want: []string{"KeyOld/warning"},
			begin: func(r *running) { r.seal(time.Now().AddDate(0, 0, -401)) },
			end:   func(r *running) { r.seal(time.Now()) },
		},
		"the way to the interface cut": {
			speed: 60, want: []string{"ProbeFails/critical", "ProbeSilent/critical"},
			before: func(r *running) { r.probe(&cut) },
			begin:  func(*running) { cut.Store(true) },
			end:    func(*running) { cut.Store(false) },
		},
		"what a Canary releases deleted": {
			speed: 60, want: []string{"ReleaseStalled/warning"},
			before: func(r *running) { k = r.releases() },
			begin:  func(*running) { k.must("DELETE", deployments+"/web", "") },
			end:    func(*running) { k.must("POST", deployments, deployment) },
		},
	}
}

// runs starts a program that ends after the group's last fault.
func (r *running) runs(program string, env []string, args ...string) {
	r.Helper()
	log, err := os.Create(filepath.Join(r.dir, filepath.Base(program)+".log"))
	if err != nil {
		r.Fatal(err)
	}
	defer log.Close()
	p := exec.Command(program, args...)
	p.Env, p.Stdout, p.Stderr = env, log, log
	if err := p.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Wait()
	})
}

// seal starts the suite anew with a key of a day in front of those that seal.
func (r *running) seal(day time.Time) {
	r.halt()
	file := filepath.Join(r.dir, "data", "keys", "seal-keys")
	ring, err := os.ReadFile(file)
	if err != nil {
		r.Fatal(err)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	ring = []byte(day.UTC().Format(time.DateOnly) + "-" + rand.Text()[:6] + ":" + base64.StdEncoding.EncodeToString(key) + "," + string(ring))
	if err := os.WriteFile(file, ring, 0o600); err != nil {
		r.Fatal(err)
	}
	r.boot()
}

// probe starts the prober, whose way to the interface can be cut, and waits for its first round.
func (r *running) probe(cut *atomic.Bool) {
	target, err := url.Parse(strings.TrimSuffix(r.api, "/v1"))
	if err != nil {
		r.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	way := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if cut.Load() {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, req)
	}))
	r.Cleanup(way.Close)
	key, _ := r.post("/auth/register", "", object{"email": "sre@example.com", "password": "correct horse battery"})["api_key"].(string)
	internal := freePort(r)
	r.runs(filepath.Join(programs(r), "prober"), []string{
		"PROBER_API=" + way.URL + "/v1", "PROBER_API_KEY=" + key, "PROBER_EVERY=1s",
		"HTTP_ADDR=" + freePort(r), "INTERNAL_ADDR=" + internal,
	})
	r.more = func() []sample {
		now, _ := scrape(r, "http://"+internal+"/metrics")
		return now
	}
	r.await("a round of the prober", func() bool { return total(r.more(), "prober_last_success_timestamp_seconds") > 0 })
}
