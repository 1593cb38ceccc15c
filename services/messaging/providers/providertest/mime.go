package providertest

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	stdmail "net/mail"
	"strings"
)

// Parse decodes a mail in the Internet message format.
func Parse(raw string) (Received, error) {
	m, err := stdmail.ReadMessage(strings.NewReader(raw))
	if err != nil {
		return Received{}, fmt.Errorf("read the mail: %w", err)
	}
	r := Received{Header: map[string]string{}}
	for name := range m.Header {
		r.Header[name] = m.Header.Get(name)
	}
	from, err := m.Header.AddressList("From")
	if err != nil {
		return r, fmt.Errorf("sender: %w", err)
	}
	r.From = *from[0]
	to, err := m.Header.AddressList("To")
	if err != nil {
		return r, fmt.Errorf("recipients: %w", err)
	}
	for _, a := range to {
		r.To = append(r.To, a.Address)
	}
	if r.Subject, err = new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")); err != nil {
		return r, fmt.Errorf("subject: %w", err)
	}
	return r, r.part(m.Header.Get("Content-Type"), m.Header.Get("Content-Transfer-Encoding"), m.Body)
}

// part reads a part and its nested parts.
func (r *Received) part(contentType, encoding string, body io.Reader) error {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return fmt.Errorf("content type: %w", err)
	}
	if strings.HasPrefix(media, "multipart/") {
		for parts := multipart.NewReader(body, params["boundary"]); ; {
			p, err := parts.NextRawPart()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("parts: %w", err)
			}
			if err := r.part(p.Header.Get("Content-Type"), p.Header.Get("Content-Transfer-Encoding"), p); err != nil {
				return err
			}
		}
	}
	if encoding == "quoted-printable" {
		body = quotedprintable.NewReader(body)
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("%s: %w", media, err)
	}
	switch media {
	case "text/plain":
		r.Text = string(b)
	case "text/html":
		r.HTML = string(b)
	default:
		return fmt.Errorf("unexpected part of type %s", media)
	}
	return nil
}
