package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/controller"
	"waitlist.internal/k8s/canary/judge"
	"waitlist.internal/k8s/canary/machine"
)

const namespace = "shop"

var (
	errKilled = errors.New("the operator was killed")
	errServer = errors.New("the API server failed")
)

// world is an API server, the controllers of Kubernetes and of a gateway, pods, and an operator that can be killed. Its clock is its own.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	now    time.Time
	api    client.WithWatch // as it is
	faulty client.Client    // as the operator sees it
	// faults are on while the schedule runs.
	faults bool
	// killed: the operator's process is gone until the next one starts.
	killed   bool
	operator *controller.Reconciler
	judges   *script
	// lazy are controllers' rounds that are left out.
	lazy bool
	// broken pods, by name: they do not get ready again.
	broken map[string]bool
	// deaf gateways take no route.
	deaf bool
	// managed: an operator runs beside the world, in a manager.
	managed bool
	// dieAfterRoute kills the operator after a write of a route.
	dieAfterRoute bool
	log           []string
	kills         int
	errs          int
	clash         int
	rounds        int
}

// script is an Analyst whose verdict depends on the image, and that knows nothing at the start of an operator.
type script struct {
	w     *world
	looks map[string]int // by Canary and revision
}

func (s *script) Look(
	_ context.Context, of types.NamespacedName, revision string, _ v1alpha1.Analysis, candidate, _ []string,
) (judge.Verdict, error) {
	key := of.Name + "/" + revision
	if len(candidate) > 0 {
		s.looks[key]++
	}
	n := uint64(20 * s.looks[key])
	if s.w.deployment(of.Name) == nil { //nolint:contextcheck // the world has its own
		return judge.Verdict{}, nil
	}
	v := judge.Verdict{Candidate: n, Stable: 9 * n, Reason: "as scripted"}
	image := s.w.deployment(of.Name).Spec.Template.Spec.Containers[0].Image //nolint:contextcheck // the world has its own
	switch {
	case strings.HasPrefix(image, "bad") && n >= 40:
		v.State = judge.Failed
	case n >= 60:
		v.State = judge.Passing
	}
	return v, nil
}

func (s *script) Forget(of types.NamespacedName) {
	maps.DeleteFunc(s.looks, func(k string, _ int) bool { return strings.HasPrefix(k, of.Name+"/") })
}

func known(t *testing.T) *runtime.Scheme {
	t.Helper()
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, autoscalingv2.AddToScheme,
		rbacv1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme, gatewayv1.Install, v1alpha1.AddToScheme,
	} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	return known
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	known := known(t)
	// Without managed fields, which would take most of the time.
	tracker := clienttesting.NewObjectTracker(known, serializer.NewCodecFactory(known).UniversalDecoder())
	return worldOn(t, seed, fake.NewClientBuilder().WithScheme(known).WithObjectTracker(tracker).
		WithStatusSubresource(&v1alpha1.Canary{}, &gatewayv1.HTTPRoute{}, &appsv1.Deployment{}, &corev1.Pod{}).Build())
}

// worldOn returns a world on an API server.
func worldOn(t *testing.T, seed uint64, api client.WithWatch) *world {
	t.Helper()
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), broken: map[string]bool{}, api: api,
	}
	w.faulty = interceptor.NewClient(w.api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetGeneration(1)
			o.SetUID(types.UID(o.GetName()))
			return w.write("create", o, func() error { return c.Create(ctx, o, opts...) }) //nolint:contextcheck // the world has its own
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			w.generation(o)                                                                //nolint:contextcheck // the world has its own
			return w.write("update", o, func() error { return c.Update(ctx, o, opts...) }) //nolint:contextcheck // the world has its own
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.write("patch", o, func() error { return c.Patch(ctx, o, p, opts...) }) //nolint:contextcheck // the world has its own
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			do := func() error { return c.SubResource(sub).Update(ctx, o, opts...) }
			return w.write("write "+sub, o, do) //nolint:contextcheck // the world has its own
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := w.read(); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	w.start()
	if !w.get("public", new(gatewayv1.Gateway)) {
		w.create(gateway())
	}
	return w
}

