package controller_test

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/machine"
)

// adopted is a world with an idle Canary a.
func adopted(t *testing.T, edit func(*v1alpha1.Canary)) *world {
	t.Helper()
	w := newWorld(t, 1)
	w.adopt("a", edit)
	w.until("a", v1alpha1.Idle)
	w.settle(3)
	return w
}

// progressing is a world whose candidate a has the weight of its first step.
func progressing(t *testing.T, edit func(*v1alpha1.Canary)) *world {
	t.Helper()
	w := adopted(t, edit)
	w.release("a", "good:1")
	w.until("a", v1alpha1.Progressing)
	if w.weight("a") != 5 {
		t.Fatalf("the first step has the weight %d", w.weight("a"))
	}
	return w
}

func (w *world) reason(name string) string {
	return meta.FindStatusCondition(w.canary(name).Status.Conditions, v1alpha1.Ready).Reason
}

func (w *world) stable(name string) string { return w.image(name + "-stable") }

func TestGoodRelease(t *testing.T) {
	t.Parallel()
	w := adopted(t, nil)
	if n := *w.deployment("a").Spec.Replicas; n != 0 {
		t.Errorf("the idle target has %d pods", n)
	}
	w.release("a", "good:1")
	var weights []int32
	for range 60 {
		w.settle(1)
		if n := w.weight("a"); len(weights) == 0 || weights[len(weights)-1] != n {
			weights = append(weights, n)
		}
	}
	if !slices.Equal(weights, []int32{0, 5, 25, 50, 0}) {
		t.Errorf("the weights were %v", weights)
	}
	c := w.canary("a")
	if c.Status.Phase != v1alpha1.Idle || w.stable("a") != "good:1" || !slices.Equal(c.Status.Stable.Images, []string{"good:1"}) ||
		!meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.Ready) || *w.deployment("a").Spec.Replicas != 0 {
		t.Errorf("it ended as %+v with %s stable", c.Status, w.stable("a"))
	}
}

func TestBadReleases(t *testing.T) {
	t.Parallel()
	for image, reason := range map[string]string{"bad:1": machine.Worse, "crash:1": machine.Crashed, "never:1": machine.Late} {
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			w := adopted(t, func(c *v1alpha1.Canary) { c.Spec.Deadline = seconds(30) })
			w.release("a", image)
			w.until("a", v1alpha1.Failed)
			w.settle(3)
			if w.reason("a") != reason || w.stable("a") != "good:0" || w.weight("a") != 0 || *w.deployment("a").Spec.Replicas != 0 {
				t.Errorf("it failed of %s: %+v", w.reason("a"), w.canary("a").Status)
			}
			w.release("a", "good:2")
			w.until("a", v1alpha1.Idle)
			if w.stable("a") != "good:2" {
				t.Errorf("%s is stable", w.stable("a"))
			}
		})
	}
}

// A gateway that does not take the route: the step's time does not begin.
func TestWeightIsReadBack(t *testing.T) {
	t.Parallel()
	w := adopted(t, nil)
	w.deaf = true
	w.release("a", "good:1")
	w.until("a", v1alpha1.Progressing)
	w.settle(30)
	if c := w.canary("a"); c.Status.Step != 1 || c.Status.StepSince != nil || w.weight("a") != 5 {
		t.Errorf("without a gateway that takes the weight: %+v", c.Status)
	}
	w.deaf = false
	w.until("a", v1alpha1.Idle)
}

// A pod that stops being ready takes the weight with it at once.
func TestUnreadyCandidate(t *testing.T) {
	t.Parallel()
	w := progressing(t, nil)
	for _, p := range w.podsOf("a") {
		w.broken[p.Name] = true
	}
	w.now = w.now.Add(time.Second) // what Kubernetes tells has whole seconds
	w.turn()
	w.reconcile("a")
	if w.weight("a") != 0 || w.canary("a").Status.Phase != v1alpha1.Failed || w.reason("a") != machine.Unready {
		t.Errorf("the weight is %d, the phase %s, the reason %s", w.weight("a"), w.canary("a").Status.Phase, w.reason("a"))
	}
}

