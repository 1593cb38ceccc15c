package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy forwards connections from the program to one of its servers, so that a test can cut the server off.
type Proxy struct {
	// Addr is the proxy's host:port.
	Addr string

	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	state  *sync.Cond
	mode   mode
	closed bool
	conns  map[net.Conn]bool
}

type mode int

const (
	passing mode = iota
	cut
	frozen
)

// NewProxy forwards to target (host:port) until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]bool{}}
	p.state = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.set(cut)
		_ = l.Close()
		p.wg.Wait()
	})
	return p
}

// Pass resumes forwarding. After a Cut, only new connections pass.
func (p *Proxy) Pass() { p.set(passing) }

// Cut closes all connections, and each new one at once.
func (p *Proxy) Cut() { p.set(cut) }

// Freeze keeps old and new connections open but forwards nothing.
func (p *Proxy) Freeze() { p.set(frozen) }

func (p *Proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	if m == cut {
		for c := range p.conns {
			_ = c.Close()
		}
	}
	p.state.Broadcast()
}

// flowing blocks while the proxy is frozen. It returns false if the proxy is cut.
func (p *Proxy) flowing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.mode == frozen {
		p.state.Wait()
	}
	return p.mode == passing
}

// track registers c for Cut, or closes c if the proxy is already cut.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == cut || p.closed {
		_ = c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.track(c) {
			p.wg.Go(func() { p.serve(c) })
		}
	}
}

func (p *Proxy) serve(c net.Conn) {
	defer p.drop(c)
	if !p.flowing() {
		return
	}
	up, err := net.Dial("tcp", p.target)
	if err != nil || !p.track(up) {
		return
	}
	defer p.drop(up)
	var wg sync.WaitGroup
	wg.Go(func() { p.copy(up, c) })
	p.copy(c, up)
	wg.Wait()
}

func (p *Proxy) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && p.flowing() {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = errors.Join(err, fmt.Errorf("forward: %w", werr))
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = from.Close()
			}
			_ = to.Close()
			return
		}
	}
}
