package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// gatewayModule is the module that contains the Gateway API's definitions.
const gatewayModule = "sigs.k8s.io/gateway-api"

// AddGatewayAPI installs the Gateway API's standard definitions in the version that go.mod requires, and waits until they
// are served and listed: the API server serves a new kind before its discovery lists it, and clients need discovery to find
// the kind.
func (c *Cluster) AddGatewayAPI(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", gatewayModule).Output()
	if err != nil {
		return fmt.Errorf("find the module %s: %w", gatewayModule, err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "config/crd/standard/gateway.networking.k8s.io_*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("find definitions in %s: %w", out, err)
	}
	return c.AddKinds(ctx, files...)
}

// AddCanaries installs the operator's kind and the role with its rights from the folder that make generate writes them to.
func (c *Cluster) AddCanaries(ctx context.Context, config string) error {
	crds, err := filepath.Glob(filepath.Join(config, "crd/*.yaml"))
	if err != nil || len(crds) == 0 {
		return fmt.Errorf("find the kind Canary in %s: %w", config, err)
	}
	raw, err := os.ReadFile(filepath.Join(config, "rbac/role.yaml"))
	if err != nil {
		return fmt.Errorf("read the operator's role: %w", err)
	}
	role := new(rbacv1.ClusterRole)
	if err := yaml.Unmarshal(bytes.TrimPrefix(raw, []byte("---\n")), role); err != nil {
		return fmt.Errorf("read the operator's role: %w", err)
	}
	if _, err := c.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the operator's role: %w", err)
	}
	return c.AddKinds(ctx, crds...)
}

// AddKinds installs the definitions in files, and waits until their kinds are served and listed.
func (c *Cluster) AddKinds(ctx context.Context, files ...string) error {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	var kinds []schema.GroupKind
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a definition: %w", err)
		}
		for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096); ; {
			object := new(unstructured.Unstructured)
			err := decoder.Decode(object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("read %s: %w", file, err)
			}
			if object.GetKind() != "CustomResourceDefinition" {
				continue
			}
			if _, err := client.Resource(crds).Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("install %s: %w", object.GetName(), err)
			}
			group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(object.Object, "spec", "names", "kind")
			kinds = append(kinds, schema.GroupKind{Group: group, Kind: kind})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if err = c.listed(ctx, client, kinds); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the new kinds: %w", err)
		case <-time.After(pollEvery):
		}
	}
}

// listed checks that the API server's discovery lists the kinds and that each kind's objects can be listed.
func (c *Cluster) listed(ctx context.Context, client dynamic.Interface, kinds []schema.GroupKind) error {
	groups, err := restmapper.GetAPIGroupResources(c.Client.Discovery())
	if err != nil {
		return fmt.Errorf("list the kinds: %w", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, kind := range kinds {
		mapping, err := mapper.RESTMapping(kind)
		if err != nil {
			return fmt.Errorf("look for %s: %w", kind, err)
		}
		if _, err := client.Resource(mapping.Resource).List(ctx, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("list %s: %w", kind, err)
		}
	}
	return nil
}
