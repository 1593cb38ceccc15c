// Package webhooksink stands in for the owners' web servers at https://example.com: it
// receives the webhooks that a program under test sends. The program reaches it
// through a proxy, which Sink.Env configures.
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

// URL is the sink's address, without a path.
const URL = "https://example.com"

// Sink is a TLS server and the proxy that leads to it. It runs until Close.
type Sink struct {
	// Env holds the environment variables that route a program's requests to the sink.
	Env map[string]string

	target, proxy *httptest.Server
}

// New starts a sink that serves h. It writes its certificate to dir.
func New(dir string, h http.Handler) (*Sink, error) {
	s := &Sink{target: httptest.NewTLSServer(h)}
	s.proxy = httptest.NewServer(http.HandlerFunc(s.connect))
	ca := filepath.Join(dir, "sink.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.target.Certificate().Raw}), 0o600); err != nil {
		s.Close()
		return nil, fmt.Errorf("write the certificate: %w", err)
	}
	s.Env = map[string]string{"HTTPS_PROXY": s.proxy.URL, "SSL_CERT_FILE": ca}
	return s, nil
}

// connect is the proxy's CONNECT handler. It accepts example.com:443 only.
func (s *Sink) connect(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodConnect || req.Host != "example.com:443" {
		http.Error(w, "this proxy only connects to example.com:443", http.StatusForbidden)
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

// Close stops the sink and its proxy.
func (s *Sink) Close() {
	s.proxy.Close()
	s.target.Close()
}
