// Package tlsroots reads the certificate authorities that a client trusts.
package tlsroots

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Read returns the certificates of a PEM file, which replace the system's. For ""
// it returns nil, the system's. A running process does not notice changes of the
// file, so keep the old authority beside a new one until every process restarted.
func Read(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // in crypto/tls, nil means the system's
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
