package domains

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const (
	// keyBits is the size of DKIM keys that RFC 8301 recommends and every receiver accepts.
	keyBits   = 2048
	recordTTL = 3600
)

// Texts looks up TXT records.
type Texts interface {
	// Texts returns the TXT records of a name, possibly none. The error wraps ErrNoAnswer if no
	// server answers.
	Texts(ctx context.Context, name string) ([]string, error)
}

// Records verifies domains by DNS records only, and signs their mails with its own keys. It
// implements Prover.
type Records struct{ Texts Texts }

// Method implements Prover.
func (Records) Method() string { return "dns" }

// Begin implements Prover.
func (Records) Begin(_ context.Context, domain string) (Claim, error) {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return Claim{}, fmt.Errorf("create DKIM key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return Claim{}, fmt.Errorf("create DKIM key: %w", err)
	}
	// Each claim has its own selector, so that a domain can have several claims.
	selector := "wl" + random(6)
	return Claim{
		Key: &DKIM{Domain: domain, Selector: selector, Key: key},
		Records: []Record{
			OwnershipRecord(domain),
			{
				Type: "TXT", Name: selector + "._domainkey." + domain,
				Value:   "v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(public),
				Purpose: "DKIM: receivers check our signatures with this key", TTL: recordTTL, Proof: true,
			},
			{
				Type: "TXT", Name: "_dmarc." + domain, Value: "v=DMARC1; p=none",
				Purpose: "Recommended if the domain has none yet: DMARC, which tells receivers what to do with forged mails",
				TTL:     recordTTL,
			},
		},
	}, nil
}

// Proven implements Prover.
func (r Records) Proven(ctx context.Context, d Domain) (bool, error) {
	return Published(ctx, r.Texts, d.Records)
}

// Release implements Prover. It does nothing, as no mail provider knows the domain.
func (Records) Release(context.Context, string) error { return nil }

// OwnershipRecord returns a new record that proves one account's claim.
func OwnershipRecord(domain string) Record {
	return Record{
		Type: "TXT", Name: "_waitlist." + domain, Value: "waitlist-verification=" + random(16),
		Purpose: "Ownership: shows that the domain is yours", TTL: recordTTL, Proof: true,
	}
}

// Published reports whether all records with Proof are published.
func Published(ctx context.Context, texts Texts, records []Record) (bool, error) {
	type result struct {
		there bool
		err   error
	}
	var proofs []Record
	for _, r := range records {
		if r.Proof {
			proofs = append(proofs, r)
		}
	}
	results := make(chan result, len(proofs))
	for _, r := range proofs {
		go func() {
			found, err := texts.Texts(ctx, r.Name)
			there := false
			for _, text := range found {
				there = there || sameText(text, r.Value)
			}
			results <- result{there, err}
		}()
	}
	all, errs := len(proofs) > 0, error(nil)
	for range proofs {
		r := <-results
		// One missing record decides, whatever the other lookups return.
		if r.err == nil && !r.there {
			all = false
		}
		errs = errors.Join(errs, r.err)
	}
	if !all {
		return false, nil
	}
	return errs == nil, errs
}

// sameText compares records as mail servers do: blanks between tags and a trailing semicolon are
// insignificant.
func sameText(a, b string) bool {
	plain := func(s string) string { return strings.TrimRight(strings.Join(strings.Fields(s), ""), ";") }
	return plain(a) == plain(b)
}

// random returns n random bytes in hexadecimal.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
