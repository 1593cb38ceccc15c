package charts_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// TestCopiesOfTheOperator compares the chart's copies of what controller-gen writes.
func TestCopiesOfTheOperator(t *testing.T) {
	for name, original := range map[string]string{
		"crd.yaml": "crd/canary.waitlist.internal_canaries.yaml", "role.yaml": "rbac/role.yaml",
	} {
		want, err := os.ReadFile(filepath.Join(root, "k8s", "canary", "config", original))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(root, "charts", "canary", "files", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("charts/canary/files/%s differs from k8s/canary/config/%s; run make generate", name, original)
		}
	}
}

type role struct {
	Kind     string
	Metadata struct {
		Name        string
		Annotations map[string]string
	}
	Rules []struct {
		APIGroups       []string `yaml:"apiGroups"`
		Resources       []string
		Verbs           []string
		ResourceNames   []string `yaml:"resourceNames"`
		NonResourceURLs []string `yaml:"nonResourceURLs"`
	}
}

// rights lists a role's as "verb group/resource".
func (r role) rights() (all []string) {
	for _, rule := range r.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, fmt.Sprintf("%s %s/%s", verb, group, resource))
				}
			}
		}
	}
	return all
}

// TestRightsOfTheOperator compares the roles of charts/canary, of the operator and of the Job that follows it, with the one that
// controller-gen writes. Only where a right holds may differ.
func TestRightsOfTheOperator(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "k8s", "canary", "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var generated role
	if err := yaml.Unmarshal(raw, &generated); err != nil {
		t.Fatal(err)
	}
	for _, values := range []string{"default", "full", "all-namespaces"} {
		chart := filepath.Join(root, "charts", "canary")
		out := helm(t, "template", "canary", chart, "--namespace", "ops", "--values", filepath.Join(chart, "ci", values+"-values.yaml"))
		rights, clusterwide := map[bool][]string{}, 0
		for d := yaml.NewDecoder(bytes.NewReader(out)); ; {
			var r role
			if err := d.Decode(&r); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			switch {
			case strings.HasSuffix(r.Kind, "Role"):
				hook := r.Metadata.Annotations["helm.sh/hook"] != ""
				rights[hook] = append(rights[hook], r.rights()...)
			case r.Kind == "ClusterRoleBinding" && !strings.HasSuffix(r.Metadata.Name, "-gateways"):
				clusterwide++
			}
		}
		if (clusterwide > 0) != (values == "all-namespaces") {
			t.Errorf("%s: %d bindings give the operator rights in all namespaces", values, clusterwide)
		}
		for hook, got := range rights {
			compare(t, fmt.Sprintf("charts/canary (%s, hook %t)", values, hook), got, "config/rbac/role.yaml", generated.rights())
		}
		if len(rights) != 2 {
			t.Errorf("%s: there are roles for %v", values, rights)
		}
	}
}

type canary struct {
	TargetRef  struct{ Name string } `yaml:"targetRef"`
	ServiceRef struct{ Name string } `yaml:"serviceRef"`
	Route      *struct {
		ParentRefs []struct{ Name, Namespace string } `yaml:"parentRefs"`
		Port       int
		Rules      []struct {
			Matches  []struct{ Path struct{ Type, Value string } }
			Timeouts struct{ Request string }
		}
	}
	Steps     []struct{ Weight int }
	Group     string
	Replicas  *int
	StableEnv []struct{ Name, Value string } `yaml:"stableEnv"`
}

// TestCanaries checks that what the operator owns is nobody's in the chart, that each public path is served by exactly one of both, and
// that the operator may read the metrics.
func TestCanaries(t *testing.T) {
	values := filepath.Join(root, "charts", "waitlist", "ci", "canary-values.yaml")
	objects := render(t, "--values", values, "--values", "testdata/edges-values.yaml")
	canaries := map[string]canary{}
	var paths []string
	for _, o := range objects {
		switch o.Kind {
		case "Canary":
			c := spec[canary](t, o)
			canaries[o.Metadata.Name] = c
			if c.TargetRef.Name != o.Metadata.Name || c.Group != "w" {
				t.Errorf("%s: %+v", o.Metadata.Name, c)
			}
			if !slices.ContainsFunc(c.StableEnv, func(e struct{ Name, Value string }) bool { return e.Name == "CANDIDATE" && e.Value == "false" }) {
				t.Errorf("%s: its stable copy is told %v", o.Metadata.Name, c.StableEnv)
			}
			if c.Route == nil {
				if slices.ContainsFunc(c.Steps, func(s struct{ Weight int }) bool { return s.Weight > 0 }) {
					t.Errorf("%s has weights and no route", o.Metadata.Name)
				}
				continue
			}
			for _, r := range c.Route.Rules {
				paths = append(paths, r.Matches[0].Path.Value+" -> "+c.ServiceRef.Name)
				if r.Timeouts.Request == "" {
					t.Errorf("%s: no limit of time", r.Matches[0].Path.Value)
				}
			}
		case "HTTPRoute":
			for _, r := range spec[httpRoute](t, o).Rules {
				paths = append(paths, r.Matches[0].Path.Value+" -> "+r.BackendRefs[0].Name)
			}
		}
	}
	compare(t, "the Canaries and HTTPRoutes", paths, "the routes", append(want(t), "/ -> w-pages"))
	if sorted := slices.Sorted(slices.Values(paths)); len(slices.Compact(sorted)) != len(paths) {
		t.Errorf("a path has two owners: %v", paths)
	}

	scaled := 0
	for _, o := range objects {
		switch o.Kind {
		case "Deployment":
			c, released := canaries[o.Metadata.Name]
			d := spec[struct{ Replicas *int }](t, o)
			if released && d.Replicas != nil {
				t.Errorf("%s: the chart and the operator set the replicas", o.Metadata.Name)
			}
			if released == (o.Metadata.Name == "w-admin-analytics") || released && c.Route == nil != (o.Metadata.Name == "w-notifier") {
				t.Errorf("%s: released by canary %t, %+v", o.Metadata.Name, released, c)
			}
		case "HorizontalPodAutoscaler", "ScaledObject":
			scaled++
			of := spec[struct {
				ScaleTargetRef struct{ Name string } `yaml:"scaleTargetRef"`
			}](t, o).ScaleTargetRef.Name
			if of != o.Metadata.Name+"-stable" || canaries[o.Metadata.Name].Replicas != nil {
				t.Errorf("%s scales %s; the Canary sets %v", o.Metadata.Name, of, canaries[o.Metadata.Name].Replicas)
			}
		}
	}
	if scaled != 2 {
		t.Errorf("%d autoscalers", scaled)
	}
	allowed := edges(t, objects, "server")
	for _, name := range append(services(), "pages") {
		_, released := canaries["w-"+name]
		if slices.Contains(allowed, "canary -> "+name+":internal") != released {
			t.Errorf("the operator may read the metrics of %s: %t", name, !released)
		}
	}
	for _, o := range render(t) {
		if o.Kind == "Canary" {
			t.Errorf("a Canary %s, which nobody asked for", o.Metadata.Name)
		}
	}
}
