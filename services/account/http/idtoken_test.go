package http_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"waitlist.internal/libs/token/tokentest"
	"waitlist.internal/services/account"
)

// forge signs claims with any method and key.
func forge(t *testing.T, method jwt.SigningMethod, key any, header map[string]any, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	maps.Copy(token.Header, header)
	s, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestForgedIDTokens(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	raw := secret()
	keys, err := account.ParseKeys(raw)
	if err != nil {
		t.Fatal(err)
	}
	e.cfg.Keys = keys
	e.serve()
	seed, err := base64.StdEncoding.DecodeString(raw)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed)
	if err != nil {
		t.Fatal(err)
	}
	strange, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	e.register("owner@example.com")
	e.register("other@example.com")
	good, _ := e.login("owner@example.com")
	other, _ := e.login("other@example.com")
	e.me(bearer(good)).expect(t, 200, "")

	parts := strings.Split(good, ".")
	var header map[string]any
	decode := func(part string, into any) {
		t.Helper()
		b, err := base64.RawURLEncoding.DecodeString(part)
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	decode(parts[0], &header)
	if header["alg"] != "ES256" || header["kid"] == nil {
		t.Fatalf("header %v", header)
	}
	claims := func(change map[string]any) jwt.MapClaims {
		t.Helper()
		var c jwt.MapClaims
		decode(parts[1], &c)
		for k, v := range change {
			if c[k] = v; v == nil {
				delete(c, k)
			}
		}
		return c
	}
	for _, name := range []string{"iss", "sub", "aud", "exp", "iat", "jti", "sid"} {
		if claims(nil)[name] == nil {
			t.Errorf("no claim %s", name)
		}
	}
	var others jwt.MapClaims
	decode(strings.Split(other, ".")[1], &others)

	kid := map[string]any{"kid": header["kid"]}
	es256 := jwt.SigningMethodES256
	// Control: a token signed this way is valid.
	e.me(bearer(forge(t, es256, ours, kid, claims(nil)))).expect(t, 200, "")

	public, err := ours.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	now := e.clock.Now().Unix()
	cases := map[string]string{
		"alg none":              forge(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid, claims(nil)),
		"HS256 with the public": forge(t, jwt.SigningMethodHS256, public, kid, claims(nil)),
		"HS256 with the JWKS":   forge(t, jwt.SigningMethodHS256, keys.JWKS(), kid, claims(nil)),
		"HS256 with nothing":    forge(t, jwt.SigningMethodHS256, []byte{}, kid, claims(nil)),
		"ES384":                 forge(t, jwt.SigningMethodES384, p384, kid, claims(nil)),
		"a stranger's key":      forge(t, es256, strange, kid, claims(nil)),
		"no kid":                forge(t, es256, ours, nil, claims(nil)),
		"unknown kid":           forge(t, es256, ours, map[string]any{"kid": "x"}, claims(nil)),
		"kid of another type":   forge(t, es256, ours, map[string]any{"kid": 1}, claims(nil)),
		"key in the header": forge(t, es256, strange, map[string]any{
			"kid": "x", "jku": "https://attacker.example/jwks.json", "jwk": map[string]any{
				"kty": "EC", "crv": "P-256",
				"x": base64.RawURLEncoding.EncodeToString(mustBytes(t, &strange.PublicKey)[1:33]),
				"y": base64.RawURLEncoding.EncodeToString(mustBytes(t, &strange.PublicKey)[33:]),
			},
		}, claims(nil)),
		"another issuer":        forge(t, es256, ours, kid, claims(map[string]any{"iss": "another"})),
		"no issuer":             forge(t, es256, ours, kid, claims(map[string]any{"iss": nil})),
		"another audience":      forge(t, es256, ours, kid, claims(map[string]any{"aud": "another"})),
		"no audience":           forge(t, es256, ours, kid, claims(map[string]any{"aud": nil})),
		"expired":               forge(t, es256, ours, kid, claims(map[string]any{"exp": now})),
		"no expiry":             forge(t, es256, ours, kid, claims(map[string]any{"exp": nil})),
		"not yet valid":         forge(t, es256, ours, kid, claims(map[string]any{"nbf": now + 60})),
		"another account":       forge(t, es256, ours, kid, claims(map[string]any{"sub": others["sub"]})),
		"another's session":     forge(t, es256, ours, kid, claims(map[string]any{"sid": others["sid"]})),
		"an unknown session":    forge(t, es256, ours, kid, claims(map[string]any{"sid": "0198c0de-0000-7000-8000-000000000001"})),
		"no signature":          parts[0] + "." + parts[1] + ".",
		"no signature part":     parts[0] + "." + parts[1],
		"four parts":            good + ".x",
		"zero signature":        parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)),
		"spliced":               parts[0] + "." + strings.Split(other, ".")[1] + "." + parts[2],
		"padded":                good + "=",
		"empty parts":           "..",
		"far too long":          strings.Repeat("x", 4096) + "." + parts[1] + "." + parts[2],
		"unused bits signature": good[:len(good)-1] + string(nextInAlphabet(good[len(good)-1])),
	}
	for name, token := range cases {
		if a := e.me(bearer(token)); a.status != http.StatusUnauthorized || a.str("error_code") != "AUTHENTICATION_REQUIRED" {
			t.Errorf("%s: %d %s", name, a.status, a.raw)
		}
	}
	tried := 0
	for bad := range tokentest.Tampered(good, tokentest.Base64URL) {
		if a := e.me(bearer(bad)); a.status != http.StatusUnauthorized {
			t.Errorf("%q for %q: %d", bad, good, a.status)
		}
		tried++
	}
	t.Logf("%d refused", tried)
	e.me(bearer(good)).expect(t, 200, "")
}

