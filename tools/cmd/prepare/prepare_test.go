// Package prepare_test checks what prepare.sh finds and says; CI's bare machine shows that it installs.
package prepare_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a folder for PATH with programs that print a line each.
func machine(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, says := range programs {
		script := "#!/bin/sh\necho '" + says + "'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// prepare runs the script with nothing but the programs in path, and returns what it printed.
func prepare(t *testing.T, path string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/bash", append([]string{"prepare.sh"}, args...)...)
	cmd.Env = []string{"PATH=" + path}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	bare := machine(t, map[string]string{"cat": "ID=debian"}) // not even ls, so no Postgres is found
	for purposes, want := range map[string]string{
		"run":          "postgresql redis-server",
		"npm":          "npm",
		"test":         "git curl gcc libc6-dev postgresql redis-server pgbouncer chromium npm",
		"test apache":  "git curl gcc libc6-dev postgresql redis-server pgbouncer chromium npm openjdk-17-jre-headless maven",
		"python":       "python3 python3-venv",
		"schemathesis": "curl python3 python3-venv",
		"lab":          "postgresql redis-server iproute2",
		"ci": "git curl gcc libc6-dev postgresql redis-server pgbouncer chromium npm openjdk-17-jre-headless maven " +
			"python3 python3-venv openjdk-17-jdk-headless iproute2 make",
	} {
		out, err := prepare(t, bare, append([]string{"-n"}, strings.Fields(purposes)...)...)
		if got := strings.Join(strings.Fields(out), " "); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", purposes, got, err, want)
		}
	}
	full := map[string]string{"cat": "ID=debian"}
	const programs = "git gcc postgres pgbench pgbouncer redis-server google-chrome npm java javac mvn curl python3 ip make"
	for program := range strings.FieldsSeq(programs) {
		full[program] = ""
	}
	if out, err := prepare(t, machine(t, full), "-n", "ci"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("every program is there, but the script misses %q, %v", out, err)
	}
}

func TestSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	const packages = "postgresql redis-server"
	elsewhere := machine(t, map[string]string{"cat": "ID=fedora", "id": "0"})
	stranger := machine(t, map[string]string{"cat": "ID=debian", "id": "1000", "apt-get": "started"})
	for _, path := range []string{elsewhere, stranger} {
		for purpose, fails := range map[string]bool{"run": false, "lab": true, "test": true} {
			out, err := prepare(t, path, purpose)
			if !strings.Contains(out, packages) || strings.Count(out, "\n") != 1 || strings.Contains(out, "started") || (err != nil) != fails {
				t.Errorf("%s: %q, %v, want one message with %s, fails %t", purpose, out, err, packages, fails)
			}
		}
	}
}
