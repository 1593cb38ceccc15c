package lab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// containerVariable passes a container's description to its process.
const containerVariable = "LAB_CONTAINER"

// environment merges the variables of the image, envFrom and env; later ones override earlier ones. $(NAME) is expanded as
// the Kubernetes API documents.
func (p *pod) environment(ctx context.Context, c *podContainer, img *image) ([]string, error) {
	env := map[string]string{}
	for _, kv := range img.config.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	for _, from := range c.spec.EnvFrom {
		var content map[string]string
		var err error
		switch {
		case from.SecretRef != nil:
			content, err = p.secret(ctx, from.SecretRef.Name, from.SecretRef.Optional)
		case from.ConfigMapRef != nil:
			content, err = p.configMap(ctx, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		}
		if err != nil {
			return nil, err
		}
		for k, v := range content {
			env[from.Prefix+k] = v
		}
	}
	for _, e := range c.spec.Env {
		value := expand(e.Value, env)
		if e.ValueFrom != nil {
			var err error
			if value, err = p.valueFrom(ctx, c, e.ValueFrom); err != nil {
				return nil, fmt.Errorf("set environment variable %s: %w", e.Name, err)
			}
		}
		env[e.Name] = value
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out, nil
}

// expand replaces $(NAME) with a variable set earlier; $$( becomes $(.
func expand(s string, env map[string]string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "$(")
		if !found {
			b.WriteString(s)
			return b.String()
		}
		if escaped, ok := strings.CutSuffix(before, "$"); ok {
			b.WriteString(escaped + "$(")
			s = rest
			continue
		}
		b.WriteString(before)
		name, after, closed := strings.Cut(rest, ")")
		value, known := env[name]
		if !closed || !known {
			b.WriteString("$(")
			s = rest
			continue
		}
		b.WriteString(value)
		s = after
	}
}

func (p *pod) valueFrom(ctx context.Context, c *podContainer, from *corev1.EnvVarSource) (string, error) {
	switch {
	case from.FieldRef != nil:
		switch from.FieldRef.FieldPath {
		case "metadata.name":
			return p.spec.Name, nil
		case "metadata.namespace":
			return p.spec.Namespace, nil
		case "metadata.uid":
			return string(p.spec.UID), nil
		case "spec.nodeName":
			return p.spec.Spec.NodeName, nil
		case "status.podIP":
			return p.ip, nil
		}
		return "", fmt.Errorf("the lab does not support the field %s", from.FieldRef.FieldPath)
	case from.ResourceFieldRef != nil:
		name, kind, _ := strings.Cut(from.ResourceFieldRef.Resource, ".")
		list := map[string]corev1.ResourceList{"limits": c.spec.Resources.Limits, "requests": c.spec.Resources.Requests}[name]
		quantity, ok := list[corev1.ResourceName(kind)]
		if !ok {
			return "", fmt.Errorf("the container has no %s", from.ResourceFieldRef.Resource)
		}
		divisor := from.ResourceFieldRef.Divisor.Value()
		return strconv.FormatInt(quantity.Value()/max(divisor, 1), 10), nil
	case from.SecretKeyRef != nil:
		content, err := p.secret(ctx, from.SecretKeyRef.Name, from.SecretKeyRef.Optional)
		return content[from.SecretKeyRef.Key], err
	case from.ConfigMapKeyRef != nil:
		content, err := p.configMap(ctx, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional)
		return content[from.ConfigMapKeyRef.Key], err
	}
	return "", fmt.Errorf("the lab does not support this source")
}

func (p *pod) secret(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	s, err := p.node.client.CoreV1().Secrets(p.spec.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		if optional != nil && *optional {
			return nil, nil
		}
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	out := map[string]string{}
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

func (p *pod) configMap(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	m, err := p.node.client.CoreV1().ConfigMaps(p.spec.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		if optional != nil && *optional {
			return nil, nil
		}
		return nil, fmt.Errorf("read config map %s: %w", name, err)
	}
	return m.Data, nil
}

// mounts creates the pod's volumes and returns their mounts in the container.
func (p *pod) mounts(ctx context.Context, c *podContainer, gid int) ([]mount, error) {
	var out []mount
	for _, m := range c.spec.VolumeMounts {
		i := slices.IndexFunc(p.spec.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			return nil, fmt.Errorf("the pod has no volume %s", m.Name)
		}
		dir, err := p.volume(ctx, &p.spec.Spec.Volumes[i], gid)
		if err != nil {
			return nil, fmt.Errorf("create volume %s: %w", m.Name, err)
		}
		out = append(out, mount{Source: filepath.Join(dir, m.SubPath), Target: m.MountPath, ReadOnly: m.ReadOnly})
	}
	for _, dir := range p.node.cfg.Shared {
		out = append(out, mount{Source: dir, Target: dir})
	}
	return out, nil
}

func (p *pod) volume(ctx context.Context, v *corev1.Volume, gid int) (string, error) {
	dir := filepath.Join(p.dir, "volumes", v.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	var content map[string]string
	var items []corev1.KeyToPath
	var err error
	switch {
	case v.EmptyDir != nil:
		if err := os.Chown(dir, 0, gid); err != nil {
			return "", err
		}
		return dir, os.Chmod(dir, 0o777)
	case v.Secret != nil:
		items = v.Secret.Items
		content, err = p.secret(ctx, v.Secret.SecretName, v.Secret.Optional)
	case v.ConfigMap != nil:
		items = v.ConfigMap.Items
		content, err = p.configMap(ctx, v.ConfigMap.Name, v.ConfigMap.Optional)
	default:
		return "", fmt.Errorf("the lab does not support this kind of volume")
	}
	if err != nil {
		return "", err
	}
	if items == nil {
		for k := range content {
			items = append(items, corev1.KeyToPath{Key: k, Path: k})
		}
	}
	for _, item := range items {
		if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(content[item.Key]), 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}