func gateway() *gatewayv1.Gateway {
	return &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "public", Namespace: namespace}, Spec: gatewayv1.GatewaySpec{
		GatewayClassName: "any", Listeners: []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}},
	}}
}

// start starts an operator that remembers nothing.
func (w *world) start() {
	w.killed = false
	w.judges = &script{w: w, looks: map[string]int{}}
	clock := func() time.Time { return w.now }
	w.operator = controller.NewWith(w.faulty, w.faulty, w.judges, events.NewFakeRecorder(10_000), logr.Discard(), clock)
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, w.now.Format("04:05 ")+fmt.Sprintf(format, args...))
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.fatal("%v", err)
	}
}

func (w *world) one(n int) bool { return w.rand.IntN(n) == 0 }

func (w *world) read() error {
	if w.killed {
		return errKilled
	}
	if w.faults && w.one(150) {
		w.errs++
		return errServer
	}
	return nil
}

// kill kills the operator.
func (w *world) kill(when string) error {
	w.note("killed %s", when)
	w.killed, w.kills = true, w.kills+1
	return errKilled
}

// write is a write of the operator, which may be killed before or after it, or be told that it failed, or come too late.
func (w *world) write(verb string, o client.Object, do func() error) error {
	if w.killed {
		return errKilled
	}
	fate := 1000
	if w.faults {
		fate = w.rand.IntN(60)
	}
	what := fmt.Sprintf("%s %T %s", verb, o, o.GetName())
	switch fate {
	case 0:
		return w.kill("before: " + what)
	case 1:
		w.errs++
		return errServer
	case 2:
		w.clash++
		return apierrors.NewConflict(appsv1.Resource("any"), o.GetName(), errors.New("somebody was faster"))
	}
	before := w.oracle(o)
	if err := do(); err != nil {
		w.note("%s: %v", what, err)
		return err
	}
	w.note("%s", what)
	before()
	if _, route := o.(*gatewayv1.HTTPRoute); route && w.dieAfterRoute {
		fate = 3
	}
	switch fate {
	case 3:
		return w.kill("after: " + what)
	case 4:
		w.errs++
		return errServer // its answer is lost
	}
	return nil
}

// generation counts changes of a spec, as the API server does.
func (w *world) generation(o client.Object) {
	old := o.DeepCopyObject().(client.Object)
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(o), old); err != nil {
		return
	}
	changed := false
	switch n := o.(type) {
	case *appsv1.Deployment:
		changed = !equality.Semantic.DeepEqual(n.Spec, old.(*appsv1.Deployment).Spec)
	case *gatewayv1.HTTPRoute:
		changed = !equality.Semantic.DeepEqual(n.Spec, old.(*gatewayv1.HTTPRoute).Spec)
	case *v1alpha1.Canary:
		changed = !equality.Semantic.DeepEqual(n.Spec, old.(*v1alpha1.Canary).Spec)
	}
	o.SetGeneration(old.GetGeneration())
	if changed {
		o.SetGeneration(old.GetGeneration() + 1)
	}
}

// oracle looks at what a write of the operator is about to do, and returns what to check once it is done.
func (w *world) oracle(o client.Object) func() {
	switch n := o.(type) {
	case *gatewayv1.HTTPRoute:
		c := w.canary(strings.TrimSuffix(n.Name, "-canary"))
		was := int32(0)
		if old := w.route(c.Name); old != nil {
			was = machine.Weight(old, &c.Spec)
		}
		is := machine.Weight(n, &c.Spec)
		if is <= was {
			return func() {}
		}
		return func() {
			highest := c.Spec.Steps[len(c.Spec.Steps)-1].Weight
			switch {
			case is > highest:
				w.fatal("%s got the weight %d; the steps end at %d", c.Name, is, highest)
			case w.serving(c.Name) == 0:
				w.fatal("%s got the weight %d without a ready pod", c.Name, is)
			case c.Status.Rejected != nil && c.Status.Rejected.Revision == w.revision(c.Name):
				w.fatal("%s got the weight %d after it was rejected", c.Name, is)
			case !slices.ContainsFunc(c.Spec.Steps, func(s v1alpha1.Step) bool { return s.Weight == is }):
				w.fatal("%s got the weight %d, which is no step's", c.Name, is)
			case c.Status.Step > 0 && is > c.Spec.Steps[min(int(c.Status.Step), len(c.Spec.Steps))-1].Weight:
				w.fatal("%s got the weight %d in step %d", c.Name, is, c.Status.Step)
			}
		}
	case *appsv1.Deployment:
		return w.oracleDeployment(n)
	}
	return func() {}
}

