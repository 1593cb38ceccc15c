package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"waitlist.internal/tools/internal/mailfile"
)

// mailTimeout bounds the wait for a mail on a busy machine. The contract's two seconds apply to an idle one.
const mailTimeout = time.Minute

// Mail is a received mail.
type Mail = mailfile.Mail

// Mails returns the mails to an address, oldest first.
func (s *Server) Mails(to string) ([]Mail, error) {
	return s.mails(func(m Mail) bool { return m.To == to })
}

// mails returns the mails that keep accepts, oldest first.
func (s *Server) mails(keep func(Mail) bool) ([]Mail, error) {
	all, err := mailfile.All(os.DirFS(s.MailDir))
	return slices.DeleteFunc(all, func(m Mail) bool { return !keep(m) }), err
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
