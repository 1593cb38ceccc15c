package smtp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io"
	"math/big"
	"net"
	stdmail "net/mail"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"
	"go.uber.org/goleak"

	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/smtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	user     = "mailer"
	password = "correct horse"
)

// server is a real SMTP server that stores the mails that it accepts.
type server struct {
	*gosmtp.Server
	port int
	tls  *tls.Config // for clients

	mu       sync.Mutex
	sessions int
	mails    []string
	rcpts    []string
	// reply, if set, answers the steps mail, rcpt and data.
	reply func(step string) error
	// lose makes the server close the connection after it has accepted a mail.
	lose bool
	auth bool
	// mechanisms are the AUTH mechanisms; empty means PLAIN.
	mechanisms []string
	froms      []string
	hello      string
	open       map[*gosmtp.Conn]bool
}

type mode struct{ starttls, implicit, auth bool }

func start(t *testing.T, m mode) *server {
	t.Helper()
	s := &server{auth: m.auth, open: map[*gosmtp.Conn]bool{}}
	s.Server = gosmtp.NewServer(gosmtp.BackendFunc(func(c *gosmtp.Conn) (gosmtp.Session, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sessions++
		s.open[c] = true
		return &session{server: s, conn: c}, nil
	}))
	s.Domain = "localhost"
	cert, pool := certificate(t)
	s.tls = &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	switch {
	case m.starttls:
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
	case m.implicit:
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		_ = l.Close() // Close does not know the listener before Serve has begun
		if err := <-done; err != nil && !errors.Is(err, gosmtp.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return s
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

type session struct {
	*server
	conn   *gosmtp.Conn
	authed bool
}

func (s *session) AuthMechanisms() []string {
	if !s.auth {
		return nil
	}
	if len(s.mechanisms) > 0 {
		return s.mechanisms
	}
	return []string{sasl.Plain}
}

func (s *session) Auth(mechanism string) (sasl.Server, error) {
	check := func(u, p string) error {
		if u != user || p != password {
			return gosmtp.ErrAuthFailed
		}
		s.authed = true
		return nil
	}
	switch mechanism {
	case sasl.Login:
		return &login{check: check}, nil
	case "CRAM-MD5":
		return &cramMD5{check: check}, nil
	}
	return sasl.NewPlainServer(func(_, u, p string) error { return check(u, p) }), nil
}

// login is the server's side of LOGIN.
type login struct {
	check func(u, p string) error
	user  []byte
	step  int
}

func (l *login) Next(response []byte) ([]byte, bool, error) {
	l.step++
	switch l.step {
	case 1:
		return []byte("Username:"), false, nil
	case 2:
		l.user = response
		return []byte("Password:"), false, nil
	}
	return nil, true, l.check(string(l.user), string(response))
}

// cramMD5 is the server's side of CRAM-MD5 (RFC 2195).
type cramMD5 struct {
	check func(u, p string) error
	asked bool
}

const challenge = "<1896.697170952@postoffice.example.com>"

func (c *cramMD5) Next(response []byte) ([]byte, bool, error) {
	if !c.asked {
		c.asked = true
		return []byte(challenge), false, nil
	}
	u, digest, _ := strings.Cut(string(response), " ")
	mac := hmac.New(md5.New, []byte(password))
	_, _ = mac.Write([]byte(challenge))
	if !hmac.Equal([]byte(digest), []byte(hex.EncodeToString(mac.Sum(nil)))) {
		return nil, true, gosmtp.ErrAuthFailed
	}
	return nil, true, c.check(u, password)
}

func (s *session) step(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.auth && !s.authed {
		return gosmtp.ErrAuthRequired
	}
	if s.reply != nil {
		return s.reply(name)
	}
	return nil
}

func (s *session) Mail(from string, _ *gosmtp.MailOptions) error {
	if err := s.step("mail"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.froms = append(s.froms, from)
	return nil
}

func (s *session) Rcpt(to string, _ *gosmtp.RcptOptions) error {
	if err := s.step("rcpt"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rcpts, s.hello = append(s.rcpts, to), s.conn.Hostname()
	return nil
}

func (s *session) Data(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := s.step("data"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails = append(s.mails, string(b))
	if s.lose {
		_ = s.conn.Conn().Close()
	}
	return nil
}

func (s *session) Reset() {}

func (s *session) Logout() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, s.conn)
	return nil
}

// hangUp closes all open connections.
func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		c.Conn().Close()
	}
}

func (s *server) count() (sessions, mails int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions, len(s.mails)
}

func provider(t *testing.T, s *server, change func(*smtp.Config)) *smtp.Provider {
	t.Helper()
	cfg := smtp.Config{
		Host: "localhost", Port: s.port, TLS: smtp.NoTLS, TLSConfig: s.tls,
		From: stdmail.Address{Name: "Waitlist", Address: "no-reply@example.com"},
	}
	if change != nil {
		change(&cfg)
	}
	p, err := smtp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func mail(id string) mails.Mail {
	return mails.Mail{ID: id, To: "o'hara+x@example.com", Subject: "Grüße", Text: "text\n.\nmore", HTML: "<p>html</p>", Date: time.Now()}
}

func TestEveryWayToConnect(t *testing.T) {
	login := func(c *smtp.Config) { c.Username, c.Password = user, password }
	for name, tc := range map[string]struct {
		mode   mode
		change func(*smtp.Config)
		ok     bool
	}{
		"plain":                   {mode{}, nil, true},
		"starttls":                {mode{starttls: true}, func(c *smtp.Config) { c.TLS = smtp.StartTLS }, true},
		"starttls and login":      {mode{starttls: true, auth: true}, func(c *smtp.Config) { c.TLS = smtp.StartTLS; login(c) }, true},
		"tls":                     {mode{implicit: true}, func(c *smtp.Config) { c.TLS = smtp.ImplicitTLS }, true},
		"tls and login":           {mode{implicit: true, auth: true}, func(c *smtp.Config) { c.TLS = smtp.ImplicitTLS; login(c) }, true},
		"starttls is not offered": {mode{}, func(c *smtp.Config) { c.TLS = smtp.StartTLS }, false},
		"certificate of another":  {mode{starttls: true}, func(c *smtp.Config) { c.TLS = smtp.StartTLS; c.TLSConfig = nil }, false},
		"wrong password": {
			mode{starttls: true, auth: true},
			func(c *smtp.Config) { c.TLS = smtp.StartTLS; login(c); c.Password = "wrong" }, false,
		},
		"login is required":          {mode{auth: true}, nil, false},
		"no server":                  {mode{}, func(c *smtp.Config) { c.Port = 1 }, false},
		"tls to a server without it": {mode{}, func(c *smtp.Config) { c.TLS = smtp.ImplicitTLS }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, tc.mode)
			err := provider(t, s, tc.change).Send(t.Context(), mail("id"))
			_, taken := s.count()
			if tc.ok {
				if err != nil || taken != 1 {
					t.Fatalf("%d mails, %v", taken, err)
				}
				if got := s.mails[0]; s.rcpts[0] != "o'hara+x@example.com" || !strings.Contains(got, "Message-ID: <id@example.com>") ||
					!strings.Contains(got, "Gr=C3=BC=C3=9Fe") || !strings.Contains(got, "text\r\n.\r\nmore") {
					t.Fatalf("to %v: %s", s.rcpts, got)
				}
				return
			}
			// The server fails, not the mail: the sender waits for it.
			_, refused := errors.AsType[*mails.RefusedError](err)
			_, deferred := errors.AsType[*mails.DeferredError](err)
			if err == nil || refused || deferred || taken != 0 {
				t.Fatalf("%d mails, %v", taken, err)
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

func TestEveryWayToLogIn(t *testing.T) {
	for _, mechanisms := range [][]string{{sasl.Plain}, {sasl.Login}, {"CRAM-MD5"}, {sasl.Login, sasl.Plain}, {"GSSAPI", sasl.Plain}} {
		for _, given := range []string{password, "wrong"} {
			s := start(t, mode{starttls: true, auth: true})
			s.mechanisms = mechanisms
			err := provider(t, s, func(c *smtp.Config) { c.TLS, c.Username, c.Password = smtp.StartTLS, user, given }).Send(t.Context(), mail("id"))
			if _, mails := s.count(); (given == password) != (err == nil && mails == 1) {
				t.Errorf("%v with %q: %d mails, %v", mechanisms, given, mails, err)
			}
			if err != nil && strings.Contains(err.Error(), given) {
				t.Errorf("%v: the password is in the error: %v", mechanisms, err)
			}
		}
	}
	// No mechanism is supported: the server counts as away, and the password is not sent.
	s := start(t, mode{starttls: true, auth: true})
	s.mechanisms = []string{"GSSAPI"}
	if err := provider(t, s, func(c *smtp.Config) { c.TLS, c.Username, c.Password = smtp.StartTLS, user, password }).Send(t.Context(),
		mail("id")); err == nil {
		t.Error("logged in by GSSAPI")
	}
}

func TestBouncesComeBackToTheDefaultSender(t *testing.T) {
	s := start(t, mode{})
	m := mail("id")
	m.From = stdmail.Address{Address: "no-reply@customer.example"}
	if err := provider(t, s, nil).Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if s.froms[0] != "no-reply@example.com" || !strings.Contains(s.mails[0], "From: <no-reply@customer.example>") ||
		!strings.Contains(s.mails[0], "Message-ID: <id@example.com>") {
		t.Errorf("from %v: %s", s.froms, s.mails[0])
	}
}

func TestReplies(t *testing.T) {
	none := gosmtp.NoEnhancedCode
	for _, tc := range []struct {
		code     int
		enhanced gosmtp.EnhancedCode
		want     string
	}{
		{550, gosmtp.EnhancedCode{5, 1, 1}, "refused"},
		{550, gosmtp.EnhancedCode{5, 2, 1}, "refused"},
		{552, gosmtp.EnhancedCode{5, 3, 4}, "refused"},
		{550, gosmtp.EnhancedCode{5, 4, 1}, "refused"},
		{554, gosmtp.EnhancedCode{5, 6, 0}, "refused"},
		{504, gosmtp.EnhancedCode{5, 5, 2}, "doubtful"},
		{554, gosmtp.EnhancedCode{5, 7, 1}, "doubtful"},
		{550, gosmtp.EnhancedCode{5, 7, 26}, "doubtful"},
		{550, gosmtp.EnhancedCode{5, 4, 5}, "doubtful"},
		{530, gosmtp.EnhancedCode{5, 7, 0}, "doubtful"},
		{550, gosmtp.EnhancedCode{5, 1, 7}, "doubtful"},
		{550, gosmtp.EnhancedCode{5, 1, 8}, "doubtful"},
		{550, gosmtp.EnhancedCode{5, 3, 2}, "doubtful"},
		{550, gosmtp.EnhancedCode{5, 0, 0}, "doubtful"},
		{552, gosmtp.EnhancedCode{5, 0, 0}, "refused"},
		{504, none, "doubtful"},
		{530, none, "doubtful"},
		{535, none, "doubtful"},
		{550, none, "doubtful"},
		{554, none, "doubtful"},
		{551, none, "refused"},
		{552, none, "refused"},
		{553, none, "refused"},
		{556, none, "refused"},
		{450, gosmtp.EnhancedCode{4, 7, 1}, "deferred"},
		{452, none, "deferred"},
		{421, gosmtp.EnhancedCode{4, 7, 0}, "away"},
	} {
		for _, step := range []string{"mail", "rcpt", "data"} {
			code, want := tc.code, tc.want
			switch {
			case code == 421 && step != "mail":
				want = "deferred" // the error may concern this mail alone
			case code >= 500 && step == "mail":
				want = "away" // a limit, or a rejected sender: the error concerns all mails
			}
			s := start(t, mode{})
			p := provider(t, s, nil)
			s.reply = func(at string) error {
				if at == step {
					// The text decides nothing.
					return &gosmtp.SMTPError{Code: code, EnhancedCode: tc.enhanced, Message: "not o'hara+x@example.com, 5.1.1, 5.7.1"}
				}
				return nil
			}
			err := p.Send(t.Context(), mail("id"))
			got := "away"
			if _, ok := errors.AsType[*mails.RefusedError](err); ok {
				got = "refused"
			} else if _, ok := errors.AsType[*mails.DeferredError](err); ok {
				got = "deferred"
			} else if _, ok := errors.AsType[*mails.DoubtfulError](err); ok {
				got = "doubtful"
			}
			if err == nil || got != want {
				t.Errorf("%d %v at %s: %s (%v), want %s", code, tc.enhanced, step, got, err, want)
			}
			if want != "away" && (strings.Contains(err.Error(), "@") || !strings.Contains(err.Error(), strconv.Itoa(code))) {
				t.Errorf("%d at %s: %v", code, step, err)
			}
			// The next mail is accepted.
			s.mu.Lock()
			s.reply = nil
			s.mu.Unlock()
			if err := p.Send(t.Context(), mail("next")); err != nil {
				t.Errorf("after %d at %s: %v", code, step, err)
			}
		}
	}
}

// Servers that refuse names without a dot, such as a pod's, get the sender's domain or a name that was set.
func TestHello(t *testing.T) {
	for set, want := range map[string]string{"": "example.com", "mail.example.org": "mail.example.org"} {
		s := start(t, mode{})
		if err := provider(t, s, func(c *smtp.Config) { c.Hello = set }).Send(t.Context(), mail("id")); err != nil {
			t.Fatal(err)
		}
		if s.hello != want {
			t.Errorf("EHLO %s, want %s", s.hello, want)
		}
	}
}

// A server that closes the connection over one mail does not delay the others.
func TestHangUps(t *testing.T) {
	for _, step := range []string{"rcpt", "data"} {
		s := start(t, mode{})
		p := provider(t, s, nil)
		s.reply = func(at string) error {
			if at == step {
				for c := range s.open {
					_ = c.Conn().Close()
				}
			}
			return nil
		}
		err := p.Send(t.Context(), mail("id"))
		if _, ok := errors.AsType[*mails.DeferredError](err); !ok || strings.Contains(err.Error(), "@") {
			t.Errorf("hung up at %s: %v", step, err)
		}
	}
}

func TestConnectionsAreKept(t *testing.T) {
	s := start(t, mode{})
	p := provider(t, s, nil)
	for range 20 {
		if err := p.Send(t.Context(), mail("id")); err != nil {
			t.Fatal(err)
		}
	}
	if sessions, mails := s.count(); sessions != 1 || mails != 20 {
		t.Fatalf("%d connections for %d mails", sessions, mails)
	}
	// The server closes idle connections.
	s.hangUp()
	if err := p.Send(t.Context(), mail("id")); err != nil {
		t.Fatal(err)
	}
	if sessions, mails := s.count(); sessions != 2 || mails != 21 {
		t.Fatalf("%d connections for %d mails", sessions, mails)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := p.Send(t.Context(), mail("id")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, mails := s.count(); mails != 71 {
		t.Fatalf("%d mails", mails)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for name, cfg := range map[string]smtp.Config{
		"no host":                 {Port: 25, TLS: smtp.NoTLS},
		"no port":                 {Host: "localhost", TLS: smtp.NoTLS},
		"no such TLS":             {Host: "localhost", Port: 25, TLS: "perhaps"},
		"credentials without TLS": {Host: "localhost", Port: 25, TLS: smtp.NoTLS, Username: "u"},
	} {
		if _, err := smtp.New(cfg); err == nil {
			t.Error(name)
		}
	}
}
