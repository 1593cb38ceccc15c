package maildir_test

import (
	"errors"
	stdmail "net/mail"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/maildir"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mail(id string) mails.Mail {
	return mails.Mail{ID: id, To: "a@example.com", Subject: "s", Text: "text", HTML: "<p>html</p>", Date: time.Now()}
}

func TestOneWholeFilePerMail(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	p, err := maildir.New(dir, stdmail.Address{Address: "no-reply@localhost"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	var wg sync.WaitGroup
	for range 8 { // redeliveries, some of them by another process at the same time
		wg.Go(func() {
			if err := p.Send(t.Context(), mail("0197f0c4")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := p.Send(t.Context(), mail("0197f0c5")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "0197f0c4.eml" || entries[1].Name() != "0197f0c5.eml" {
		t.Fatalf("%v, %v", entries, err)
	}
	first, err := os.ReadFile(filepath.Join(dir, "0197f0c4.eml"))
	if err != nil || !strings.Contains(string(first), "Message-ID: <0197f0c4@localhost>") {
		t.Fatalf("%s, %v", first, err)
	}
	if err := p.Send(t.Context(), mails.Mail{ID: "0197f0c4", To: "b@example.com"}); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "0197f0c4.eml")); err != nil || string(again) != string(first) {
		t.Fatalf("a redelivery changed the mail: %s, %v", again, err)
	}
}

func TestNothingOutsideTheFolder(t *testing.T) {
	dir := t.TempDir()
	p, err := maildir.New(filepath.Join(dir, "mail"), stdmail.Address{Address: "no-reply@localhost"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if err := p.Send(t.Context(), mail("../escaped")); err == nil {
		t.Error("a name with a path was accepted")
	}
	if _, err := os.Stat(filepath.Join(dir, "escaped.eml")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
