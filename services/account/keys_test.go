package account

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"
)

func TestParseKeys(t *testing.T) {
	t.Parallel()
	newKey := func(curve elliptic.Curve) *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	must := func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one, two := newKey(elliptic.P256()), newKey(elliptic.P256())
	scalar := func(k *ecdsa.PrivateKey) string { return base64.StdEncoding.EncodeToString(must(k.Bytes())) }
	sec1 := func(k *ecdsa.PrivateKey) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(k))}))
	}
	pkcs8 := func(k any) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(k))}))
	}
	// Every encoding of a key has the same id.
	want, err := ParseKeys(scalar(one) + "," + scalar(two))
	if err != nil {
		t.Fatal(err)
	}
	for _, ring := range []string{sec1(one) + pkcs8(two), pkcs8(one) + "\n" + sec1(two)} {
		got, err := ParseKeys(ring)
		if err != nil {
			t.Fatal(err)
		}
		if got.id != want.id || string(got.JWKS()) != string(want.JWKS()) {
			t.Errorf("another ring from PEM:\n%s\n%s", got.JWKS(), want.JWKS())
		}
	}
	for name, ring := range map[string]string{
		"empty":       "",
		"no base64":   "***",
		"short":       base64.StdEncoding.EncodeToString(make([]byte, 16)),
		"zero":        base64.StdEncoding.EncodeToString(make([]byte, 32)),
		"above order": base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\xff", 32))),
		"twice":       scalar(one) + "," + scalar(one),
		"P-384":       pkcs8(newKey(elliptic.P384())),
		"broken PEM":  "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
		"no key PEM":  "-----BEGIN",
	} {
		if _, err := ParseKeys(ring); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"192.0.2.1":               "192.0.2.1",
		"::ffff:192.0.2.1":        "192.0.2.1",
		"2001:db8:1:2:3:4:5:6":    "2001:db8:1:2::/64",
		"fe80::1%eth0":            "fe80::/64",
		"":                        "",
		"something else entirely": "something else entirely",
	} {
		if got := network(in); got != want {
			t.Errorf("network(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestAPIKeyForm(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		k := newAPIKey()
		got, ok := parseAPIKey(string(k))
		if !ok || got != k || len(k) != apiKeyLen || seen[k.record().Lookup] {
			t.Fatalf("key %q", k)
		}
		seen[k.record().Lookup] = true
	}
}

func FuzzParseAPIKey(f *testing.F) {
	f.Add(string(newAPIKey()))
	f.Add(apiKeyPrefix)
	f.Fuzz(func(t *testing.T, s string) {
		if k, ok := parseAPIKey(s); ok && (string(k) != s || len(k.record().Lookup) != lookupLen) {
			t.Errorf("%q accepted as %q", s, k)
		}
	})
}
