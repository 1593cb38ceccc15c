package charts_test

import (
	"bytes"
	"os"
	"path/filepath"
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

// TestPages checks that the pages are there only where they are enabled, get no secret
// but their own, and prepare nothing.
func TestPages(t *testing.T) {
	for _, o := range render(t, "--set", "pages.enabled=false") {
		if o.Metadata.Labels["app.kubernetes.io/name"] == "pages" || o.Metadata.Name == "w-pages" {
			t.Errorf("%s %s, which nobody asked for", o.Kind, o.Metadata.Name)
		}
	}
	seen := 0
	for _, o := range render(t) {
		switch {
		case o.Metadata.Labels["app.kubernetes.io/name"] != "pages":
		case o.Kind == "Job":
			t.Error("a migration of nothing")
		case o.Kind == "Deployment":
			seen++
			container := spec[struct {
				Template struct {
					Spec struct {
						Containers []struct {
							EnvFrom []struct {
								SecretRef struct{ Name string } `yaml:"secretRef"`
							} `yaml:"envFrom"`
						}
					}
				}
			}](t, o).Template.Spec.Containers[0]
			if len(container.EnvFrom) != 1 || container.EnvFrom[0].SecretRef.Name != "waitlist-pages" {
				t.Errorf("secrets: %v", container.EnvFrom)
			}
		}
	}
	if seen != 1 {
		t.Errorf("%d Deployments", seen)
	}
}
