package charts_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"waitlist.internal/proto/routes"
)

// TestCopyOfRoutes compares the chart's copy of the routes, which exists because a chart
// can read only its own files.
func TestCopyOfRoutes(t *testing.T) {
	original, err := os.ReadFile(filepath.Join(root, "proto", "routes", "routes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "charts", "waitlist", "files", "routes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, original) {
		t.Error("charts/waitlist/files/routes.yaml differs from proto/routes/routes.yaml; run make generate")
	}
}

type httpRoute struct {
	Rules []struct {
		Matches     []struct{ Path struct{ Type, Value string } }
		BackendRefs []struct {
			Name   string
			Port   int
			Weight *int
		} `yaml:"backendRefs"`
		Timeouts struct{ Request string }
	}
}

type ingress struct {
	Rules []struct {
		HTTP struct {
			Paths []struct {
				Path     string
				PathType string `yaml:"pathType"`
				Backend  struct{ Service struct{ Name string } }
			}
		} `yaml:"http"`
	}
}

// want returns "prefix -> Service" for each prefix in the table and for the rest.
func want(t *testing.T) []string {
	t.Helper()
	table, err := routes.Table()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"/v1 -> w-account"}
	for _, p := range table {
		all = append(all, p.Prefix+" -> w-"+p.Service)
	}
	return all
}

// TestHTTPRoutes checks that the HTTPRoutes have the table's prefixes and the rest of
// /v1, no weights, and no timeout where files are transferred.
func TestHTTPRoutes(t *testing.T) {
	var got []string
	for _, o := range render(t) {
		if o.Kind != "HTTPRoute" {
			continue
		}
		for _, r := range spec[httpRoute](t, o).Rules {
			if len(r.Matches) != 1 || len(r.BackendRefs) != 1 {
				t.Fatalf("%s: %+v", o.Metadata.Name, r)
			}
			match, backend := r.Matches[0].Path, r.BackendRefs[0]
			if match.Type != "PathPrefix" || backend.Port != 8080 || backend.Weight != nil {
				t.Errorf("%s: %+v", o.Metadata.Name, r)
			}
			if limit := r.Timeouts.Request; (limit == "0s") != (match.Value == "/v1/waitlists") {
				t.Errorf("%s: limit %q", match.Value, limit)
			}
			got = append(got, match.Value+" -> "+backend.Name)
		}
	}
	compare(t, "the HTTPRoutes", got, "proto/routes", want(t))
}

// TestIngress checks that the Ingress has the same prefixes.
func TestIngress(t *testing.T) {
	var got []string
	for _, o := range render(t, "--set", "gateway.kind=ingress") {
		if o.Kind == "HTTPRoute" {
			t.Errorf("the chart renders the HTTPRoute %s together with an Ingress", o.Metadata.Name)
		}
		if o.Kind != "Ingress" {
			continue
		}
		for _, r := range spec[ingress](t, o).Rules {
			for _, p := range r.HTTP.Paths {
				if p.PathType != "Prefix" {
					t.Errorf("%s: %s", p.Path, p.PathType)
				}
				got = append(got, p.Path+" -> "+p.Backend.Service.Name)
			}
		}
	}
	compare(t, "the Ingress", got, "proto/routes", want(t))
}

// TestOwnedByOperator checks that the chart omits a route that the operator owns and
// renders the others.
func TestOwnedByOperator(t *testing.T) {
	for _, o := range render(t, "--set", "gateway.ownedByOperator={signup}") {
		if o.Kind == "HTTPRoute" && o.Metadata.Name == "w-signup" {
			t.Error("the chart renders the route of signup, which the operator owns")
		}
	}
}

// enabled are the values that charts/waitlist needs for the pages.
func enabled() []string {
	return []string{
		"--set", "pages.enabled=true", "--set", "pages.env.PAGES_API_URL=https://example.com/v1",
		"--set", "pages.env.PUBLIC_FORM_URL=https://example.com",
	}
}

// TestPages checks that the pages are at / where they are enabled, get no secret, and
// reach nothing but the API.
func TestPages(t *testing.T) {
	for _, o := range render(t) {
		if o.Metadata.Labels["app.kubernetes.io/name"] == "pages" || o.Metadata.Name == "w-pages" {
			t.Errorf("%s %s, which nobody asked for", o.Kind, o.Metadata.Name)
		}
	}
	var paths, variables []string
	objects := render(t, append(enabled(), "--values", "testdata/edges-values.yaml")...)
	for _, o := range objects {
		switch {
		case o.Kind == "HTTPRoute":
			for _, r := range spec[httpRoute](t, o).Rules {
				paths = append(paths, r.Matches[0].Path.Value+" -> "+r.BackendRefs[0].Name)
			}
		case o.Metadata.Labels["app.kubernetes.io/name"] != "pages":
		case o.Kind == "Job":
			t.Error("a migration of nothing")
		case o.Kind == "Deployment":
			container := spec[struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Env     []struct{ Name string }
							EnvFrom []any `yaml:"envFrom"`
						}
					}
				}
			}](t, o).Template.Spec.Containers[0]
			if container.EnvFrom != nil {
				t.Errorf("secrets: %v", container.EnvFrom)
			}
			for _, e := range container.Env {
				variables = append(variables, e.Name)
			}
		}
	}
	compare(t, "the HTTPRoutes", paths, "the routes", append(want(t), "/ -> w-pages"))
	for _, name := range []string{"PAGES_API_URL", "PUBLIC_FORM_URL", "HTTP_ADDR", "TRUSTED_PROXIES"} {
		if !slices.Contains(variables, name) {
			t.Errorf("the pages do not get %s", name)
		}
	}
	got := slices.DeleteFunc(edges(t, objects, "server"), func(e string) bool { return !strings.Contains(e, "pages") })
	compare(t, "the network policies", got, "the design", []string{
		"gateway -> pages:http", "prometheus -> pages:internal", "pages -> dns:53", "pages -> otlp:4317", "pages -> internet:443",
	})
}