// A pod that a node's drain evicts is no failure of the build.
func TestEvictedCandidate(t *testing.T) {
	t.Parallel()
	w := progressing(t, nil)
	for _, p := range w.podsOf("a") {
		w.must(w.api.Delete(t.Context(), &p))
	}
	w.reconcile("a")
	if w.weight("a") != 0 || w.canary("a").Status.Phase != v1alpha1.Starting {
		t.Errorf("the weight is %d, the phase %s", w.weight("a"), w.canary("a").Status.Phase)
	}
	w.until("a", v1alpha1.Idle)
	if w.stable("a") != "good:1" {
		t.Errorf("%s is stable", w.stable("a"))
	}
}

// A new revision in the middle of a canary: pods that are not scaled or judged get nothing (the class of argo-rollouts 3372).
func TestNewRevisionMidway(t *testing.T) {
	t.Parallel()
	w := progressing(t, nil)
	w.release("a", "bad:2")
	w.reconcile("a")
	if w.weight("a") != 0 || w.canary("a").Status.Phase != v1alpha1.Starting {
		t.Errorf("the weight is %d, the phase %s", w.weight("a"), w.canary("a").Status.Phase)
	}
	w.until("a", v1alpha1.Failed)
	if w.stable("a") != "good:0" {
		t.Errorf("%s is stable", w.stable("a"))
	}
}

// The promoted version does not come up in the stable copy: its former pods serve, and it goes back (the class of flagger 1898).
func TestPromotionFails(t *testing.T) {
	t.Parallel()
	w := adopted(t, nil)
	w.release("a", "never:1")
	w.until("a", v1alpha1.Starting)
	w.edit("a", func(c *v1alpha1.Canary) {
		c.Annotations = map[string]string{v1alpha1.CommandAnnotation: machine.Command("promote", &c.Status)}
	})
	sawNew := false
	for range 20 {
		w.settle(1)
		sawNew = sawNew || w.stable("a") == "never:1"
		if w.deployment("a-stable").Status.AvailableReplicas < 2 {
			t.Fatal("the former pods are gone")
		}
		if sawNew && w.stable("a") == "good:0" {
			break
		}
	}
	w.edit("a", func(c *v1alpha1.Canary) { c.Annotations = nil })
	w.settle(5)
	if !sawNew || w.stable("a") != "good:0" || w.canary("a").Status.Phase != v1alpha1.Failed {
		t.Errorf("it ended as %+v with %s stable", w.canary("a").Status, w.stable("a"))
	}
}

// No traffic is neither success nor failure; the deadline ends it (flagger 1035 and others).
func TestInsufficientHolds(t *testing.T) {
	t.Parallel()
	w := progressing(t, func(c *v1alpha1.Canary) { c.Spec.Steps[0].Sample = 1 << 40; c.Spec.Deadline = seconds(100) })
	w.settle(50)
	if c := w.canary("a"); c.Status.Phase != v1alpha1.Progressing || c.Status.Step != 1 || w.weight("a") != 5 {
		t.Errorf("after 50 s it is %+v", c.Status)
	}
	w.until("a", v1alpha1.Failed)
	if w.reason("a") != machine.Late {
		t.Errorf("it ended with %s", w.reason("a"))
	}
}

func TestPauseHolds(t *testing.T) {
	t.Parallel()
	w := progressing(t, func(c *v1alpha1.Canary) { c.Spec.Deadline = seconds(60) })
	w.edit("a", func(c *v1alpha1.Canary) { c.Spec.Paused = true })
	w.settle(100) // longer than the deadline
	if c := w.canary("a"); c.Status.Phase != v1alpha1.Progressing || w.weight("a") != 5 {
		t.Errorf("paused, it is %+v", c.Status)
	}
	w.edit("a", func(c *v1alpha1.Canary) { c.Spec.Paused = false })
	w.until("a", v1alpha1.Idle)
	if w.stable("a") != "good:1" {
		t.Errorf("%s is stable", w.stable("a"))
	}
}

