// Package maildir is a mail provider that writes each mail to a file, <event id>.eml, for the standalone
// program and tests.
package maildir

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	stdmail "net/mail"
	"os"

	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/eml"
)

// Provider implements mails.Provider.
type Provider struct {
	root *os.Root
	from stdmail.Address
}

// New returns a Provider that writes to dir. It creates dir if necessary.
func New(dir string, from stdmail.Address) (*Provider, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the mail folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the mail folder: %w", err)
	}
	return &Provider{root, from}, nil
}

// Close implements mails.Provider.
func (p *Provider) Close() error { return p.root.Close() }

// Send implements mails.Provider. It does nothing if the file exists, because the mail was sent
// before. Readers of the folder see only complete files, which survive a crash after Send returned nil.
func (p *Provider) Send(_ context.Context, m mails.Mail) error {
	name := m.ID + ".eml"
	if _, err := p.root.Stat(name); err == nil {
		return nil
	}
	msg, err := eml.Build(m, p.from)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := msg.WriteTo(&b); err != nil {
		return fmt.Errorf("format mail: %w", err)
	}
	tmp := "." + name + "." + rand.Text()
	if err := p.write(tmp, b.Bytes()); err != nil {
		return errors.Join(fmt.Errorf("write mail: %w", err), p.remove(tmp))
	}
	if err := p.root.Rename(tmp, name); err != nil {
		return errors.Join(fmt.Errorf("write mail: %w", err), p.remove(tmp))
	}
	dir, err := p.root.Open(".")
	if err != nil {
		return fmt.Errorf("sync the mail folder: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (p *Provider) write(name string, b []byte) error {
	f, err := p.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (p *Provider) remove(name string) error {
	if err := p.root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
