package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/machine"
)

// configsFor is how long the digests of ConfigMaps and Secrets are cached. They are read, not watched, so that the operator needs no
// right to list Secrets.
const configsFor = 5 * time.Second

// contents holds the digests of a pod template's ConfigMaps and Secrets.
type contents struct {
	of     string // their names
	values map[string]string
	read   time.Time
}

// get returns nil for an object that does not exist.
func get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c client.Reader, namespace, name string) (P, error) {
	out := P(new(T))
	err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, out)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %T %s: %w", out, name, err)
	}
	return out, nil
}

// observe reads what the machine needs to know.
func (r *Reconciler) observe(ctx context.Context, c *v1alpha1.Canary) (w machine.World, err error) {
	w.Canary = c
	spec, ns := &c.Spec, c.Namespace
	var all v1alpha1.CanaryList
	if err := r.List(ctx, &all, client.InNamespace(ns)); err != nil {
		return w, fmt.Errorf("list Canaries: %w", err)
	}
	for _, o := range all.Items {
		if o.Name != c.Name {
			w.Others = append(w.Others, o)
		}
	}
	if w.Target, err = get[appsv1.Deployment](ctx, r, ns, spec.TargetRef.Name); err != nil {
		return w, err
	}
	if w.Stable, err = get[appsv1.Deployment](ctx, r, ns, machine.StableName(spec)); err != nil {
		return w, err
	}
	var sets appsv1.ReplicaSetList
	if err := r.List(ctx, &sets, client.InNamespace(ns)); err != nil {
		return w, fmt.Errorf("list ReplicaSets: %w", err)
	}
	if w.Stable != nil && c.Status.Stable != nil {
		for _, set := range sets.Items {
			if metav1.IsControlledBy(&set, w.Stable) &&
				set.Spec.Template.Annotations[v1alpha1.RevisionAnnotation] == c.Status.Stable.Revision {
				w.Former = &set.Spec.Template
			}
		}
	}
	if w.Target != nil {
		if err := r.observeTarget(ctx, &w, sets.Items); err != nil {
			return w, err
		}
	}
	if err := r.observeRoute(ctx, &w); err != nil {
		return w, err
	}
	var scalers autoscalingv2.HorizontalPodAutoscalerList
	if err := r.List(ctx, &scalers, client.InNamespace(ns)); err != nil {
		return w, fmt.Errorf("list HorizontalPodAutoscalers: %w", err)
	}
	for _, a := range scalers.Items {
		ref := a.Spec.ScaleTargetRef
		if ref.Kind == "Deployment" && (ref.Name == spec.TargetRef.Name || ref.Name == machine.StableName(spec)) {
			w.Autoscalers = append(w.Autoscalers, a)
		}
	}
	return w, nil
}

func (r *Reconciler) observeTarget(ctx context.Context, w *machine.World, sets []appsv1.ReplicaSet) error {
	template := &w.Target.Spec.Template
	values, err := r.configs(ctx, client.ObjectKeyFromObject(w.Canary), template)
	if err != nil {
		return err
	}
	w.Revision = machine.Revision(template, values)
	for _, set := range sets {
		if !metav1.IsControlledBy(&set, w.Target) {
			continue
		}
		of := set.Spec.Template.DeepCopy()
		hash := of.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		delete(of.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		if equality.Semantic.DeepEqual(of, template) {
			w.Hash = hash
		}
	}
	if w.Hash == "" {
		return nil
	}
	w.Pods, err = r.pods(ctx, w.Target, map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: w.Hash})
	return err
}

// pods lists a Deployment's pods that also have the labels more.
func (r *Reconciler) pods(ctx context.Context, d *appsv1.Deployment, more map[string]string) ([]corev1.Pod, error) {
	selector := client.MatchingLabels{}
	for _, labels := range []map[string]string{d.Spec.Selector.MatchLabels, more} {
		maps.Copy(selector, labels)
	}
	var list corev1.PodList
	if err := r.List(ctx, &list, client.InNamespace(d.Namespace), selector); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list.Items, nil
}

func (r *Reconciler) observeRoute(ctx context.Context, w *machine.World) (err error) {
	spec, ns := &w.Canary.Spec, w.Canary.Namespace
	if spec.Route == nil {
		return nil
	}
	if w.Route, err = get[gatewayv1.HTTPRoute](ctx, r, ns, machine.RouteName(spec)); err != nil {
		return err
	}
	if spec.ServiceRef != nil {
		if w.Service, err = get[corev1.Service](ctx, r, ns, spec.ServiceRef.Name); err != nil {
			return err
		}
	}
	if w.StableService, err = get[corev1.Service](ctx, r, ns, machine.StableName(spec)); err != nil {
		return err
	}
	if w.CandidateService, err = get[corev1.Service](ctx, r, ns, machine.CandidateName(spec)); err != nil {
		return err
	}
	var list discoveryv1.EndpointSliceList
	of := client.MatchingLabels{discoveryv1.LabelServiceName: machine.CandidateName(spec)}
	if err := r.List(ctx, &list, client.InNamespace(ns), of); err != nil {
		return fmt.Errorf("list EndpointSlices: %w", err)
	}
	for _, s := range list.Items {
		w.Endpoints = append(w.Endpoints, s.Endpoints...)
	}
	for _, ref := range spec.Route.ParentRefs {
		if ref.Kind != nil && *ref.Kind != "Gateway" {
			continue // the gateway says in the route's status whether it takes it
		}
		namespace := ns
		if ref.Namespace != nil {
			namespace = string(*ref.Namespace)
		}
		g, err := get[gatewayv1.Gateway](ctx, r.direct, namespace, string(ref.Name))
		if err != nil {
			return err
		}
		if g == nil {
			w.MissingParents = append(w.MissingParents, "Gateway "+namespace+"/"+string(ref.Name))
		}
	}
	return nil
}