func mustBytes(t *testing.T, k *ecdsa.PublicKey) []byte {
	t.Helper()
	b, err := k.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// nextInAlphabet returns the base64url character after c, which differs in the
// lowest bit or more.
func nextInAlphabet(c byte) byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return alphabet[(strings.IndexByte(alphabet, c)+1)%len(alphabet)]
}

func TestKeyRotation(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	older, newer := secret(), secret()
	use := func(ring string) {
		t.Helper()
		keys, err := account.ParseKeys(ring)
		if err != nil {
			t.Fatal(err)
		}
		e.cfg.Keys = keys
		e.serve()
	}
	use(older)
	first, _ := e.login("owner@example.com")
	use(older + "," + newer)
	e.me(bearer(first)).expect(t, 200, "")
	use(newer + ", " + older)
	e.me(bearer(first)).expect(t, 200, "")
	second, _ := e.login("owner@example.com")
	if a := e.do(http.MethodGet, "/jwks.json", nil); strings.Count(a.raw, `"kid"`) != 2 {
		t.Errorf("JWKS %s", a.raw)
	}
	use(newer)
	e.me(bearer(first)).expect(t, 401, "AUTHENTICATION_REQUIRED")
	e.me(bearer(second)).expect(t, 200, "")
}

// Any standard verifier can verify an ID token with the published key set alone.
func TestJWKSVerifies(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	good, _ := e.login("owner@example.com")
	var set struct {
		Keys []struct{ Kid, X, Y string }
	}
	if err := json.Unmarshal([]byte(e.do(http.MethodGet, "/jwks.json", nil).raw), &set); err != nil {
		t.Fatal(err)
	}
	_, err := jwt.Parse(good, func(token *jwt.Token) (any, error) {
		for _, k := range set.Keys {
			if k.Kid != token.Header["kid"] {
				continue
			}
			x, err := base64.RawURLEncoding.DecodeString(k.X)
			if err != nil {
				return nil, err
			}
			y, err := base64.RawURLEncoding.DecodeString(k.Y)
			if err != nil {
				return nil, err
			}
			return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
		}
		return nil, jwt.ErrTokenUnverifiable
	}, jwt.WithTimeFunc(func() time.Time { return e.clock.Now() }))
	if err != nil {
		t.Error(err)
	}
}
