package account

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maxIDToken bounds the bytes of a token to parse. Issued tokens have about 450.
const maxIDToken = 2048

// Keys is the key ring for ID tokens. The first key signs; every key verifies. A
// key's id is its RFC 7638 thumbprint, so a key has the same id on every replica.
// To rotate, append the new key on every replica, move it to the front, and remove
// the old key after the lifetime of an ID token.
type Keys struct {
	signer *ecdsa.PrivateKey
	id     string
	public map[string]*ecdsa.PublicKey
	jwks   []byte
}

// jwk is a P-256 public key as JSON. Thumbprints need crv, kty, x, y in this order.
type jwk struct {
	Crv string `json:"crv"`
	Kty string `json:"kty"`
	X   string `json:"x"`
	Y   string `json:"y"`
	Kid string `json:"kid,omitempty"`
	Use string `json:"use,omitempty"`
	Alg string `json:"alg,omitempty"`
}

// ParseKeys parses P-256 private keys: PEM blocks (PKCS #8 or SEC 1), or 32-byte
// scalars in base64, separated by commas.
func ParseKeys(s string) (*Keys, error) {
	var private []*ecdsa.PrivateKey
	if strings.Contains(s, "-----BEGIN") {
		for block, rest := pem.Decode([]byte(s)); block != nil; block, rest = pem.Decode(rest) {
			k, err := parseDER(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("ID token key %d: %w", len(private)+1, err)
			}
			private = append(private, k)
		}
	} else {
		for part := range strings.SplitSeq(s, ",") {
			raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(part))
			if err != nil {
				return nil, fmt.Errorf("ID token key %d: %w", len(private)+1, err)
			}
			k, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw)
			if err != nil {
				return nil, fmt.Errorf("ID token key %d: %w", len(private)+1, err)
			}
			private = append(private, k)
		}
	}
	if len(private) == 0 {
		return nil, errors.New("there is no ID token key")
	}
	ring := &Keys{signer: private[0], public: map[string]*ecdsa.PublicKey{}}
	set := struct {
		Keys []jwk `json:"keys"`
	}{}
	for i, k := range private {
		j, err := publicJWK(&k.PublicKey)
		if err != nil {
			return nil, fmt.Errorf("ID token key %d: %w", i+1, err)
		}
		if ring.public[j.Kid] != nil {
			return nil, fmt.Errorf("ID token key %d repeats an earlier key", i+1)
		}
		ring.public[j.Kid] = &k.PublicKey
		set.Keys = append(set.Keys, j)
	}
	ring.id = set.Keys[0].Kid
	var err error
	if ring.jwks, err = json.Marshal(set); err != nil {
		return nil, fmt.Errorf("ID token keys: %w", err)
	}
	return ring, nil
}

func parseDER(der []byte) (*ecdsa.PrivateKey, error) {
	if k, err := x509.ParseECPrivateKey(der); err == nil {
		return requireP256(k)
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key is not an EC key")
	}
	return requireP256(ec)
}

func requireP256(k *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	if k.Curve != elliptic.P256() {
		return nil, errors.New("the key is not on the curve P-256")
	}
	return k, nil
}

func publicJWK(k *ecdsa.PublicKey) (jwk, error) {
	point, err := k.Bytes() // 0x04, X, Y
	if err != nil {
		return jwk{}, err
	}
	j := jwk{Crv: "P-256", Kty: "EC", X: encode(point[1:33]), Y: encode(point[33:])}
	canonical, err := json.Marshal(j)
	if err != nil {
		return jwk{}, err
	}
	thumbprint := sha256.Sum256(canonical)
	j.Kid, j.Use, j.Alg = encode(thumbprint[:]), "sig", jwt.SigningMethodES256.Alg()
	return j, nil
}

// JWKS returns the public keys as a JSON Web Key Set.
func (k *Keys) JWKS() []byte { return k.jwks }

// claims are the claims of an ID token: sub is the account, sid the session.
type claims struct {
	jwt.RegisteredClaims
	SessionID string `json:"sid"`
}

// issue signs an ID token for a session.
func (s *Service) issue(session Session, now time.Time) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodES256, claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: s.Issuer, Subject: session.AccountID, Audience: jwt.ClaimStrings{s.Audience},
			IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(s.IDTokenTTL)),
			ID: rand.Text(),
		},
		SessionID: session.ID,
	})
	t.Header["kid"] = s.Keys.id
	signed, err := t.SignedString(s.Keys.signer)
	if err != nil {
		return "", fmt.Errorf("sign an ID token: %w", err)
	}
	return signed, nil
}

// parseIDToken verifies an ID token that has expired leeway ago at most, and returns its
// account and session. It does not check whether the session still exists.
func (s *Service) parseIDToken(raw string, leeway time.Duration) (accountID, sessionID string, err error) {
	if len(raw) > maxIDToken {
		return "", "", errors.New("the ID token is too long")
	}
	var c claims
	_, err = jwt.ParseWithClaims(raw, &c, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		k := s.Keys.public[kid]
		if k == nil {
			return nil, errors.New("unknown key")
		}
		return k, nil
	},
		jwt.WithValidMethods([]string{jwt.SigningMethodES256.Alg()}),
		jwt.WithIssuer(s.Issuer), jwt.WithAudience(s.Audience),
		jwt.WithExpirationRequired(), jwt.WithTimeFunc(s.Now), jwt.WithLeeway(leeway),
		// Without strict decoding, the unused last bits of the signature could vary.
		jwt.WithStrictDecoding())
	if err != nil {
		return "", "", err
	}
	return c.Subject, c.SessionID, nil
}