func TestFreezeKeepsTheWeight(t *testing.T) {
	t.Parallel()
	w := adopted(t, func(c *v1alpha1.Canary) { c.Spec.OnFailure = v1alpha1.Freeze })
	w.release("a", "bad:1")
	w.until("a", v1alpha1.Frozen)
	w.settle(20)
	if w.weight("a") != 5 || w.canary("a").Status.Phase != v1alpha1.Frozen {
		t.Errorf("frozen, the weight is %d: %+v", w.weight("a"), w.canary("a").Status)
	}
	w.edit("a", func(c *v1alpha1.Canary) {
		c.Annotations = map[string]string{v1alpha1.CommandAnnotation: machine.Command("abort", &c.Status)}
	})
	w.until("a", v1alpha1.Failed)
	if w.weight("a") != 0 || w.reason("a") != machine.Aborted {
		t.Errorf("aborted, the weight is %d, the reason %s", w.weight("a"), w.reason("a"))
	}
}

// Canaries of one group end together.
func TestGroup(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, b string) *world {
		t.Helper()
		w := adopted(t, func(c *v1alpha1.Canary) { c.Spec.Group = "release" })
		w.adopt("b", func(c *v1alpha1.Canary) {
			c.Spec.Group = "release"
			c.Spec.Steps[2].For = seconds(30) // b is slower
		})
		w.until("b", v1alpha1.Idle)
		w.release("a", "good:1")
		w.release("b", b)
		return w
	}
	t.Run("none before all", func(t *testing.T) {
		t.Parallel()
		w := start(t, "good:1")
		w.until("a", v1alpha1.Passed)
		w.settle(10)
		if w.canary("a").Status.Phase != v1alpha1.Passed || w.stable("a") != "good:0" || w.reason("a") != "WaitingForGroup" {
			t.Errorf("a is %s and b is %s", w.canary("a").Status.Phase, w.canary("b").Status.Phase)
		}
		w.until("a", v1alpha1.Idle)
		w.until("b", v1alpha1.Idle)
		if w.stable("a") != "good:1" || w.stable("b") != "good:1" {
			t.Errorf("%s and %s are stable", w.stable("a"), w.stable("b"))
		}
	})
	t.Run("one takes the other back", func(t *testing.T) {
		t.Parallel()
		w := start(t, "bad:1")
		w.until("b", v1alpha1.Failed)
		w.settle(10)
		if w.canary("a").Status.Phase != v1alpha1.Failed || w.reason("a") != machine.GroupFailed || w.weight("a") != 0 ||
			w.stable("a") != "good:0" {
			t.Errorf("a is %+v", w.canary("a").Status)
		}
		w.release("b", "good:2")
		w.until("b", v1alpha1.Idle)
		w.until("a", v1alpha1.Idle)
		if w.stable("a") != "good:1" || w.stable("b") != "good:2" {
			t.Errorf("%s and %s are stable", w.stable("a"), w.stable("b"))
		}
	})
}

// The older of two Canaries for one target goes on; the other says so and writes nothing.
func TestTwoCanariesForOneTarget(t *testing.T) {
	t.Parallel()
	w := adopted(t, nil)
	route, target := w.route("a"), w.deployment("a")
	second := w.canary("a").DeepCopy()
	second.ObjectMeta = metav1.ObjectMeta{Name: "second", Namespace: namespace, CreationTimestamp: metav1.Time{Time: w.now}}
	second.Status = v1alpha1.CanaryStatus{}
	second.Spec.Route.Hostnames = []gatewayv1.Hostname{"other.example.com"}
	w.create(second)
	w.settle(5)
	if w.reason("second") != machine.TargetTaken || w.reason("a") == machine.TargetTaken {
		t.Errorf("the reasons are %s and %s", w.reason("a"), w.reason("second"))
	}
	if !equality.Semantic.DeepEqual(route.Spec, w.route("a").Spec) || !equality.Semantic.DeepEqual(target.Spec, w.deployment("a").Spec) {
		t.Error("the second one changed something")
	}
}

