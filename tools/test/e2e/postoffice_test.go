package e2e

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"

	"waitlist.internal/tools/internal/mailfile"
)

const (
	mailUser     = "mailer"
	mailPassword = "correct horse battery"
)

// postOffice is an SMTP server with STARTTLS and authentication. It stores the mails.
type postOffice struct {
	// env makes the program send its mails here.
	env map[string]string

	mu    sync.Mutex
	mails []Mail
	// bad joins the errors of mails that could not be parsed.
	bad error
	// away makes it refuse connections.
	away bool
	// refused are recipients that it rejects permanently.
	refused map[string]bool
	// refusals, if any, answer all mails in turn; refusing counts them.
	refusals []refusal
	refusing int
	// hello is the client's name.
	hello string
	// pause is the time that each mail takes.
	pause time.Duration
}

// refusal is the answer to the command RCPT, or to the text of a mail.
type refusal struct {
	step     string // rcpt or data
	code     int
	enhanced gosmtp.EnhancedCode
}

// refuse returns the refusal that is next, if it belongs to step.
func (p *postOffice) refuse(step string) error {
	if len(p.refusals) == 0 {
		return nil
	}
	next := p.refusals[p.refusing%len(p.refusals)]
	if next.step != step {
		return nil
	}
	p.refusing++
	return &gosmtp.SMTPError{Code: next.code, EnhancedCode: next.enhanced, Message: "not from you"}
}

func newPostOffice(t testing.TB) *postOffice {
	t.Helper()
	p := &postOffice{refused: map[string]bool{}}
	// The standard library has a certificate for 127.0.0.1.
	web := httptest.NewTLSServer(nil)
	ca := filepath.Join(t.TempDir(), "postoffice.pem")
	err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600)
	certificates := web.TLS.Certificates
	web.Close()
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := gosmtp.NewServer(gosmtp.BackendFunc(func(c *gosmtp.Conn) (gosmtp.Session, error) {
		p.change(func() { p.hello = c.Hostname() })
		return &mailSession{postOffice: p}, nil
	}))
	server.Domain = "localhost"
	server.TLSConfig = &tls.Config{Certificates: certificates, MinVersion: tls.VersionTLS12}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; err != nil && !errors.Is(err, gosmtp.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p.env = map[string]string{
		"MAIL_PROVIDER": "smtp", "MAIL_FROM": "Waitlist <no-reply@waitlist.example>", "SMTP_HOST": host, "SMTP_PORT": port,
		"SMTP_TLS":      "starttls",
		"SMTP_USERNAME": mailUser, "SMTP_PASSWORD": mailPassword, "SSL_CERT_FILE": ca,
	}
	return p
}

// change changes the behavior.
func (p *postOffice) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Mails implements mailbox.
func (p *postOffice) Mails(to string) ([]Mail, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Mail
	for _, m := range p.mails {
		if m.To == to {
			out = append(out, m)
		}
	}
	return out, p.bad
}

// mailSession is one SMTP session.
type mailSession struct {
	*postOffice
	authed   bool
	from, to string
}

func (s *mailSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *mailSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != mailUser || password != mailPassword {
			return gosmtp.ErrAuthFailed
		}
		s.authed = true
		return nil
	}), nil
}

func (s *mailSession) Mail(from string, _ *gosmtp.MailOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.authed:
		return gosmtp.ErrAuthRequired
	case s.away:
		return &gosmtp.SMTPError{Code: 421, EnhancedCode: gosmtp.EnhancedCode{4, 3, 2}, Message: "closed"}
	}
	s.from = from
	return nil
}

func (s *mailSession) Rcpt(to string, _ *gosmtp.RcptOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused[to] {
		return &gosmtp.SMTPError{Code: 550, EnhancedCode: gosmtp.EnhancedCode{5, 1, 1}, Message: "nobody is called " + strconv.Quote(to)}
	}
	if err := s.refuse("rcpt"); err != nil {
		return err
	}
	s.to = to
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m, err := mailfile.Parse(raw)
	if err == nil && (m.To != s.to || m.From != s.from) {
		err = fmt.Errorf("the envelope is from %s to %s, the mail from %s to %s", s.from, s.to, m.From, m.To)
	}
	s.mu.Lock()
	pause := s.pause
	s.mu.Unlock()
	if pause > 0 {
		<-time.After(pause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.bad = errors.Join(s.bad, err)
		return err
	}
	if err := s.refuse("data"); err != nil {
		return err
	}
	m.Written = time.Now()
	s.mails = append(s.mails, m)
	return nil
}

func (s *mailSession) Reset()        { s.from, s.to = "", "" }
func (s *mailSession) Logout() error { return nil }
