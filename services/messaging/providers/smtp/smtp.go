// Package smtp is the mail provider for SMTP servers. It keeps connections open between mails.
package smtp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdmail "net/mail"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wneessen/go-mail"
	gosmtp "github.com/wneessen/go-mail/smtp"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/eml"
)

const (
	// dialTimeout limits each of the up to three steps until a connection is ready.
	dialTimeout = 6 * time.Second
	// mailTimeout limits one mail: its commands, and the server's answer to its text. Servers may
	// inspect the text for long, and a mail whose answer is not awaited arrives twice.
	mailTimeout = 40 * time.Second
	// quick is how soon a kept connection must turn out to be closed for a new one to be tried, so
	// that both attempts together take less than a minute.
	quick = time.Second
	// idle is how long an unused connection is kept; servers close theirs after a few minutes.
	idle = 20 * time.Second
)

// The values of Config.TLS.
const (
	// StartTLS refuses servers without STARTTLS.
	StartTLS = "starttls"
	// ImplicitTLS speaks TLS from the first byte (port 465).
	ImplicitTLS = "tls"
	// NoTLS is for servers on the same machine.
	NoTLS = "none"
)

// Config configures a Provider.
type Config struct {
	Host string
	Port int
	// Username and Password are optional. They are used with the server's strongest mechanism.
	Username, Password string
	TLS                string
	From               stdmail.Address
	// Hello is our name in EHLO; empty means the domain of From. Servers refuse names without a dot,
	// such as a pod's.
	Hello string
	// Connections is how many unused connections are kept; 0 means 4.
	Connections int
	// TLSConfig replaces the default one (system roots, TLS 1.2 and up).
	TLSConfig *tls.Config
}

// Provider implements mails.Provider.
type Provider struct {
	// dialer connects and client sends, because their timeouts differ.
	dialer, client *mail.Client
	from           stdmail.Address
	size           int

	mu     sync.Mutex
	closed bool
	idle   []conn
}

type conn struct {
	*gosmtp.Client
	since time.Time
}

// New validates cfg. The Provider connects with the first mail.
func New(cfg Config) (*Provider, error) {
	if cfg.Host == "" || cfg.Port < 1 || cfg.Port > 65535 {
		return nil, errors.New("set SMTP_HOST and a valid SMTP_PORT")
	}
	opts := []mail.Option{mail.WithPort(cfg.Port), mail.WithHELO(cmp.Or(cfg.Hello, emailaddr.Domain(cfg.From.Address), "localhost"))}
	switch cfg.TLS {
	case StartTLS:
		opts = append(opts, mail.WithTLSPolicy(mail.TLSMandatory))
	case ImplicitTLS:
		opts = append(opts, mail.WithSSL())
	case NoTLS:
		opts = append(opts, mail.WithTLSPolicy(mail.NoTLS))
		if cfg.Username != "" {
			return nil, errors.New("SMTP credentials require TLS")
		}
	default:
		return nil, fmt.Errorf("set SMTP_TLS to %s, %s or %s", StartTLS, ImplicitTLS, NoTLS)
	}
	if cfg.TLSConfig != nil {
		opts = append(opts, mail.WithTLSConfig(cfg.TLSConfig))
	}
	if cfg.Username != "" {
		opts = append(opts, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover),
			mail.WithUsername(cfg.Username), mail.WithPassword(cfg.Password))
	}
	dialer, err := mail.NewClient(cfg.Host, append(opts, mail.WithTimeout(dialTimeout))...)
	if err != nil {
		return nil, fmt.Errorf("SMTP: %w", err)
	}
	// A NOOP before each mail would cost a round trip; the first command tells as well whether the
	// connection is alive.
	client, err := mail.NewClient(cfg.Host, mail.WithTimeout(mailTimeout), mail.WithoutNoop())
	if err != nil {
		return nil, fmt.Errorf("SMTP: %w", err)
	}
	return &Provider{dialer: dialer, client: client, from: cfg.From, size: cmp.Or(cfg.Connections, 4)}, nil
}

// Send implements mails.Provider.
func (p *Provider) Send(ctx context.Context, m mails.Mail) error {
	msg, err := eml.Build(m, p.from)
	if err != nil {
		return err
	}
	if c := p.take(); c != nil {
		began := time.Now()
		err := p.send(c, msg)
		if !closed(err) || time.Since(began) > quick {
			return outcome(err)
		}
	}
	c, err := p.dialer.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return fmt.Errorf("connect to the SMTP server: %w", err)
	}
	return outcome(p.send(c, msg))
}

