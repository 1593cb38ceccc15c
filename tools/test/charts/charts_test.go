// Package charts holds the charts against the code: the edges of the network
// policies against the calls that services make, the routes against
// proto/routes, the environment against what the services read.
//
// It needs helm, which `make test` builds.
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

// root is the repository's.
const root = "../../.."

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// services are the six.
func services() []string {
	return []string{"account", "admin-analytics", "billing", "messaging", "notifier", "signup"}
}

// helm runs helm and returns what it prints.
func helm(t *testing.T, args ...string) []byte {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, ".data", "bin", "helm"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("helm is missing: make test builds it (%v)", err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	// Nothing of the user's: neither plugins nor caches.
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

// object is what these tests look at of a Kubernetes object.
type object struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec yaml.Node
}

// render returns the objects of charts/waitlist, a copy of it with its
// dependencies, as the release w.
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

// compare reports what is in one of two sets alone.
func compare(t *testing.T, gotName string, got []string, wantName string, want []string) {
	t.Helper()
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s: in %s, not in %s", g, gotName, wantName)
		}
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s: in %s, not in %s", w, wantName, gotName)
		}
	}
}
