package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
)

// StableName is the name of the stable copy and of its Service.
func StableName(s *v1alpha1.CanarySpec) string { return s.TargetRef.Name + "-stable" }

// CandidateName is the name of the candidate's Service.
func CandidateName(s *v1alpha1.CanarySpec) string { return s.TargetRef.Name + "-candidate" }

// RouteName is the name of the HTTPRoute.
func RouteName(s *v1alpha1.CanarySpec) string { return s.TargetRef.Name + "-canary" }

// Revision returns a hash of a pod template and of the digests of the ConfigMaps and Secrets that it names.
func Revision(t *corev1.PodTemplateSpec, configs map[string]string) string {
	// Maps are encoded in the order of their keys. Pod templates have nothing that cannot be encoded.
	raw, _ := json.Marshal(struct {
		Template *corev1.PodTemplateSpec
		Configs  map[string]string
	}{t, configs})
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

func (r *run) labels() map[string]string {
	return map[string]string{v1alpha1.OwnerLabel: r.Canary.Name, "app.kubernetes.io/managed-by": "canary"}
}

// copyOf returns the stable copy with another pod template: the target's, or a former one of its own.
func (r *run) copyOf(template *corev1.PodTemplateSpec, revision string) *appsv1.Deployment {
	d := new(appsv1.Deployment)
	if r.Stable != nil {
		d = r.Stable.DeepCopy()
	} else {
		d.Name, d.Namespace = StableName(r.spec), r.Canary.Namespace
		d.Spec.Replicas = new(max(1, replicas(r.Target)))
		d.Spec.Selector = r.Target.Spec.Selector.DeepCopy()
		d.Spec.Selector.MatchLabels = with(d.Spec.Selector.MatchLabels, map[string]string{v1alpha1.TrackLabel: v1alpha1.Stable})
	}
	if r.spec.Replicas != nil {
		d.Spec.Replicas = r.spec.Replicas
	}
	d.Labels = with(d.Labels, r.labels())
	d.Spec.MinReadySeconds = r.Target.Spec.MinReadySeconds
	d.Spec.ProgressDeadlineSeconds = r.Target.Spec.ProgressDeadlineSeconds
	// The former version's ReplicaSet has the template to go back to.
	d.Spec.RevisionHistoryLimit = new(int32(3))
	surge := intstr.FromString("25%")
	none := []intstr.IntOrString{intstr.FromInt32(0), intstr.FromString("0%")}
	if u := r.Target.Spec.Strategy.RollingUpdate; u != nil && u.MaxSurge != nil && !slices.Contains(none, *u.MaxSurge) {
		surge = *u.MaxSurge
	}
	// No pod of the former version stops before one of the new one is ready: a version that does not start takes nothing away.
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: &surge},
	}
	d.Spec.Template = *template.DeepCopy()
	t := &d.Spec.Template
	delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	t.Labels = with(t.Labels, map[string]string{v1alpha1.TrackLabel: v1alpha1.Stable})
	t.Annotations = with(t.Annotations, map[string]string{v1alpha1.RevisionAnnotation: revision})
	for _, containers := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
		for i := range containers {
			containers[i].Env = override(containers[i].Env, r.spec.Env())
		}
	}
	return d
}

func override(env, by []corev1.EnvVar) []corev1.EnvVar {
	out := slices.Clone(env)
	for _, e := range by {
		at := slices.IndexFunc(out, func(o corev1.EnvVar) bool { return o.Name == e.Name })
		if at < 0 {
			out = append(out, e)
		} else {
			out[at] = e
		}
	}
	return out
}

func with(m, more map[string]string) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, more)
	return out
}

// service returns one of the two Services, with the ports of the one that the Canary names and what the API server set in it.
func (r *run) service(now *corev1.Service, name string, selector map[string]string) *corev1.Service {
	s := new(corev1.Service)
	if now != nil {
		s = now.DeepCopy()
	}
	s.Name, s.Namespace = name, r.Canary.Namespace
	s.Labels = with(s.Labels, r.labels())
	s.Spec.Selector = with(r.Target.Spec.Selector.MatchLabels, selector)
	var ports []corev1.ServicePort
	for _, p := range r.Service.Spec.Ports {
		p.NodePort = 0
		ports = append(ports, p)
	}
	s.Spec.Ports = ports
	return s
}

// route returns the HTTPRoute with a weight for the candidate, and its rejected revision.
func (r *run) route(weight int32) *gatewayv1.HTTPRoute {
	h := new(gatewayv1.HTTPRoute)
	if r.Route != nil {
		h = r.Route.DeepCopy()
	}
	h.Name, h.Namespace = RouteName(r.spec), r.Canary.Namespace
	h.Labels = with(h.Labels, r.labels())
	h.Annotations = with(h.Annotations, r.spec.Route.Annotations)
	delete(h.Annotations, v1alpha1.RejectedAnnotation)
	if r.st.Rejected != nil && !r.frozen() {
		h.Annotations[v1alpha1.RejectedAnnotation] = r.st.Rejected.Revision
	}
	h.Spec = gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: r.spec.Route.ParentRefs}, Hostnames: r.spec.Route.Hostnames,
	}
	for _, rule := range r.spec.Route.Rules {
		h.Spec.Rules = append(h.Spec.Rules, gatewayv1.HTTPRouteRule{
			Matches: rule.Matches, Filters: rule.Filters, Timeouts: rule.Timeouts,
			BackendRefs: []gatewayv1.HTTPBackendRef{
				backend(StableName(r.spec), r.spec.Route.Port, 100-weight), backend(CandidateName(r.spec), r.spec.Route.Port, weight),
			},
		})
	}
	return h
}