// send sends over c, and keeps c if it is still usable.
func (p *Provider) send(c *gosmtp.Client, msg *mail.Msg) error {
	err := p.client.SendWithSMTPClient(c, msg)
	if err == nil && p.keep(c) {
		return nil
	}
	_ = p.client.CloseWithSMTPClient(c)
	if msg.IsDelivered() {
		// The failure came after the server had accepted the mail.
		return nil
	}
	return err
}

// take returns a kept connection, or nil.
func (p *Provider) take() *gosmtp.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		c := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if time.Since(c.since) < idle {
			return c.Client
		}
		_ = p.client.CloseWithSMTPClient(c.Client)
	}
	return nil
}

func (p *Provider) keep(c *gosmtp.Client) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= p.size {
		return false
	}
	p.idle = append(p.idle, conn{c, time.Now()})
	return true
}

// Close implements mails.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		// The server may have closed the connection already.
		_ = p.client.CloseWithSMTPClient(c.Client)
	}
	p.idle = nil
	return nil
}

// closed reports whether a kept connection turned out to be closed or unusable before anything was sent.
func closed(err error) bool {
	se, ok := errors.AsType[*mail.SendError](err)
	if !ok {
		return false
	}
	code := se.ErrorCode()
	return se.Reason == mail.ErrConnCheck || se.Reason == mail.ErrSMTPMailFrom && (code == 421 || code < 400)
}

// statusPattern is an enhanced status code at the beginning of a reply's text.
var statusPattern = regexp.MustCompile(`^[45]\.\d{1,3}\.\d{1,3}\b`)

// enhanced returns the reply's enhanced status code, or "". The library finds it only if the server announces
// the extension, which many that use it do not, and anywhere in the text.
func enhanced(e *mail.SendError) string {
	_, text, _ := strings.Cut(e.Error(), ": "+strconv.Itoa(e.ErrorCode())+" ")
	return statusPattern.FindString(strings.TrimPrefix(text, `"`))
}

// aboutMail reports whether a refusal certainly concerns its recipient or its content, and not us. It looks
// at the enhanced status code (RFC 3463) or, where there is none, at the reply's code (RFC 5321), never at
// the text.
func aboutMail(code int, status string) bool {
	switch status := strings.Split(status, "."); {
	case len(status) != 3, status[1] == "0":
		// 550 and 554 are unknown mailboxes for some servers, and relaying that is denied for others.
		return code == 551 || code == 552 || code == 553 || code == 556
	case status[1] == "1": // the address, but for those of the sender
		return status[2] != "7" && status[2] != "8"
	case status[1] == "3":
		return status[2] == "4" // the mail is too big
	case status[1] == "4": // the way to the recipient, but for congestion and quotas
		return status[2] != "5"
	default: // 2 is the mailbox, 6 the content, 5 the protocol, 7 the policy
		return status[1] == "2" || status[1] == "6"
	}
}

// outcome tells failures of the mail from failures of the server. Reasons contain only the codes of the
// reply, because its text and the library's often contain the address.
func outcome(err error) error {
	se, ok := errors.AsType[*mail.SendError](err)
	if err == nil || !ok {
		return err
	}
	code := se.ErrorCode()
	status := enhanced(se)
	reason := strings.TrimSpace(strconv.Itoa(code) + " " + status)
	switch se.Reason {
	case mail.ErrGetSender, mail.ErrGetRcpts, mail.ErrNoUnencoded:
		return &mails.RefusedError{Reason: "the mail is malformed"}
	case mail.ErrSMTPMailFrom, mail.ErrSMTPRcptTo, mail.ErrSMTPData, mail.ErrSMTPDataClose:
		switch {
		case se.Reason != mail.ErrSMTPMailFrom && (code == 421 || code < 400):
			// The connection was lost after the server had seen this mail. The mail may be the
			// cause, so it must not hold up all others. If the server is away, the next
			// connection fails, too.
			return &mails.DeferredError{Reason: "connection lost: " + reason}
		case se.Reason == mail.ErrSMTPMailFrom && code >= 500, code == 421:
			// The server is shutting down, requires a login, or refuses the sender: all other
			// mails would fail, too.
			return fmt.Errorf("SMTP server is not usable: %s", reason)
		case code >= 500 && aboutMail(code, status):
			return &mails.RefusedError{Reason: reason}
		case code >= 500:
			return &mails.DoubtfulError{Reason: reason}
		case code >= 400:
			return &mails.DeferredError{Reason: reason}
		}
	}
	return fmt.Errorf("SMTP server is unavailable: %s: %s", se.Reason, reason)
}
