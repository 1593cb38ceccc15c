//go:build k8s

package lab_test

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// warnings collects the warnings in the API server's answers, such as that the namespace's pod security would reject a pod.
type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

// TestDryRun submits every object of the charts, with every values file, as a dry run. Unknown and duplicate fields are
// errors, and so are warnings.
func TestDryRun(t *testing.T) {
	w := newCluster(t)
	said := new(warnings)
	cfg := rest.CopyConfig(w.cluster.Config)
	cfg.WarningHandler = said
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.cluster.Client.Discovery()))
	const namespace = "dry-run"
	_, err = w.cluster.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   namespace,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// No Go module has the definitions of these kinds; k8s/canary judges its own.
	foreign := []string{"monitoring.coreos.com", "keda.sh", "canary.waitlist.internal"}
	files, err := filepath.Glob(filepath.Join(w.root, "charts/*/ci/*-values.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		chart := filepath.Dir(filepath.Dir(file))
		t.Run(filepath.Base(chart)+"/"+filepath.Base(file), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(w.bin, "helm"), "template", "w", chart, "--namespace", namespace, "--values", file)
			rendered, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			judged := 0
			for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(rendered), 4096); ; {
				var raw runtime.RawExtension
				if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				object := new(unstructured.Unstructured)
				if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
					continue
				}
				if err := object.UnmarshalJSON(raw.Raw); err != nil {
					t.Fatal(err)
				}
				kind := object.GroupVersionKind()
				if slices.Contains(foreign, kind.Group) {
					continue
				}
				mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
				if err != nil {
					t.Fatal(err)
				}
				resource := dynamic.ResourceInterface(client.Resource(mapping.Resource))
				if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
					resource = client.Resource(mapping.Resource).Namespace(cmp.Or(object.GetNamespace(), namespace))
				}
				_, err = resource.Create(t.Context(), object, metav1.CreateOptions{
					DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
				})
				if err != nil && !apierrors.IsAlreadyExists(err) {
					t.Errorf("%s %s: %v", kind.Kind, object.GetName(), err)
				}
				judged++
			}
			t.Logf("%d objects", judged)
			if judged < 5 {
				t.Error("too few objects for the chart")
			}
		})
	}
	if len(said.said) > 0 {
		t.Errorf("the API server warned:\n%s", strings.Join(said.said, "\n"))
	}
}
