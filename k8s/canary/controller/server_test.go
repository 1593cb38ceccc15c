//go:build k8s

package controller_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sigs.k8s.io/yaml"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/controller"
	"waitlist.internal/k8s/canary/machine"
)

// server starts etcd and an API server from LAB_BIN, where make lab-tools puts them, with the kinds of the operator and of the Gateway API.
func server(t *testing.T) (client.WithWatch, *rest.Config) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: os.Getenv("LAB_BIN"),
		CRDDirectoryPaths:     []string{"../config/crd"}, ErrorIfCRDPathMissing: true,
	}
	for _, kind := range []string{"httproutes", "gateways"} {
		file := filepath.Join(strings.TrimSpace(string(out)), "config/crd/standard", "gateway.networking.k8s.io_"+kind+".yaml")
		env.CRDDirectoryPaths = append(env.CRDDirectoryPaths, file)
	}
	config, err := env.Start()
	if err != nil {
		t.Fatalf("start the API server (make lab-tools builds it): %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	config.QPS, config.Burst = 1000, 1000
	api, err := client.NewWithWatch(config, client.Options{Scheme: known(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	return api, config
}

// TestRealServer takes releases through a real API server, which validates and defaults all that the operator writes.
func TestRealServer(t *testing.T) {
	api, config := server(t)
	t.Run("invalid", func(t *testing.T) { invalid(t, api) })
	t.Run("with a manager", func(t *testing.T) { manages(t, api, config) })
	w := worldOn(t, 1, api)
	w.adopt("a", nil)
	w.until("a", v1alpha1.Idle)
	w.settle(3)

	// Nothing changes, so nothing is written: what the server defaults is not taken for an edit.
	versions := func() string {
		return strings.Join([]string{
			w.route("a").ResourceVersion, w.deployment("a-stable").ResourceVersion, w.deployment("a").ResourceVersion, w.canary("a").ResourceVersion,
		}, " ")
	}
	before := versions()
	w.settle(3)
	if after := versions(); before != after {
		t.Errorf("an idle Canary writes: %s, then %s", before, after)
	}

	w.release("a", "good:1")
	w.until("a", v1alpha1.Progressing)
	if got := w.canary("a").Status; got.Weight != 0 && got.Weight != 5 || got.Candidate == nil || w.weight("a") != 5 {
		t.Errorf("it progresses with %+v", got)
	}
	w.until("a", v1alpha1.Idle)
	if w.stable("a") != "good:1" {
		t.Errorf("%s is stable", w.stable("a"))
	}
	w.release("a", "bad:2")
	w.until("a", v1alpha1.Failed)
	w.settle(3)
	if w.stable("a") != "good:1" || w.weight("a") != 0 || w.reason("a") != machine.Worse || w.canary("a").Status.Rejected == nil {
		t.Errorf("a bad release ended as %+v", w.canary("a").Status)
	}
	w.release("a", "good:3")
	w.until("a", v1alpha1.Progressing)
	w.must(w.api.Delete(t.Context(), w.canary("a")))
	w.settle(5)
	spec := &v1alpha1.CanarySpec{TargetRef: v1alpha1.TargetReference{Name: "a"}}
	if w.get("a", new(v1alpha1.Canary)) || machine.Weight(w.route("a"), spec) != 0 {
		t.Error("the deleted Canary is there, or its candidate has weight")
	}
}

// manages runs the operator as its program does, with the rights that are generated for it and no others.
func manages(t *testing.T, api client.WithWatch, config *rest.Config) {
	t.Helper()
	raw, err := os.ReadFile("../config/rbac/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role := new(rbacv1.ClusterRole)
	if err := yaml.UnmarshalStrict(raw, role); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "operator"}},
	}
	w := worldOn(t, 1, api)
	w.must(api.Create(t.Context(), role))
	w.must(api.Create(t.Context(), binding))
	own := rest.CopyConfig(config)
	own.Impersonate.UserName = "operator"
	ctrl.SetLogger(logr.Discard())
	m, err := ctrl.NewManager(own, ctrl.Options{
		Scheme: known(t), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		LeaderElection: true, LeaderElectionID: "canary", LeaderElectionNamespace: namespace, LeaderElectionReleaseOnCancel: true,
	})
	w.must(err)
	w.must(controller.New(m).Register(m))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Start(ctx); err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	defer running.Wait()
	defer cancel()

	w.adopt("m", nil)
	reaches := func(p v1alpha1.Phase) {
		t.Helper()
		end := time.After(time.Minute)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for w.canary("m").Status.Phase != p {
			select {
			case <-end:
				t.Fatalf("it is not %s: %+v", p, w.canary("m").Status)
			case <-tick.C:
				w.now = time.Now()
				w.turn()
			}
		}
	}
	reaches(v1alpha1.Idle)
	w.release("m", "good:1")
	reaches(v1alpha1.Progressing)
	w.release("m", "crash:2")
	reaches(v1alpha1.Failed)
	if w.route("m") == nil {
		t.Fatal("there is no route")
	}
	if w.weight("m") != 0 || w.stable("m") != "good:0" {
		t.Errorf("the weight is %d, %s is stable", w.weight("m"), w.stable("m"))
	}
	w.release("m", "good:0")
	reaches(v1alpha1.Idle)
	w.must(api.Delete(ctx, w.canary("m")))
	for w.get("m", new(v1alpha1.Canary)) && t.Context().Err() == nil {
		runtime.Gosched()
	}
}

// invalid holds the rules of the kind against the server.
func invalid(t *testing.T, api client.Client) {
	t.Helper()
	route := func() *v1alpha1.Route {
		return &v1alpha1.Route{ParentRefs: []gatewayv1.ParentReference{{Name: "public"}}, Port: 8080, Rules: []v1alpha1.Rule{{}}}
	}
	good := func() *v1alpha1.Canary {
		return &v1alpha1.Canary{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: namespace}, Spec: v1alpha1.CanarySpec{
			TargetRef: v1alpha1.TargetReference{Name: "x"}, ServiceRef: &v1alpha1.ServiceReference{Name: "x"}, Route: route(),
			Steps: []v1alpha1.Step{{Weight: 5}, {Weight: 25}}, Deadline: seconds(60),
		}}
	}
	for name, c := range map[string]struct {
		spoil func(*v1alpha1.Canary)
		says  string
	}{
		"weights fall":            {func(c *v1alpha1.Canary) { c.Spec.Steps[1].Weight = 4 }, "weights must not fall"},
		"a weight of 101":         {func(c *v1alpha1.Canary) { c.Spec.Steps[1].Weight = 101 }, "less than or equal to 100"},
		"no steps":                {func(c *v1alpha1.Canary) { c.Spec.Steps = nil }, "steps"},
		"a step without weight":   {func(c *v1alpha1.Canary) { c.Spec.Steps[0].Weight = 0 }, "a step needs a weight"},
		"weights without a route": {func(c *v1alpha1.Canary) { c.Spec.Route = nil }, "weights need a route"},
		"a deadline of nothing":   {func(c *v1alpha1.Canary) { c.Spec.Deadline = metav1.Duration{Duration: -1e9} }, "at least 1s"},
		"an unknown onFailure":    {func(c *v1alpha1.Canary) { c.Spec.OnFailure = "Explode" }, "Unsupported value"},
		"an alpha of nothing":     {func(c *v1alpha1.Canary) { c.Spec.Analysis.AlphaPercent = "0" }, "alphaPercent"},
		"a long name":             {func(c *v1alpha1.Canary) { c.Name = strings.Repeat("x", 64) }, "at most 63"},
		"a check of nothing": {func(c *v1alpha1.Canary) {
			c.Spec.Analysis.Checks = []v1alpha1.Check{{Name: "x", All: v1alpha1.Series{Metric: "m"}}}
		}, "say either bad or boundaries"},
		"a route without a Gateway": {func(c *v1alpha1.Canary) { c.Spec.Route.ParentRefs = []gatewayv1.ParentReference{} }, "parentRefs"},
		"a timeout that is no time": {func(c *v1alpha1.Canary) {
			c.Spec.Route.Rules[0].Timeouts = &gatewayv1.HTTPRouteTimeouts{Request: new(gatewayv1.Duration("soon"))}
		}, "timeouts"},
		"a target that is not named": {func(c *v1alpha1.Canary) { c.Spec.TargetRef.Name = "" }, "targetRef"},
	} {
		o := good()
		c.spoil(o)
		if err := api.Create(t.Context(), o); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	o := good()
	if err := api.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if s := o.Spec; s.OnFailure != v1alpha1.Rollback || s.CandidateReplicas != 1 || s.Analysis.Port != 8081 || s.Analysis.Sample != 50 {
		t.Errorf("the defaults are %+v", s)
	}
	o.Status.Phase = v1alpha1.Idle
	o.Spec.TargetRef.Name = "y"
	if err := api.Update(t.Context(), o); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "targetRef cannot be changed") {
		t.Errorf("another target: %v", err)
	}
	o.Spec.TargetRef.Name = "x"
	o.Spec.Paused = true
	if err := api.Update(t.Context(), o); err != nil || o.Status.Phase != "" {
		t.Errorf("an update of the spec wrote the status %q: %v", o.Status.Phase, err)
	}
	if err := api.Delete(context.WithoutCancel(t.Context()), o); err != nil {
		t.Error(err)
	}
}