// What a person has to mend: the condition names it, and traffic stays where it is.
func TestFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil  func(*world)
		reason string
	}{
		"no Gateway": {func(w *world) {
			w.must(w.api.Delete(w.t.Context(), &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "public", Namespace: namespace}}))
		}, machine.GatewayMissing},
		"no Service": {func(w *world) {
			w.must(w.api.Delete(w.t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: namespace}}))
		}, machine.ServiceMissing},
		"no port": {func(w *world) {
			w.edit("a", func(c *v1alpha1.Canary) { c.Spec.Route.Port = 1 })
		}, machine.PortMissing},
		"a route of somebody else": {func(w *world) {
			h := w.route("a")
			h.Labels = nil
			w.update(h)
		}, machine.ForeignObject},
		"an autoscaler of the target": {func(w *world) { w.scaler("a") }, machine.AutoscalerTarget},
		"an autoscaler and replicas": {func(w *world) {
			w.scaler("a-stable")
			w.edit("a", func(c *v1alpha1.Canary) { c.Spec.Replicas = new(int32(2)) })
		}, machine.ReplicasClash},
		"a pattern that is none": {func(w *world) {
			w.edit("a", func(c *v1alpha1.Canary) {
				series := v1alpha1.Series{Metric: "m", Labels: map[string]string{"l": "("}}
				c.Spec.Analysis.Checks = []v1alpha1.Check{{Name: "x", All: series, Bad: &series}}
			})
		}, machine.AnalysisInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := progressing(t, func(c *v1alpha1.Canary) { c.Spec.Steps[0].For = seconds(30) })
			c.spoil(w)
			before := w.route("a")
			w.settle(5)
			if w.reason("a") != c.reason || !meta.IsStatusConditionTrue(w.canary("a").Status.Conditions, v1alpha1.Stalled) {
				t.Errorf("the conditions are %+v", w.canary("a").Status.Conditions)
			}
			if !equality.Semantic.DeepEqual(before.Spec, w.route("a").Spec) || w.stable("a") != "good:0" {
				t.Errorf("the route changed: %+v", w.route("a").Spec)
			}
		})
	}
}

// A target that is deleted leaves no pods of a candidate, and so none of its weight.
func TestTargetMissing(t *testing.T) {
	t.Parallel()
	w := progressing(t, nil)
	for _, p := range w.podsOf("a") {
		w.must(w.api.Delete(t.Context(), &p))
	}
	w.must(w.api.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: namespace}}))
	w.reconcile("a")
	if w.reason("a") != machine.TargetMissing || w.weight("a") != 0 {
		t.Errorf("the reason is %s, the weight %d", w.reason("a"), w.weight("a"))
	}
}

func (w *world) scaler(of string) {
	w.create(&autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "scaler", Namespace: namespace},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: of}, MaxReplicas: 3,
		},
	})
}

// A deleted Canary leaves the stable version with all traffic.
func TestDeletion(t *testing.T) {
	t.Parallel()
	w := progressing(t, nil)
	w.must(w.api.Delete(t.Context(), w.canary("a")))
	w.settle(5)
	if w.get("a", new(v1alpha1.Canary)) {
		t.Fatal("the Canary is still there")
	}
	spec := &v1alpha1.CanarySpec{TargetRef: v1alpha1.TargetReference{Name: "a"}}
	if n := machine.Weight(w.route("a"), spec); n != 0 {
		t.Errorf("the weight is %d", n)
	}
	if *w.deployment("a").Spec.Replicas != 0 || w.deployment("a-stable").Status.AvailableReplicas != 2 || w.stable("a") != "good:0" {
		t.Errorf("the target has %d pods, %s is stable", *w.deployment("a").Spec.Replicas, w.stable("a"))
	}
}