// configs returns a digest of each ConfigMap and Secret that the template names; "" for one that does not exist.
func (r *Reconciler) configs(ctx context.Context, of types.NamespacedName, template *corev1.PodTemplateSpec) (map[string]string, error) {
	configs, secrets := named(&template.Spec)
	names := fmt.Sprint(configs, secrets)
	r.mu.Lock()
	known := r.contents[of]
	r.mu.Unlock()
	if known.of == names && r.now().Sub(known.read) < configsFor {
		return known.values, nil
	}
	known = contents{of: names, values: map[string]string{}, read: r.now()}
	for _, name := range configs {
		m, err := get[corev1.ConfigMap](ctx, r.direct, of.Namespace, name)
		if err != nil {
			return nil, err
		}
		known.values["configmap/"+name] = ""
		if m != nil {
			known.values["configmap/"+name] = digest([]any{m.Data, m.BinaryData})
		}
	}
	for _, name := range secrets {
		s, err := get[corev1.Secret](ctx, r.direct, of.Namespace, name)
		if err != nil {
			return nil, err
		}
		known.values["secret/"+name] = ""
		if s != nil {
			known.values["secret/"+name] = digest(s.Data)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contents[of] = known
	return known.values, nil
}

func digest(v any) string {
	raw, _ := json.Marshal(v) // maps of text and bytes can always be encoded
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// named lists the ConfigMaps and Secrets of a pod, sorted. Those that only pull images do not change what runs.
func named(p *corev1.PodSpec) (configs, secrets []string) {
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				configs = append(configs, from.ConfigMapRef.Name)
			}
			if from.SecretRef != nil {
				secrets = append(secrets, from.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if f := e.ValueFrom; f != nil && f.ConfigMapKeyRef != nil {
				configs = append(configs, f.ConfigMapKeyRef.Name)
			} else if f != nil && f.SecretKeyRef != nil {
				secrets = append(secrets, f.SecretKeyRef.Name)
			}
		}
	}
	for _, v := range p.Volumes {
		if v.ConfigMap != nil {
			configs = append(configs, v.ConfigMap.Name)
		}
		if v.Secret != nil {
			secrets = append(secrets, v.Secret.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.ConfigMap != nil {
				configs = append(configs, source.ConfigMap.Name)
			}
			if source.Secret != nil {
				secrets = append(secrets, source.Secret.Name)
			}
		}
	}
	slices.Sort(configs)
	slices.Sort(secrets)
	return slices.Compact(configs), slices.Compact(secrets)
}

// analyze asks the analyst, if there are pods to compare. Only pods that are ready are read.
func (r *Reconciler) analyze(ctx context.Context, w *machine.World) error {
	c, key := w.Canary, client.ObjectKeyFromObject(w.Canary)
	if w.AnalysisFault = fault(c.Spec.Analysis); w.AnalysisFault != "" {
		return nil
	}
	if w.Stable == nil || w.Target == nil || c.Status.Candidate == nil || c.Status.Candidate.Revision != w.Revision {
		r.analyst.Forget(key)
		return nil
	}
	switch c.Status.Phase {
	case v1alpha1.Progressing, v1alpha1.Passed:
	case v1alpha1.Promoting, v1alpha1.Frozen, v1alpha1.Failed:
		return nil // the verdict does not change any more
	default:
		r.analyst.Forget(key)
		return nil
	}
	stable, err := r.pods(ctx, w.Stable, nil)
	if err != nil {
		return err
	}
	a := c.Spec.Analysis
	w.Verdict, err = r.analyst.Look(ctx, key, w.Revision, a, addresses(w.Pods, a), addresses(stable, a))
	if err != nil {
		r.log.V(1).Info("failed to read the metrics of pods", "canary", key, "error", err.Error())
	}
	return nil
}

// addresses returns the metrics addresses of the pods that are ready.
func addresses(pods []corev1.Pod, a v1alpha1.Analysis) []string {
	var out []string
	for _, p := range pods {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if ready && p.DeletionTimestamp == nil && p.Status.PodIP != "" {
			port := strconv.Itoa(int(cmp.Or(a.Port, 8081)))
			out = append(out, "http://"+net.JoinHostPort(p.Status.PodIP, port)+cmp.Or(a.Path, "/metrics"))
		}
	}
	slices.Sort(out)
	return out
}
