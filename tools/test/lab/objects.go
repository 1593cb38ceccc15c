package lab

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Objects lists all objects of a namespace as resource/name.
func (c *Cluster) Objects(ctx context.Context, namespace string) ([]string, error) {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	kinds, err := c.Client.Discovery().ServerPreferredNamespacedResources()
	if err != nil {
		return nil, fmt.Errorf("list the kinds of objects: %w", err)
	}
	var out []string
	for _, list := range kinds {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("parse an API group: %w", err)
		}
		for _, kind := range list.APIResources {
			// Two API groups serve the same events.
			if !slices.Contains(kind.Verbs, "list") || (kind.Name == "events" && group.Group != "") {
				continue
			}
			objects, err := client.Resource(group.WithResource(kind.Name)).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", kind.Name, err)
			}
			for _, o := range objects.Items {
				out = append(out, kind.Name+"/"+o.GetName())
			}
		}
	}
	slices.Sort(out)
	return out, nil
}
