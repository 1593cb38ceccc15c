// Package tlsroots reads the authorities that a server of ours is trusted by.
package tlsroots

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Read returns the certificates of a PEM file, which stand in place of the
// machine's; nil, the machine's, for "". The file is read once: a new authority
// counts from the next start on, so name the old one beside it until then.
func Read(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // what crypto/tls takes for the machine's
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("read certificates: no PEM certificate in " + file)
	}
	return roots, nil
}
