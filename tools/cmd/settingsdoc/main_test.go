package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, dir, source string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "config.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTable(t *testing.T) {
	t.Parallel()
	dir := write(t, t.TempDir(), "package x\n\ntype Config struct {\n\tBase\n"+
		"\t// How long an attempt may take,\n\t// a|b.\n\tWait int `env:\"WAIT\" envDefault:\"8s\"`\n"+
		"\t// Where the database is.\n\tURL string `env:\"URL,required\" run:\"own server\" deployed:\"required\"`\n"+
		"\t// What it says when nothing is set.\n\tNone string `env:\"NONE\"`\n"+
		"\tIn func() `env:\"-\"`\n\tCode int\n}\n")
	settings, err := read(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := table(settings)
	want := "| Variable | Default | Deployed | Meaning |\n|---|---|---|---|\n" +
		"| `WAIT` | `8s` |  | How long an attempt may take, a\\|b. |\n" +
		"| `URL` | own server | required | Where the database is. |\n" +
		"| `NONE` | – |  | What it says when nothing is set. |\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTableRefuses(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]string{
		"a setting without a comment": "package x\n\ntype Config struct {\n\tURL string `env:\"URL\"`\n}\n",
		"a package without settings":  "package x\n\ntype Config struct{}\n",
		"a file that does not parse":  "package",
	} {
		if _, err := read(write(t, t.TempDir(), source)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a folder that does not exist is accepted")
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	page := "a\n<!-- settings x/y -->\nold\n<!-- end -->\nb\n<!-- settings z -->\n<!-- end -->\n"
	got, err := fill(page, func(dir string) ([]setting, error) {
		return []setting{{name: strings.ToUpper(dir)}, {name: "BOTH"}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	row := func(name string) string { return "| `" + name + "` |  |  |  |\n" }
	const head = "| Variable | Default | Deployed | Meaning |\n|---|---|---|---|\n"
	if want := "a\n<!-- settings x/y -->\n" + head + row("X/Y") + "<!-- end -->\nb\n<!-- settings z -->\n" + head + row("Z") + row("BOTH") +
		"<!-- end -->\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := fill(page, func(string) ([]setting, error) { return nil, os.ErrNotExist }); err == nil {
		t.Error("an error is lost")
	}
}