func (w *world) oracleDeployment(n *appsv1.Deployment) func() {
	name, isStable := strings.CutSuffix(n.Name, "-stable")
	c := w.canary(name)
	if !isStable {
		was := *w.deployment(name).Spec.Replicas
		return func() {
			stable := w.deployment(name + "-stable")
			if *n.Spec.Replicas < was && (stable == nil || stable.Status.AvailableReplicas == 0 && c.Status.Phase == v1alpha1.Initializing) {
				w.fatal("%s was scaled down before anything else served", name)
			}
			if h := w.route(name); *n.Spec.Replicas == 0 && h != nil && machine.Weight(h, &c.Spec) > 0 {
				w.fatal("%s was scaled down while it had weight", name)
			}
		}
	}
	old := w.deployment(n.Name)
	return func() {
		from, to := "", n.Spec.Template.Annotations[v1alpha1.RevisionAnnotation]
		if old != nil {
			from = old.Spec.Template.Annotations[v1alpha1.RevisionAnnotation]
		}
		if from == to || c.Status.Stable == nil || to == c.Status.Stable.Revision {
			return
		}
		image := n.Spec.Template.Spec.Containers[0].Image
		ordered := strings.HasPrefix(c.Annotations[v1alpha1.CommandAnnotation], "promote/"+to)
		if !ordered && !strings.HasPrefix(image, "good") {
			w.fatal("%s promoted %s", name, image)
		}
		for _, o := range w.canaries() {
			if !ordered && o.Spec.Group != "" && o.Spec.Group == c.Spec.Group &&
				(o.Status.Phase == v1alpha1.Failed || o.Status.Phase == v1alpha1.Progressing || o.Status.Phase == v1alpha1.Starting) {
				w.fatal("%s was promoted while %s of its group was %s", name, o.Name, o.Status.Phase)
			}
		}
	}
}

// legal checks what must hold after a reconcile that ended well.
func (w *world) legal(name string) {
	c := w.canary(name)
	h := w.route(name)
	if h == nil || c.Name == "" || c.DeletionTimestamp != nil {
		return
	}
	weight := machine.Weight(h, &c.Spec)
	if weight == 0 {
		return
	}
	revision := w.revision(name)
	switch {
	case w.serving(name) == 0:
		w.fatal("%s has the weight %d without a ready pod", name, weight)
	case c.Spec.OnFailure != v1alpha1.Freeze && w.judges.looks[name+"/"+revision] >= 2 && strings.HasPrefix(w.image(name), "bad") &&
		c.Status.Phase != v1alpha1.Promoting:
		w.fatal("%s has the weight %d, and the judge said that it is worse", name, weight)
	case c.Status.Rejected != nil && c.Status.Rejected.Revision == revision && c.Spec.OnFailure != v1alpha1.Freeze:
		w.fatal("%s has the weight %d after it was rejected for %s", name, weight, c.Status.Rejected.Reason)
	case !stalled(c) && weight > c.Spec.Steps[len(c.Spec.Steps)-1].Weight:
		w.fatal("%s has the weight %d", name, weight)
	}
	for _, rule := range h.Spec.Rules {
		if len(rule.BackendRefs) != 2 && !stalled(c) {
			w.fatal("the route of %s has %d backends", name, len(rule.BackendRefs))
		}
	}
}

