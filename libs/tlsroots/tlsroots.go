// Package tlsroots reads the certificate authorities that a client trusts, and records when
// the certificates of its servers expire.
package tlsroots

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"waitlist.internal/libs/telemetry"
)

// Expiry records when the certificates of servers expire, by dependency. It has no series
// for servers that are spoken to without TLS.
type Expiry struct{ at *prometheus.GaugeVec }

// NewExpiry returns the record of reg, which all clients of a service share.
func NewExpiry(reg prometheus.Registerer) Expiry {
	return Expiry{telemetry.Shared(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "waitlist_certificate_expiry_timestamp_seconds",
		Help: "When the first certificate of the chain expires that a server showed last.",
	}, []string{"dependency"}))}
}

// Saw records the chain of a connection.
func (e Expiry) Saw(dependency string, c tls.ConnectionState) {
	var first time.Time
	for _, cert := range c.PeerCertificates {
		if first.IsZero() || cert.NotAfter.Before(first) {
			first = cert.NotAfter
		}
	}
	if !first.IsZero() {
		e.at.WithLabelValues(dependency).Set(float64(first.Unix()))
	}
}

// Read returns the certificates of a PEM file, which replace the system's. For ""
// it returns nil, the system's. A running process does not notice changes of the
// file, so keep the old authority beside a new one until every process restarted.
func Read(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil // in crypto/tls, nil means the system's
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
