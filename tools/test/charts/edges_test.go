package charts_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "waitlist.internal/proto/gen/waitlist/account/v1"   // its methods and their callers
	_ "waitlist.internal/proto/gen/waitlist/analytics/v1" // likewise
	_ "waitlist.internal/proto/gen/waitlist/audit/v1"     // likewise
	_ "waitlist.internal/proto/gen/waitlist/messaging/v1" // likewise
	optionsv1 "waitlist.internal/proto/gen/waitlist/options/v1"
	_ "waitlist.internal/proto/gen/waitlist/signup/v1" // likewise
)

// pages is the service that has no database.
const pages = "pages"

// source lists what a service's package app uses.
type source struct {
	// calls holds the services that it dials.
	calls []string
	// options holds the fields that it sets in service.Options.
	options []string
	// audit says that it serves its part of the audit trail.
	audit bool
}

// read parses services/<name>/app.
func read(t *testing.T, name string) source {
	t.Helper()
	var s source
	dir := filepath.Join(root, "services", name, "app")
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.SelectorExpr); ok && fn.Sel.Name == "Dial" && len(n.Args) == 1 {
					callee, err := strconv.Unquote(n.Args[0].(*ast.BasicLit).Value)
					if err != nil {
						t.Error(err)
					}
					s.calls = append(s.calls, callee)
				} else if ok && fn.Sel.Name == "Audit" && len(n.Args) == 0 {
					s.audit = true
				}
			case *ast.CompositeLit:
				if typ, ok := n.Type.(*ast.SelectorExpr); ok && typ.Sel.Name == "Options" {
					for _, e := range n.Elts {
						s.options = append(s.options, e.(*ast.KeyValueExpr).Key.(*ast.Ident).Name)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(s.calls)
	s.calls = slices.Compact(s.calls)
	return s
}

// internet returns the TCP ports outside the cluster to which each service connects.
func internet() map[string][]string {
	return map[string][]string{
		"billing":   {"443"},               // the payment provider
		"messaging": {"443", "465", "587"}, // mail servers and providers
		"notifier":  {"any"},               // the URL of an owner's webhook may name any port
		"pages":     {"443"},               // the API
	}
}

// design returns all edges in the code as "from -> to:port". Both ends are services or
// names from testdata/edges-values.yaml.
func design(t *testing.T) (edges []string) {
	t.Helper()
	for _, name := range services() {
		s := read(t, name)
		edges = append(edges,
			"prometheus -> "+name+":internal", name+" -> dns:53", name+" -> otlp:4317")
		if name != pages {
			edges = append(edges, name+" -> postgres:5432")
		}
		for _, callee := range s.calls {
			edges = append(edges, fmt.Sprintf("%s -> %s:grpc", name, callee))
		}
		if slices.Contains(s.options, "HTTP") {
			edges = append(edges, "gateway -> "+name+":http")
			if !slices.Contains(s.options, "Unlimited") { // then it has the limiter
				edges = append(edges, name+" -> redis:6379")
			}
		}
		if slices.Contains(s.options, "Kafka") {
			edges = append(edges, name+" -> kafka:9092")
		}
		for _, port := range internet()[name] {
			edges = append(edges, name+" -> internet:"+port)
		}
	}
	return edges
}

// TestCallersAreDialers compares the callers that the gRPC methods allow with the
// connections that the services open.
func TestCallersAreDialers(t *testing.T) {
	var listed, dialed []string
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			callees := strings.Split(string(file.Package()), ".")[1:2] // waitlist.<service>.v1
			switch callees[0] {
			case "analytics":
				callees = []string{"admin-analytics"}
			case "audit": // several services serve it
				callees = slices.DeleteFunc(services(), func(name string) bool { return !read(t, name).audit })
			}
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if !strings.HasPrefix(string(file.Package()), "waitlist.") {
					continue
				}
				callers, _ := proto.GetExtension(methods.Get(j).Options(), optionsv1.E_Callers).([]string)
				for _, caller := range callers {
					for _, callee := range callees {
						if caller != callee { // account reads its own part itself
							listed = append(listed, caller+" -> "+callee)
						}
					}
				}
			}
		}
		return true
	})
	for _, name := range services() {
		for _, callee := range read(t, name).calls {
			dialed = append(dialed, name+" -> "+callee)
		}
	}
	if len(dialed) == 0 {
		t.Fatal("found no calls between services")
	}
	compare(t, "the lists of callers", listed, "the connections of the apps", dialed)
}