func stalled(c *v1alpha1.Canary) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(x metav1.Condition) bool {
		return x.Type == v1alpha1.Stalled && x.Status == metav1.ConditionTrue
	})
}

// reconcile lets the operator look at a Canary, and starts it again if it was killed.
func (w *world) reconcile(name string) {
	failed := w.kills + w.errs + w.clash
	_, err := w.operator.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: key(name)})
	switch {
	case w.killed:
		w.start()
	case err == nil && failed == w.kills+w.errs+w.clash:
		w.legal(name)
	case err != nil && !w.faults:
		w.fatal("reconcile %s: %v", name, err)
	}
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func (w *world) get(name string, o client.Object) bool {
	err := w.api.Get(w.t.Context(), key(name), o)
	if client.IgnoreNotFound(err) != nil {
		w.fatal("%v", err)
	}
	return err == nil
}

func (w *world) canary(name string) *v1alpha1.Canary {
	c := new(v1alpha1.Canary)
	w.get(name, c)
	return c
}

func (w *world) canaries() []v1alpha1.Canary {
	var list v1alpha1.CanaryList
	w.must(w.api.List(w.t.Context(), &list))
	return list.Items
}

func (w *world) route(name string) *gatewayv1.HTTPRoute {
	h := new(gatewayv1.HTTPRoute)
	if !w.get(name+"-canary", h) {
		return nil
	}
	return h
}

func (w *world) deployment(name string) *appsv1.Deployment {
	d := new(appsv1.Deployment)
	if !w.get(name, d) {
		return nil
	}
	return d
}

func (w *world) image(name string) string {
	return w.deployment(name).Spec.Template.Spec.Containers[0].Image
}

func (w *world) revision(name string) string {
	return machine.Revision(&w.deployment(name).Spec.Template, map[string]string{})
}

func (w *world) create(o client.Object) {
	o.SetGeneration(1)
	w.must(w.api.Create(w.t.Context(), o))
}

// status writes an object's status if it differs.
func (w *world) status(o client.Object) {
	old := o.DeepCopyObject().(client.Object)
	if w.get(o.GetName(), old) && !equality.Semantic.DeepEqual(old, o) {
		err := w.api.Status().Update(w.t.Context(), o)
		if w.managed && apierrors.IsConflict(err) {
			return // the operator was faster; the next round writes it
		}
		w.must(err)
	}
}

func (w *world) update(o client.Object) {
	w.generation(o)
	w.must(w.api.Update(w.t.Context(), o))
}

func (w *world) pods(set *appsv1.ReplicaSet) []corev1.Pod {
	var list corev1.PodList
	w.must(w.api.List(w.t.Context(), &list, client.MatchingLabels(set.Spec.Selector.MatchLabels)))
	return list.Items
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// serving counts ready pods of the target's present template that never restarted.
func (w *world) serving(name string) (n int) {
	d := w.deployment(name)
	if d == nil {
		return 0
	}
	set := new(appsv1.ReplicaSet)
	if !w.get(setName(d), set) {
		return 0
	}
	for _, p := range w.pods(set) {
		if ready(&p) && p.Status.ContainerStatuses[0].RestartCount == 0 {
			n++
		}
	}
	return n
}

func setName(d *appsv1.Deployment) string { return d.Name + "-" + hash(d) }

func hash(d *appsv1.Deployment) string { return machine.Revision(&d.Spec.Template, nil)[:10] }

// turn is a round of everything that is not the operator.
func (w *world) turn() {
	var list appsv1.DeploymentList
	w.must(w.api.List(w.t.Context(), &list))
	for _, d := range list.Items {
		if !w.lazy || !w.one(4) {
			w.deploy(&d)
		}
	}
	var services corev1.ServiceList
	w.must(w.api.List(w.t.Context(), &services))
	for _, s := range services.Items {
		if !w.lazy || !w.one(4) {
			w.endpoints(&s)
		}
	}
	var routes gatewayv1.HTTPRouteList
	w.must(w.api.List(w.t.Context(), &routes))
	for _, h := range routes.Items {
		if w.deaf {
			break
		}
		if !w.lazy || !w.one(3) {
			w.accept(&h)
		}
	}
}

// accept is what a gateway's controller does.
func (w *world) accept(h *gatewayv1.HTTPRoute) {
	if len(h.Status.Parents) > 0 && h.Status.Parents[0].Conditions[0].ObservedGeneration == h.Generation {
		return
	}
	h.Status.Parents = nil
	for _, ref := range h.Spec.ParentRefs {
		var conditions []metav1.Condition
		for _, kind := range []gatewayv1.RouteConditionType{gatewayv1.RouteConditionAccepted, gatewayv1.RouteConditionResolvedRefs} {
			conditions = append(conditions, metav1.Condition{
				Type: string(kind), Status: metav1.ConditionTrue, Reason: "Yes", ObservedGeneration: h.Generation,
				LastTransitionTime: metav1.Time{Time: w.now},
			})
		}
		h.Status.Parents = append(h.Status.Parents, gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: "x/y", Conditions: conditions})
	}
	w.status(h)
}

