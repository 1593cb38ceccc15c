// Package mailfile reads mails in the Internet Message Format, as the maildir provider
// writes them.
package mailfile

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
	"regexp"
	"sort"
	"strings"
	"time"
)

// Extension ends the names of the files.
const Extension = ".eml"

// Mail is a mail.
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
	// Name is the file's, without the extension; Written is when it was written. Both are
	// empty for a mail that is no file.
	Name    string
	Written time.Time
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

// All returns the mails of a folder, oldest first. A folder that is not there has none.
func All(folder fs.FS) ([]Mail, error) {
	entries, err := fs.ReadDir(folder, ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing sent yet
	}
	if err != nil {
		return nil, fmt.Errorf("list the mails: %w", err)
	}
	var out []Mail
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), Extension)
		if !ok || e.IsDir() {
			continue
		}
		m, err := Read(folder, name)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Written.Before(out[j].Written) })
	return out, nil
}

// Read returns the mail of that name. The error is fs.ErrNotExist if there is none.
func Read(folder fs.FS, name string) (Mail, error) {
	path := name + Extension
	info, err := fs.Stat(folder, path)
	if err != nil {
		return Mail{}, fmt.Errorf("find the mail: %w", err)
	}
	raw, err := fs.ReadFile(folder, path)
	if err != nil {
		return Mail{}, fmt.Errorf("read the mail: %w", err)
	}
	m, err := Parse(raw)
	if err != nil {
		return Mail{}, fmt.Errorf("%s: %w", path, err)
	}
	m.Name, m.Written = name, info.ModTime()
	return m, nil
}

// Parse parses a mail in Internet Message Format.
func Parse(raw []byte) (Mail, error) {
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