// The operator dies between its write of the route and that of the status: the route says what was rejected.
func TestKilledAfterTheRoute(t *testing.T) {
	t.Parallel()
	w := adopted(t, nil)
	w.release("a", "bad:1")
	w.until("a", v1alpha1.Progressing)
	for range 10 {
		w.now = w.now.Add(time.Second)
		w.turn()
		before := w.weight("a")
		w.dieAfterRoute = true
		w.reconcile("a")
		w.dieAfterRoute = false
		if before > 0 && w.weight("a") == 0 {
			break
		}
	}
	if w.kills != 1 || w.canary("a").Status.Rejected != nil {
		t.Fatalf("%d kills, %+v", w.kills, w.canary("a").Status)
	}
	w.settle(1)
	if w.canary("a").Status.Phase != v1alpha1.Failed || w.weight("a") != 0 {
		t.Errorf("the next operator made of it %+v", w.canary("a").Status)
	}
}

// What a ConfigMap contains is part of a revision.
func TestConfigIsARelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: namespace}, Data: map[string]string{"A": "1"}}
	w.create(settings)
	w.adopt("a", nil)
	d := w.deployment("a")
	d.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "settings"},
	}}}
	w.update(d)
	w.until("a", v1alpha1.Idle)
	settings.Data["A"] = "2"
	w.update(settings)
	w.until("a", v1alpha1.Progressing)
	w.until("a", v1alpha1.Idle)
}

// Pods of the stable copy can tell that they are no candidates.
func TestStableEnv(t *testing.T) {
	t.Parallel()
	w := adopted(t, func(c *v1alpha1.Canary) { c.Spec.StableEnv = []v1alpha1.EnvVar{{Name: "SINGLETONS", Value: "true"}} })
	if env := w.deployment("a-stable").Spec.Template.Spec.Containers[0].Env; len(env) != 1 || env[0].Value != "true" {
		t.Errorf("the environment is %v", env)
	}
	if env := w.deployment("a").Spec.Template.Spec.Containers[0].Env; len(env) != 0 {
		t.Errorf("the candidate's environment is %v", env)
	}
}

// A service without a route is judged beside its replicas.
func TestWithoutRoute(t *testing.T) {
	t.Parallel()
	without := func(c *v1alpha1.Canary) {
		c.Spec.Route, c.Spec.ServiceRef = nil, nil
		c.Spec.Steps = []v1alpha1.Step{{For: seconds(2)}}
	}
	w := adopted(t, without)
	w.release("a", "good:1")
	w.until("a", v1alpha1.Progressing)
	w.until("a", v1alpha1.Idle)
	if w.stable("a") != "good:1" {
		t.Errorf("%s is stable", w.stable("a"))
	}
	w.release("a", "bad:2")
	w.until("a", v1alpha1.Failed)
	if w.stable("a") != "good:1" {
		t.Errorf("%s is stable", w.stable("a"))
	}
}

// TestRetire takes the operator away under a candidate that has weight, and under a Canary that never served. It is killed and refused
// writes meanwhile. Afterwards nothing holds the Canaries back, and the stable version has everything.
func TestRetire(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := newWorld(t, seed)
		w.adopt("a", nil)
		w.until("a", v1alpha1.Idle)
		w.release("a", "good:1")
		w.until("a", v1alpha1.Progressing)
		w.adopt("b", nil)
		w.reconcile("b") // it gets its finalizer, and no pod of it is up
		w.reconcile("b")
		w.faults = true
		for done := false; !done; {
			done = w.operator.Retire(t.Context()) == nil
			if w.killed {
				w.start()
			}
		}
		for _, name := range []string{"a", "b"} {
			c := w.canary(name)
			if c == nil || len(c.Finalizers) > 0 || w.route(name) != nil && w.weight(name) != 0 {
				w.fatal("seed %d: %s is left with %+v", seed, name, c)
			}
		}
		if w.stable("a") != "good:0" || w.serving("a-stable") != 2 || *w.deployment("a").Spec.Replicas != 0 {
			w.fatal("seed %d: %s is stable with %d pods, the target has %d", seed, w.stable("a"), w.serving("a-stable"),
				*w.deployment("a").Spec.Replicas)
		}
		if *w.deployment("b").Spec.Replicas != 2 {
			w.fatal("seed %d: the pods of b stopped, and it has no others", seed)
		}
	}
}