// endpoints is what the controller of EndpointSlices does.
func (w *world) endpoints(s *corev1.Service) {
	var list corev1.PodList
	w.must(w.api.List(w.t.Context(), &list, client.MatchingLabels(s.Spec.Selector)))
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Name: s.Name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
	}, AddressType: discoveryv1.AddressTypeIPv4}
	exists := w.get(s.Name, slice)
	old := slice.DeepCopy()
	slice.Endpoints = nil
	for _, p := range list.Items {
		if p.Status.PodIP == "" {
			continue
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: new(ready(&p))},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: p.Name},
		})
	}
	if !exists {
		w.create(slice)
	} else if !equality.Semantic.DeepEqual(old, slice) {
		w.update(slice)
	}
}

// deploy is what the controllers of Deployments and ReplicaSets and the kubelet do. Pods of an image "crash" restart, those of "never" do
// not get ready.
func (w *world) deploy(d *appsv1.Deployment) {
	ctx := w.t.Context()
	current := new(appsv1.ReplicaSet)
	if !w.get(setName(d), current) {
		current = &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Name: setName(d), Namespace: namespace,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Controller: new(true)}},
		}, Spec: appsv1.ReplicaSetSpec{Template: *d.Spec.Template.DeepCopy()}}
		current.Spec.Template.Labels = maps.Clone(current.Spec.Template.Labels)
		current.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash(d)
		current.Spec.Selector = &metav1.LabelSelector{MatchLabels: current.Spec.Template.Labels}
		w.create(current)
	}
	want := int(*d.Spec.Replicas)
	pods := w.pods(current)
	for i := len(pods); i < want; i++ {
		w.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%x", current.Name, w.rand.Uint32()), Namespace: namespace, Labels: current.Spec.Template.Labels,
		}, Spec: d.Spec.Template.Spec})
	}
	var available int32
	for i, p := range w.pods(current) {
		if i >= want {
			w.must(w.api.Delete(ctx, &p))
			continue
		}
		w.run(&p)
		if ready(&p) {
			available++
		}
	}
	old := w.retire(d, current, available >= int32(want))
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: int32(want) + old, UpdatedReplicas: int32(want), AvailableReplicas: available + old,
		ReadyReplicas: available + old,
	}
	if image := d.Spec.Template.Spec.Containers[0].Image; available < int32(want) && (strings.HasPrefix(image, "never") ||
		strings.HasPrefix(image, "crash")) {
		d.Status.Conditions = []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
		}}
	}
	w.status(d)
}

// retire deletes pods of former ReplicaSets once the current one is ready, and returns how many are left.
func (w *world) retire(d *appsv1.Deployment, current *appsv1.ReplicaSet, done bool) (left int32) {
	var sets appsv1.ReplicaSetList
	w.must(w.api.List(w.t.Context(), &sets))
	for _, set := range sets.Items {
		if set.Name == current.Name || !metav1.IsControlledBy(&set, d) {
			continue
		}
		for _, p := range w.pods(&set) {
			if done || !ready(&p) {
				w.must(w.api.Delete(w.t.Context(), &p))
			} else {
				left++
			}
		}
	}
	return left
}

