package charts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// variables returns the variables that a service reads: the env tags of the shared
// settings and of its own.
func variables(t *testing.T, service string) []string {
	t.Helper()
	own, err := filepath.Glob(filepath.Join(root, "services", service, "app", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range append(own, filepath.Join(root, "libs", "service", "config.go")) {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range regexp.MustCompile("`env:\"([A-Z0-9_]+)\"").FindAllStringSubmatch(string(source), -1) {
			names = append(names, tag[1])
		}
	}
	return names
}

type deployment struct {
	Template struct {
		Spec struct {
			Containers []struct {
				Env []struct{ Name string }
			}
		}
	}
}

// TestEnvironment checks that the services read every variable in the charts, and that
// each service gets the addresses of the services that it calls.
func TestEnvironment(t *testing.T) {
	file, err := os.ReadFile(filepath.Join(root, "charts", "waitlist", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]struct{ Env map[string]any }
	if err := yaml.Unmarshal(file, &values); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, name := range services() {
		all = append(all, variables(t, name)...)
		for variable := range values[name].Env {
			if !slices.Contains(variables(t, name), variable) {
				t.Errorf("%s.env.%s: %s does not read it", name, variable, name)
			}
		}
	}
	for variable := range values["global"].Env {
		if !slices.Contains(all, variable) {
			t.Errorf("global.env.%s: no service reads it", variable)
		}
	}

	seen := 0
	for _, o := range render(t) {
		if o.Kind != "Deployment" {
			continue
		}
		seen++
		name := o.Metadata.Labels["app.kubernetes.io/name"]
		known := variables(t, name)
		var got []string
		for _, env := range spec[deployment](t, o).Template.Spec.Containers[0].Env {
			got = append(got, env.Name)
			_, global := values["global"].Env[env.Name]
			if !global && !slices.Contains(known, env.Name) {
				t.Errorf("%s gets %s, which it does not read", name, env.Name)
			}
		}
		for _, callee := range read(t, name).calls {
			if variable := strings.ToUpper(strings.ReplaceAll(callee, "-", "_")) + "_GRPC"; !slices.Contains(got, variable) {
				t.Errorf("%s does not get %s", name, variable)
			}
		}
	}
	if seen != len(services()) {
		t.Errorf("%d Deployments", seen)
	}
}
