package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// workspace is a small one: a service above a library, an end-to-end test that
// starts the service's program, and a test that reads a chart.
func workspace() []*goPackage {
	at := func(path string, p goPackage) *goPackage {
		p.ImportPath, p.Dir = modules+path, "/w/"+path
		module, _, _ := strings.Cut(path, "/")
		if module == "services" {
			module = "services/billing"
		}
		p.Module.Dir = "/w/" + module
		p.GoFiles = []string{"x.go"}
		return &p
	}
	tests := []string{"x_test.go"}
	return []*goPackage{
		at("libs/pg", goPackage{TestGoFiles: tests}),
		at("libs/testenv", goPackage{Imports: []string{modules + "libs/pg"}, TestGoFiles: tests}),
		at("libs/token", goPackage{Imports: []string{"fmt"}, XTestGoFiles: tests, XTestImports: []string{modules + "libs/testenv"}}),
		at("libs/words", goPackage{TestGoFiles: tests, EmbedFiles: []string{"words.md"}, TestEmbedFiles: []string{"testdata/a.txt"}}),
		at("services/billing", goPackage{Imports: []string{modules + "libs/token"}, TestGoFiles: tests}),
		at("services/billing/postgres", goPackage{Imports: []string{modules + "libs/pg"}}),
		at("services/billing/cmd/billing", goPackage{Imports: []string{modules + "services/billing", modules + "services/billing/postgres"}}),
		at("tools/test/e2e", goPackage{programs: []string{modules + "services/"}, TestGoFiles: tests}),
		at("tools/test/chaos", goPackage{Imports: []string{modules + "tools/test/e2e"}, TestGoFiles: tests}),
		at("tools/test/charts", goPackage{TestGoFiles: tests, testNames: map[string]bool{
			"charts": true, "README.md": true, "Makefile": true, "go.mod": true,
		}}),
		at("tools/stripesim", goPackage{TestGoFiles: tests}),
	}
}

func TestReached(t *testing.T) {
	t.Parallel()
	all := []string{
		"libs/pg", "libs/testenv", "libs/token", "libs/words", "services/billing",
		"tools/test/chaos", "tools/test/charts", "tools/test/e2e", "tools/stripesim",
	}
	programs := []string{"tools/test/chaos", "tools/test/e2e"}
	for _, tt := range []struct {
		name    string
		changed []string
		want    []string
	}{
		{"nothing", nil, nil},
		{
			"a package reaches its importers and the tests that import it",
			[]string{"libs/pg/pg.go"},
			append([]string{"libs/pg", "libs/testenv", "libs/token"}, programs...),
		},
		{"what only tests import reaches no importer of theirs", []string{"libs/testenv/x.go"}, []string{"libs/testenv", "libs/token"}},
		{"a test reaches its own package", []string{"libs/pg/pg_test.go"}, []string{"libs/pg"}},
		{"a program reaches the tests that start it", []string{"services/billing/cmd/billing/main.go"}, programs},
		{"SQL", []string{"services/billing/postgres/migrations/00001_init.sql"}, programs},
		{"a golden file", []string{"tools/stripesim/testdata/golden.md"}, []string{"tools/stripesim"}},
		{"an embedded document", []string{"libs/words/words.md"}, []string{"libs/words"}},
		{"an embedded file of a test", []string{"libs/words/testdata/a.txt"}, []string{"libs/words"}},
		{"a module", []string{"services/billing/go.mod"}, append([]string{"services/billing"}, programs...)},
		{"a chart", []string{"charts/waitlist/values.yaml"}, []string{"tools/test/charts"}},
		{"a document that a test reads", []string{"README.md"}, []string{"tools/test/charts"}},
		{"a document", []string{"docs/architecture.md", "services/billing/NOTES.md"}, nil},
		{"the workspace", []string{"go.work"}, all},
		{"the Makefile", []string{"Makefile"}, all},
		{"a pinned tool", []string{"tools/buildtools/golangci/go.mod"}, all},
		{"a deleted package", []string{"services/billing/gone/gone.go"}, append([]string{"services/billing"}, programs...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := reached(workspace(), "/w", tt.changed)
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], modules)
			}
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s reach %s, want %s", tt.changed, got, tt.want)
			}
		})
	}
}

// TestReachedOfThisWorkspace holds the mapping against what go list says of this
// repository.
func TestReachedOfThisWorkspace(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	packages, err := listPackages(t.Context(), root, "work")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ changed, runs, spares string }{
		{
			"services/billing/postgres/migrations/00099_new.sql",
			"tools/test/e2e tools/test/deploy services/billing/app services/billing/postgres", "services/signup libs/pg",
		},
		{"services/signup/rank.go", "services/signup tools/test/chaos tools/test/e2e", "services/billing libs/kafka"},
		{"libs/ratelimit/bucket.lua", "libs/ratelimit services/account/http tools/test/e2e", "libs/token"},
		{"proto/openapi/openapi.yaml", "tools/test/e2e", "libs/token"},
		{"services/messaging/app/app.go", "services/messaging/app tools/test/charts", "services/messaging services/messaging/smtp"},
		{"tools/cmd/mcp/main.go", "tools/test/clients", "tools/test/e2e"},
		{"services/sqlc.yaml", "libs/token tools/test/charts", ""},
		{"charts/waitlist/values.yaml", "tools/test/charts", "tools/test/e2e libs/token"},
		{"k8s/postgres/roles.sql", "tools/test/deploy", "tools/test/e2e"},
	} {
		got := reached(packages, root, []string{tt.changed})
		for want := range strings.FieldsSeq(tt.runs) {
			if !slices.Contains(got, modules+want) {
				t.Errorf("%s does not reach %s", tt.changed, want)
			}
		}
		for not := range strings.FieldsSeq(tt.spares) {
			if slices.Contains(got, modules+not) {
				t.Errorf("%s reaches %s", tt.changed, not)
			}
		}
	}
}

func TestChangedSince(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	commit := func(message string) { t.Helper(); git("add", "-A"); git("commit", "-q", "-m", message) }
	git("init", "-q", "-b", "main")
	for _, name := range []string{"committed", "edited", "moved", "same", "elsewhere"} {
		write(name, name)
	}
	write(".gitignore", "ignored\n")
	commit("first")
	git("switch", "-q", "-c", "branch")
	write("committed", "new")
	commit("second")
	git("switch", "-q", "main")
	write("elsewhere", "another's change")
	commit("third")
	git("switch", "-q", "branch")
	git("mv", "moved", "here")
	write("edited", "new")
	write("untracked", "new")
	write("ignored", "new")
	got, err := changedSince(t.Context(), dir, "main")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"committed", "edited", "here", "moved", "untracked"}; !slices.Equal(got, want) {
		t.Errorf("changed are %q, want %q", got, want)
	}
	if got, err := changedSince(t.Context(), dir, "HEAD^{/third}"); err == nil {
		t.Errorf("an unknown revision: %q", got)
	}
}
