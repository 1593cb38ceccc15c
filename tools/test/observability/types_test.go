package observability_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTypes has TypeScript check each dashboard against the types that Grafana publishes: a
// name that they don't know, or a value that they don't take, is an error.
func TestTypes(t *testing.T) {
	t.Parallel()
	const schema = "schema"
	if err := os.RemoveAll(filepath.Join(schema, "generated")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(schema, "generated"), 0o755); err != nil {
		t.Fatal(err)
	}
	const folder = "charts/waitlist/files/dashboards"
	files, err := filepath.Glob(filepath.Join(root, folder, "*.json"))
	if err != nil || len(files) != 9 {
		t.Fatalf("%d dashboards in %s, %v", len(files), folder, err)
	}
	for _, f := range files {
		name := filepath.Base(f)
		body := fmt.Sprintf("import type { Grafana } from '../types';\n\nexport default %s satisfies Grafana;\n",
			strings.TrimSpace(read(t, filepath.Join(folder, name))))
		if err := os.WriteFile(filepath.Join(schema, "generated", name+".ts"), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := exec.CommandContext(t.Context(), "node_modules/.bin/tsc", "--project", ".")
	check.Dir = schema
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v (make test-observability fetches what is missing)\n%s", err, out)
	}
}
