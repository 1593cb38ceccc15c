package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"gopkg.in/yaml.v3"

	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/seal"
	"waitlist.internal/libs/token"
	"waitlist.internal/services/account"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func printed(t *testing.T, args ...string) map[string]secret {
	t.Helper()
	var out bytes.Buffer
	if err := run(args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	all := map[string]secret{}
	for d := yaml.NewDecoder(&out); ; {
		var s secret
		err := d.Decode(&s)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[s.Metadata.Name] = s
	}
}

// TestKeys: what is printed is what the services take, and only they get it.
func TestKeys(t *testing.T) {
	secrets := printed(t, "-namespace", "ns")
	if len(secrets) != 8 {
		t.Fatalf("%d secrets", len(secrets))
	}
	keys, err := rpc.ParseKeys(secrets["waitlist"].StringData["SERVICE_KEYS"])
	if err != nil || len(keys) != 7 {
		t.Errorf("SERVICE_KEYS: %d, %v", len(keys), err)
	}
	for name, s := range secrets {
		if s.APIVersion != "v1" || s.Kind != "Secret" || s.Metadata.Namespace != "ns" {
			t.Errorf("%s: %+v", name, s.Metadata)
		}
		service := strings.TrimPrefix(name, "waitlist-")
		for variable, value := range s.StringData {
			var err error
			switch variable {
			case "SERVICE_KEY":
				_, err = rpc.ParseSeed(value)
			case "TOKEN_KEYS", "ACCOUNT_TOKEN_KEYS":
				_, err = token.ParseRing(value)
			case "SEAL_KEYS":
				_, err = seal.ParseRing(value)
			case "JWT_KEYS":
				_, err = account.ParseKeys(value)
			}
			if err != nil {
				t.Errorf("%s %s: %v", name, variable, err)
			}
		}
		if _, ok := s.StringData["JWT_KEYS"]; ok != (service == "account") {
			t.Errorf("%s has JWT_KEYS: %v", name, ok)
		}
		if _, ok := s.StringData["TOKEN_KEYS"]; ok != (service == "signup" || service == "messaging") {
			t.Errorf("%s has TOKEN_KEYS: %v", name, ok)
		}
		if _, ok := s.StringData["ACCOUNT_TOKEN_KEYS"]; ok != (service == "account" || service == "messaging") {
			t.Errorf("%s has ACCOUNT_TOKEN_KEYS: %v", name, ok)
		}
		if _, ok := s.StringData["SERVICE_KEY"]; ok != (name != "waitlist") {
			t.Errorf("%s has SERVICE_KEY: %v", name, ok)
		}
	}
}

// TestKept: keys are new in each run, or those of a folder.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	key := func(args ...string) string { return printed(t, args...)["waitlist-account"].StringData["ADDRESS_KEY"] }
	if first := key("-keys", dir); first != key("-keys", dir) {
		t.Error("a folder gave another key")
	}
	if first := key(); first == key() {
		t.Error("two runs gave the same key")
	}
}

// TestFolderFromBeforeTheAccountRing: its links go on working. The key that signed them
// stays first, since old programs do not know another.
func TestFolderFromBeforeTheAccountRing(t *testing.T) {
	dir := t.TempDir()
	former := printed(t, "-keys", dir)["waitlist-messaging"].StringData
	if former["ACCOUNT_TOKEN_KEYS"] == former["TOKEN_KEYS"] || strings.Contains(former["ACCOUNT_TOKEN_KEYS"], ",") {
		t.Errorf("a new folder has %d keys", strings.Count(former["ACCOUNT_TOKEN_KEYS"], ":"))
	}
	if err := os.Remove(filepath.Join(dir, "account-token-keys")); err != nil {
		t.Fatal(err)
	}
	ring, fresh, ok := strings.Cut(printed(t, "-keys", dir)["waitlist-account"].StringData["ACCOUNT_TOKEN_KEYS"], ",")
	if !ok || ring != former["TOKEN_KEYS"] || !strings.Contains(fresh, "-a1:") {
		t.Errorf("%d keys", strings.Count(ring+fresh, ":"))
	}
}

func TestFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secrets.env")
	write := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# all\nREDIS_URL=rediss://r?a=b\n\nadmin-analytics.POSTGRES_URL=postgres://x\n")
	secrets := printed(t, "-from", file)
	if got := secrets["waitlist"].StringData["REDIS_URL"]; got != "rediss://r?a=b" {
		t.Errorf("REDIS_URL %q", got)
	}
	if got := secrets["waitlist-admin-analytics"].StringData["POSTGRES_URL"]; got != "postgres://x" {
		t.Errorf("POSTGRES_URL %q", got)
	}
	for name, line := range map[string]string{
		"no value": "SECRET", "another service": "other.SECRET=1", "no variable": "se-cret=1",
	} {
		t.Run(name, func(t *testing.T) {
			write("A=1\n" + line + "\n")
			err := run([]string{"-from", file}, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), "line 2") || strings.Contains(err.Error(), line) {
				t.Errorf("%v", err)
			}
		})
	}
}
