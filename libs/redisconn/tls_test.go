package redisconn_test

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/redisconn"
	"waitlist.internal/libs/testenv"
)

func TestTLS(t *testing.T) {
	cert := testenv.NewCertificate(t, t.TempDir())
	server := testenv.RedisServer(t, devservers.RedisOptions{
		Volatile: true, Password: "secret", CAFile: cert.CAFile, CertFile: cert.CertFile, KeyFile: cert.KeyFile,
	})
	ping := func(url, caFile string) error {
		c, err := redisconn.Open(url, redisconn.Options{Timeout: 5 * time.Second, CAFile: caFile})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		return c.Ping(t.Context()).Err()
	}
	if !strings.HasPrefix(server.URL, "rediss://") {
		t.Fatal(server.URL)
	}
	if err := ping(server.URL, cert.CAFile); err != nil {
		t.Error(err)
	}
	plain := strings.Replace(server.URL, "rediss:", "redis:", 1)
	for name, c := range map[string][2]string{
		"unknown authority":       {server.URL, ""},
		"another authority":       {server.URL, testenv.NewCertificate(t, t.TempDir()).CAFile},
		"no such file":            {server.URL, "/nowhere"},
		"no certificate":          {server.URL, "tls_test.go"},
		"wrong password":          {strings.Replace(server.URL, "secret", "wrong", 1), cert.CAFile},
		"no TLS":                  {plain, ""},
		"an authority for no TLS": {plain, cert.CAFile},
	} {
		if err := ping(c[0], c[1]); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	limited, err := ratelimit.OpenRedis(server.URL, cert.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = limited.Close() }()
	limiter := ratelimit.New(limited, ratelimit.Options{RPS: 1, Burst: 30, Replicas: 1, Timeout: 5 * time.Second})
	// The bucket stays until it would be full again, for half a minute.
	for range 30 {
		if ok, _ := limiter.Allow(t.Context()); !ok {
			t.Error("one of the first requests is refused")
		}
	}
	if n, err := limited.Exists(t.Context(), "ratelimit:{global}").Result(); n != 1 || err != nil {
		t.Errorf("the bucket is not in Redis: %d, %v", n, err)
	}
}

// TestExpiry records when the certificate of a server expires.
func TestExpiry(t *testing.T) {
	cert := testenv.NewCertificate(t, t.TempDir())
	server := testenv.RedisServer(t, devservers.RedisOptions{
		Volatile: true, CAFile: cert.CAFile, CertFile: cert.CertFile, KeyFile: cert.KeyFile,
	})
	c, err := redisconn.Open(server.URL, redisconn.Options{Timeout: 5 * time.Second, CAFile: cert.CAFile})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	reg := prometheus.NewRegistry()
	redisconn.Measure(c, reg)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(cert.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "waitlist_certificate_expiry_timestamp_seconds" {
			if got := f.GetMetric()[0].GetGauge().GetValue(); got != float64(leaf.NotAfter.Unix()) {
				t.Errorf("expires at %v, want %v", got, leaf.NotAfter.Unix())
			}
			return
		}
	}
	t.Error("no expiry")
}