func backend(name string, port gatewayv1.PortNumber, weight int32) gatewayv1.HTTPBackendRef {
	return gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{
		BackendObjectReference: gatewayv1.BackendObjectReference{
			Group: new(gatewayv1.Group("")), Kind: new(gatewayv1.Kind("Service")), Name: gatewayv1.ObjectName(name), Port: &port,
		},
		Weight: &weight,
	}}
}

// shared returns a route with other weights and nothing else changed.
func shared(h *gatewayv1.HTTPRoute, s *v1alpha1.CanarySpec, weight int32) *gatewayv1.HTTPRoute {
	out := h.DeepCopy()
	for i := range out.Spec.Rules {
		for k := range out.Spec.Rules[i].BackendRefs {
			share := 100 - weight
			if string(out.Spec.Rules[i].BackendRefs[k].Name) != StableName(s) {
				share = weight
			}
			out.Spec.Rules[i].BackendRefs[k].Weight = &share
		}
	}
	return out
}

// weight is the candidate's share in percent, rounded up, in the rule of the route that gives it most. What does not go to the stable
// copy counts as the candidate's, whoever put it there.
func (r *run) weight() int32 {
	if r.spec.Route == nil || r.Route == nil || !r.own(r.Route) {
		return 0
	}
	return Weight(r.Route, r.spec)
}

// Weight is the share in percent, rounded up, that a route gives to others than the stable copy.
func Weight(h *gatewayv1.HTTPRoute, s *v1alpha1.CanarySpec) int32 {
	var most int64
	for _, rule := range h.Spec.Rules {
		var sum, other int64
		for _, b := range rule.BackendRefs {
			n := int64(1) // the Gateway API's default
			if b.Weight != nil {
				n = int64(*b.Weight)
			}
			sum += n
			if string(b.Name) != StableName(s) {
				other += n
			}
		}
		if sum > 0 {
			most = max(most, (100*other+sum-1)/sum)
		}
	}
	return int32(most)
}

// keep plans the whole route, with this weight for the candidate.
func (r *run) keep(weight int32) {
	if r.spec.Route == nil {
		return
	}
	if r.Route == nil && r.st.Stable == nil {
		return // nobody would answer
	}
	want := r.route(weight)
	switch {
	case r.Route == nil:
		r.plan.Route = want
	case equality.Semantic.DeepEqual(r.Route, want):
	case weight <= r.weight():
		r.plan.Lower = want
	default:
		r.plan.Route = want
	}
}

// settled says whether the route is read back with this weight, and accepted by its gateways as it is.
func (r *run) settled(weight int32) bool {
	if r.spec.Route == nil {
		return true
	}
	if r.Route == nil || !equality.Semantic.DeepEqual(r.Route.Spec, r.route(weight).Spec) {
		return false
	}
	for _, ref := range r.Route.Spec.ParentRefs {
		accepted := slices.ContainsFunc(r.Route.Status.Parents, func(p gatewayv1.RouteParentStatus) bool {
			return equality.Semantic.DeepEqual(p.ParentRef, ref) && r.conditionTrue(p.Conditions, gatewayv1.RouteConditionAccepted) &&
				r.conditionTrue(p.Conditions, gatewayv1.RouteConditionResolvedRefs)
		})
		if !accepted {
			return false
		}
	}
	return true
}

func (r *run) conditionTrue(conditions []metav1.Condition, kind gatewayv1.RouteConditionType) bool {
	return slices.ContainsFunc(conditions, func(c metav1.Condition) bool {
		return c.Type == string(kind) && c.Status == metav1.ConditionTrue && c.ObservedGeneration >= r.Route.Generation
	})
}

// ready says whether the candidate can serve: its Service selects this revision, every endpoint of it is one of its pods, and as many as
// there shall be are ready. Without a route its pods must be ready.
func (r *run) ready() bool {
	want := max(1, r.spec.CandidateReplicas)
	pods := map[string]bool{}
	var able int32
	for _, p := range r.Pods {
		pods[p.Name] = true
		if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			able++
		}
	}
	if r.spec.Route == nil {
		return able >= want
	}
	s := r.CandidateService
	if r.Hash == "" || able < want || s == nil || s.Spec.Selector[appsv1.DefaultDeploymentUniqueLabelKey] != r.Hash {
		return false
	}
	var serving int32
	for _, e := range r.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		if e.TargetRef == nil || !pods[e.TargetRef.Name] {
			return false
		}
		serving++
	}
	return serving >= want
}
