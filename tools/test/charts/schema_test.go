package charts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestSchemasAreClosed checks that the schemas reject unknown keys in every object.
func TestSchemasAreClosed(t *testing.T) {
	for _, chart := range []string{"canary", "service", "waitlist"} {
		file, err := os.ReadFile(filepath.Join(root, "charts", chart, "values.schema.json"))
		if err != nil {
			t.Fatal(err)
		}
		var schema any
		if err := json.Unmarshal(file, &schema); err != nil {
			t.Fatal(err)
		}
		if closed(t, chart, schema) == 0 {
			t.Errorf("%s: found no objects", chart)
		}
	}
}

// closed checks every object below node and returns the number of objects with properties.
func closed(t *testing.T, path string, node any) (objects int) {
	t.Helper()
	switch node := node.(type) {
	case map[string]any:
		if _, ok := node["properties"]; ok && node["type"] == "object" {
			objects++
			if open, ok := node["additionalProperties"].(bool); !ok || open {
				t.Errorf("%s accepts unknown keys", path)
			}
		}
		for key, below := range node {
			objects += closed(t, path+"."+key, below)
		}
	case []any:
		for _, below := range node {
			objects += closed(t, path, below)
		}
	}
	return objects
}
