// Package webhooksink is every server that owners have, at https://example.com, for
// programs that are started with its environment: they reach it through an
// operator's proxy.
package webhooksink

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
)

// URL is where it is, without a path.
const URL = "https://example.com"

// Sink runs until Close.
type Sink struct {
	// Env is what a program needs to find it.
	Env map[string]string

	target, proxy *httptest.Server
}

// New serves h. Its certificate is kept in dir.
func New(dir string, h http.Handler) (*Sink, error) {
	s := &Sink{target: httptest.NewTLSServer(h)}
	s.proxy = httptest.NewServer(http.HandlerFunc(s.connect))
	ca := filepath.Join(dir, "sink.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.target.Certificate().Raw}), 0o600); err != nil {
		s.Close()
		return nil, fmt.Errorf("keep the certificate: %w", err)
	}
	s.Env = map[string]string{"HTTPS_PROXY": s.proxy.URL, "SSL_CERT_FILE": ca}
	return s, nil
}

// connect is the proxy, which knows one address.
func (s *Sink) connect(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodConnect || req.Host != "example.com:443" {
		http.Error(w, "not here", http.StatusForbidden)
		return
	}
	to, err := new(net.Dialer).DialContext(req.Context(), "tcp", s.target.Listener.Addr().String())
	if err != nil {
		return
	}
	defer to.Close()
	from, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() })
	both.Go(func() { _, _ = io.Copy(from, to); _ = from.(*net.TCPConn).CloseWrite() })
	both.Wait()
}

// Close ends it.
func (s *Sink) Close() {
	s.proxy.Close()
	s.target.Close()
}