// run takes a pod one step on.
func (w *world) run(p *corev1.Pod) {
	image := p.Spec.Containers[0].Image
	started := metav1.Time{Time: w.now}
	status := corev1.ContainerStatus{Name: "app"}
	if len(p.Status.ContainerStatuses) > 0 {
		status = p.Status.ContainerStatuses[0]
		started = status.State.Running.StartedAt
	}
	status.State.Running = &corev1.ContainerStateRunning{StartedAt: started}
	if strings.HasPrefix(image, "crash") {
		status.RestartCount++
	}
	can := !strings.HasPrefix(image, "never") && status.RestartCount == 0 && !w.broken[p.Name]
	state := corev1.ConditionFalse
	if can {
		state = corev1.ConditionTrue
	}
	since := metav1.Time{Time: w.now}
	if len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == state {
		since = p.Status.Conditions[0].LastTransitionTime
	}
	p.Status.PodIP = "198.51.100.7"
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: state, LastTransitionTime: since}}
	w.status(p)
}

// adopt makes a Deployment, its Service and its Canary.
func (w *world) adopt(name string, edit func(*v1alpha1.Canary)) {
	app := map[string]string{"app": name}
	w.create(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name)},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "good:0"}}},
			},
		},
	})
	w.create(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       corev1.ServiceSpec{Selector: app, Ports: []corev1.ServicePort{{Name: "http", Port: 8080}}},
	})
	c := &v1alpha1.Canary{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1alpha1.CanarySpec{
			TargetRef: v1alpha1.TargetReference{Name: name}, ServiceRef: &v1alpha1.ServiceReference{Name: name},
			Route:    &v1alpha1.Route{ParentRefs: []gatewayv1.ParentReference{{Name: "public"}}, Port: 8080, Rules: []v1alpha1.Rule{{}}},
			Steps:    []v1alpha1.Step{{Weight: 5, For: seconds(2)}, {Weight: 25}, {Weight: 50, For: seconds(3)}},
			Analysis: v1alpha1.Analysis{AlphaPercent: "1", Sample: 50}, OnFailure: v1alpha1.Rollback,
			Deadline: seconds(600), CandidateReplicas: 1,
		},
	}
	if edit != nil {
		edit(c)
	}
	w.create(c)
}

func seconds(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }

// settle lets everything go on for a while, without faults.
func (w *world) settle(rounds int) {
	w.faults, w.lazy = false, false
	for range rounds {
		w.now = w.now.Add(time.Second)
		w.turn()
		for _, c := range w.canaries() {
			w.reconcile(c.Name)
		}
	}
}

// release lets the target have another image.
func (w *world) release(name, image string) {
	d := w.deployment(name)
	d.Spec.Template.Spec.Containers[0].Image = image
	w.note("release %s", image)
	w.update(d)
}

// edit changes a Canary as a person does.
func (w *world) edit(name string, change func(*v1alpha1.Canary)) {
	c := w.canary(name)
	change(c)
	w.update(c)
}

// until settles until a Canary is in a phase.
func (w *world) until(name string, p v1alpha1.Phase) {
	w.t.Helper()
	for range 120 {
		if w.canary(name).Status.Phase == p {
			return
		}
		w.settle(1)
	}
	w.fatal("%s is %s and not %s: %+v", name, w.canary(name).Status.Phase, p, w.canary(name).Status)
}

// weight is what the route gives to others than the stable copy.
func (w *world) weight(name string) int32 {
	c := w.canary(name)
	return machine.Weight(w.route(name), &c.Spec)
}

// matching pods of a Deployment.
func (w *world) podsOf(name string) []corev1.Pod {
	set := new(appsv1.ReplicaSet)
	d := w.deployment(name)
	if !w.get(setName(d), set) {
		return nil
	}
	return w.pods(set)
}
