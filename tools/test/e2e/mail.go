package e2e

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"
)

// mailTimeout bounds the wait for a mail on a busy machine. The contract's two seconds apply to an idle one.
const mailTimeout = 30 * time.Second

// Mail is a received mail.
type Mail struct {
	// From and To are addresses without display names.
	From    string
	To      string
	Subject string
	Header  mail.Header
	// Text and HTML are the bodies, with line breaks as LF.
	Text string
	HTML string
	// Raw is the whole mail.
	Raw []byte

	written time.Time
}

// Links returns the distinct http(s) links of both bodies.
func (m Mail) Links() []*url.URL {
	pattern := regexp.MustCompile(`https?://[^\s"'<>()]+`)
	seen := map[string]bool{}
	var out []*url.URL
	for _, s := range pattern.FindAllString(m.Text+"\n"+html.UnescapeString(m.HTML), -1) {
		if u, err := url.Parse(strings.TrimRight(s, ".,;")); err == nil && !seen[u.String()] {
			seen[u.String()] = true
			out = append(out, u)
		}
	}
	return out
}

// Token returns the token of the first link that has one, or "".
func (m Mail) Token() string {
	for _, u := range m.Links() {
		if token := u.Query().Get("token"); token != "" {
			return token
		}
	}
	return ""
}

// Mails returns the mails to an address, oldest first.
func (s *Server) Mails(to string) ([]Mail, error) {
	return s.mails(func(m Mail) bool { return m.To == to })
}

// mails returns the mails that keep accepts, oldest first.
func (s *Server) mails(keep func(Mail) bool) ([]Mail, error) {
	var out []Mail
	err := filepath.WalkDir(s.MailDir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // nothing sent yet, or a file was just renamed
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".eml" {
			return err
		}
		m, err := readMail(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if keep(m) {
			out = append(out, m)
		}
		return nil
	})
	sort.SliceStable(out, func(i, j int) bool { return out[i].written.Before(out[j].written) })
	return out, err
}

// AwaitMails waits until at least n mails to an address have arrived.
func (s *Server) AwaitMails(t testing.TB, to string, n int) []Mail {
	t.Helper()
	return awaitMails(t, s, to, n)
}

// mailbox is a place where mails arrive.
type mailbox interface {
	// Mails returns the mails to an address, oldest first.
	Mails(to string) ([]Mail, error)
}

func awaitMails(t testing.TB, box mailbox, to string, n int) []Mail {
	t.Helper()
	var got []Mail
	Await(t, mailTimeout, fmt.Sprintf("%d mails to %s", n, to), func() bool {
		var err error
		if got, err = box.Mails(to); err != nil {
			t.Fatal(err)
		}
		return len(got) >= n
	})
	return got
}

func readMail(path string) (Mail, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Mail{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return Mail{}, err
	}
	m, err := parseMail(raw)
	m.written = info.ModTime()
	return m, err
}

// parseMail parses a mail in Internet Message Format.
func parseMail(raw []byte) (Mail, error) {
	msg, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		return Mail{}, fmt.Errorf("parse the mail: %w", err)
	}
	m := Mail{Header: msg.Header, Raw: raw}
	if m.Subject, err = new(mime.WordDecoder).DecodeHeader(msg.Header.Get("Subject")); err != nil {
		return Mail{}, fmt.Errorf("decode the subject: %w", err)
	}
	for name, into := range map[string]*string{"From": &m.From, "To": &m.To} {
		a, err := mail.ParseAddress(msg.Header.Get(name))
		if err != nil {
			return Mail{}, fmt.Errorf("%s: %w", name, err)
		}
		*into = a.Address
	}
	return m, m.read(msg.Header.Get("Content-Type"), msg.Header.Get("Content-Transfer-Encoding"), msg.Body)
}

// read adds a part, or the parts nested in it.
func (m *Mail) read(contentType, encoding string, body io.Reader) error {
	if contentType == "" {
		contentType = "text/plain"
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return fmt.Errorf("parse the content type %q: %w", contentType, err)
	}
	if strings.HasPrefix(media, "multipart/") {
		parts := multipart.NewReader(body, params["boundary"])
		for {
			p, err := parts.NextRawPart()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read a part: %w", err)
			}
			if err := m.read(p.Header.Get("Content-Type"), p.Header.Get("Content-Transfer-Encoding"), p); err != nil {
				return err
			}
		}
	}
	switch strings.ToLower(encoding) {
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("read a body: %w", err)
	}
	content := strings.ReplaceAll(string(b), "\r\n", "\n")
	switch media {
	case "text/plain":
		m.Text += content
	case "text/html":
		m.HTML += content
	}
	return nil
}