type peer struct {
	NamespaceSelector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	} `yaml:"namespaceSelector"`
	PodSelector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	} `yaml:"podSelector"`
	IPBlock struct{ CIDR string } `yaml:"ipBlock"`
}

// name returns the service or the place that a peer selects.
func (p peer) name() string {
	switch {
	case p.IPBlock.CIDR != "":
		return "internet"
	case p.PodSelector.MatchLabels["app.kubernetes.io/component"] == "server":
		return p.PodSelector.MatchLabels["app.kubernetes.io/name"]
	}
	return p.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"]
}

type rule struct {
	Ports []struct {
		Protocol string
		Port     string
	}
	From, To []peer
}

type policy struct {
	PodSelector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	} `yaml:"podSelector"`
	PolicyTypes     []string `yaml:"policyTypes"`
	Ingress, Egress []rule
}

// edges returns the connections that the policies of component allow. An edge between
// two services must be allowed at both ends and is returned once.
func edges(t *testing.T, objects []object, component string) []string {
	t.Helper()
	var in, out, all []string
	add := func(to *[]string, rules []rule, format func(peer, port string) string) {
		for _, r := range rules {
			if len(r.Ports) == 0 || len(r.From)+len(r.To) == 0 {
				t.Errorf("rule without ports or peers allows everything: %+v", r)
			}
			for _, p := range slices.Concat(r.From, r.To) {
				for _, port := range r.Ports {
					if port.Port == "" {
						port.Port = "any"
					}
					*to = append(*to, format(p.name(), strings.Replace(port.Port, "9090", "grpc", 1)))
				}
			}
		}
	}
	for _, o := range objects {
		if o.Kind != "NetworkPolicy" || o.Metadata.Labels["app.kubernetes.io/component"] != component {
			continue
		}
		p := spec[policy](t, o)
		if !slices.Equal(p.PolicyTypes, []string{"Ingress", "Egress"}) {
			t.Errorf("%s: %v", o.Metadata.Name, p.PolicyTypes)
		}
		if p.PodSelector.MatchLabels["app.kubernetes.io/component"] != component {
			t.Errorf("%s: its pods are %v", o.Metadata.Name, p.PodSelector.MatchLabels)
		}
		self := p.PodSelector.MatchLabels["app.kubernetes.io/name"]
		add(&in, p.Ingress, func(from, port string) string { return from + " -> " + self + ":" + port })
		add(&out, p.Egress, func(to, port string) string { return self + " -> " + to + ":" + port })
	}
	calls := func(list []string) (found []string) {
		for _, edge := range list {
			if strings.HasSuffix(edge, ":grpc") {
				found = append(found, edge)
			}
		}
		return found
	}
	compare(t, "the callers' egress", calls(out), "the callees' ingress", calls(in))
	all = append(in, out...)
	slices.Sort(all)
	return slices.Compact(all)
}

// TestEdges checks that the policies allow the connections of the code and no others.
func TestEdges(t *testing.T) {
	objects := render(t, "--values", "testdata/edges-values.yaml")
	compare(t, "the network policies", edges(t, objects, "server"), "the code", design(t))

	var migrations []string
	for _, name := range slices.DeleteFunc(services(), func(name string) bool { return name == pages }) {
		for _, to := range []string{"dns:53", "postgres:5432", "kafka:9092", "otlp:4317"} {
			migrations = append(migrations, name+" -> "+to)
		}
	}
	compare(t, "the policies of migrations", edges(t, objects, "migration"), "what a migration needs", migrations)
}

// TestEverythingElseIsDenied checks that a policy without rules selects every pod of the
// suite.
func TestEverythingElseIsDenied(t *testing.T) {
	for _, o := range render(t) {
		if o.Kind != "NetworkPolicy" || o.Metadata.Name != "w-default-deny" {
			continue
		}
		p := spec[policy](t, o)
		if len(p.Ingress)+len(p.Egress) > 0 || len(p.PolicyTypes) != 2 || len(p.PodSelector.MatchLabels) != 2 {
			t.Errorf("%+v", p)
		}
		return
	}
	t.Error("no policy denies everything else")
}
