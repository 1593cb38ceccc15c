package maildir_test

import (
	"os"
	"path/filepath"
	"testing"

	"waitlist.internal/services/messaging/providers/maildir"
	"waitlist.internal/services/messaging/providers/providertest"
)

func TestProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Fixture {
		t.Helper()
		dir := t.TempDir()
		p, err := maildir.New(dir, providertest.From)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		seen := map[string]bool{}
		var out []providertest.Received
		return providertest.Fixture{
			Provider: p, Once: true,
			Fail: func(providertest.Failure) bool { return false },
			Received: func() []providertest.Received {
				entries, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if seen[e.Name()] {
						continue
					}
					raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
					if err != nil {
						t.Fatal(err)
					}
					mail, err := providertest.Parse(string(raw))
					if err != nil {
						t.Fatal(err)
					}
					seen[e.Name()] = true
					out = append(out, mail)
				}
				return out
			},
		}
	})
}
