// Package charts compares the rendered Helm charts with the code: network policies with
// the calls between services, routes with proto/routes, and environment variables with
// those that the services read.
//
// The tests need helm, which `make test` builds.
package charts_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"gopkg.in/yaml.v3"
)

//go:generate cp ../../../proto/routes/routes.yaml ../../../charts/waitlist/files/routes.yaml

// root is the path of the repository's root.
const root = "../../.."

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// services returns the names of the services.
func services() []string {
	return []string{"account", "admin-analytics", "billing", "messaging", "notifier", "pages", "signup"}
}

// helm runs helm and returns its output.
func helm(t *testing.T, args ...string) []byte {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, ".data", "bin", "helm"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("helm is missing; make .data/bin/helm builds it (%v)", err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	// Use none of the user's plugins, settings or caches.
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, stderr.String())
	}
	return out
}

// object holds the fields of a Kubernetes object that the tests compare.
type object struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec yaml.Node
}

// render renders charts/waitlist with the pages as the release w, from a copy with its
// dependencies, and returns the objects.
func render(t *testing.T, args ...string) []object {
	t.Helper()
	dir := t.TempDir()
	for _, chart := range []string{"service", "waitlist"} {
		if err := os.CopyFS(filepath.Join(dir, chart), os.DirFS(filepath.Join(root, "charts", chart))); err != nil {
			t.Fatal(err)
		}
	}
	chart := filepath.Join(dir, "waitlist")
	helm(t, "dependency", "build", chart)
	out := helm(t, append([]string{
		"template", "w", chart, "--namespace", "ns", "--values", filepath.Join(chart, "ci", "httproute-values.yaml"),
		"--set", "pages.enabled=true", "--set", "pages.env.PAGES_API_URL=https://example.com/v1",
		"--set", "pages.env.PUBLIC_FORM_URL=https://example.com",
	}, args...)...)
	var objects []object
	for d := yaml.NewDecoder(bytes.NewReader(out)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if o.Kind != "" {
			objects = append(objects, o)
		}
	}
}

// spec decodes an object's spec.
func spec[T any](t *testing.T, o object) T {
	t.Helper()
	var v T
	if err := o.Spec.Decode(&v); err != nil {
		t.Fatalf("%s %s: %v", o.Kind, o.Metadata.Name, err)
	}
	return v
}

// compare reports the elements that are in only one of two sets.
func compare(t *testing.T, gotName string, got []string, wantName string, want []string) {
	t.Helper()
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s is in %s but not in %s", g, gotName, wantName)
		}
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s is in %s but not in %s", w, wantName, gotName)
		}
	}
}
