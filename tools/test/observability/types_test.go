package observability_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTypes has TypeScript check each dashboard against the types that Grafana and Perses
// publish: a name that they don't know, or a value that they don't take, is an error.
func TestTypes(t *testing.T) {
	t.Parallel()
	const schema = "schema"
	if err := os.RemoveAll(filepath.Join(schema, "generated")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(schema, "generated"), 0o755); err != nil {
		t.Fatal(err)
	}
	for kind, folder := range map[string]string{"Grafana": "charts/waitlist/files/dashboards", "Perses": "k8s/perses"} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.json"))
		if err != nil || len(files) != 9 {
			t.Fatalf("%d dashboards in %s, %v", len(files), folder, err)
		}
		for _, f := range files {
			name := filepath.Base(f)
			body := fmt.Sprintf("import type { %[1]s } from '../types';\n\nexport default %[2]s satisfies %[1]s;\n",
				kind, strings.TrimSpace(read(t, filepath.Join(folder, name))))
			if err := os.WriteFile(filepath.Join(schema, "generated", kind+"-"+name+".ts"), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := exec.CommandContext(t.Context(), "node_modules/.bin/tsc", "--project", ".")
	check.Dir = schema
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v (make test-observability fetches what is missing)\n%s", err, out)
	}
}

// TestPerses asks for the same queries as in Grafana's dashboards, whose
// expressions TestPanels parses.
func TestPerses(t *testing.T) {
	for _, f := range []string{"billing", "events", "messaging", "notifier", "release", "runtime", "signup", "suite"} {
		name := "waitlist-" + f + ".json"
		want := values(t, read(t, "charts/waitlist/files/dashboards/"+name), "expr")
		got := values(t, read(t, "k8s/perses/"+name), "query")
		slices.Sort(want)
		slices.Sort(got)
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: Perses asks for\n%s\nand Grafana for\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// values returns all strings of a key in JSON.
func values(t *testing.T, body, key string) (out []string) {
	t.Helper()
	var all any
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case object:
			if text, ok := v[key].(string); ok {
				out = append(out, text)
			}
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(all)
	return out
}
