//go:build k8s

package controller_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sigs.k8s.io/yaml"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/controller"
	"waitlist.internal/k8s/canary/machine"
)

// server starts etcd and an API server from LAB_BIN, where make charts puts them, with the kinds of the operator and of the Gateway API.
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
		t.Fatalf("start the API server (make charts builds it): %v", err)
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
	t.Parallel() // the API server waits for itself most of the time
	api, config := server(t)
	t.Run("invalid", func(t *testing.T) { invalid(t, api) })
	w := worldOn(t, 1, api)
	w.rights()
	// The parent that charts/waitlist's values name.
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gateway"}})
	w.create(&gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "public", Namespace: "gateway"}, Spec: gateway().Spec})
	t.Run("with a manager", func(t *testing.T) { manages(t, api, config) })
	t.Run("with the charts", func(t *testing.T) { deploys(t, api, config) })
	t.Run("with the script", func(t *testing.T) { scripted(t, api, config) })
	w = worldOn(t, 1, api)
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

// asked records what was asked of an API server, as "verb group/resource".
type asked struct {
	mu  sync.Mutex
	did map[string]bool
}

func (a *asked) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		group := ""
		switch {
		case len(parts) > 2 && parts[0] == "api":
			parts = parts[2:]
		case len(parts) > 3 && parts[0] == "apis":
			group, parts = parts[1], parts[3:]
		default:
			return next.RoundTrip(r) // which kinds there are
		}
		if parts[0] == "namespaces" && len(parts) > 2 {
			parts = parts[2:]
		}
		verb := map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[r.Method]
		if verb == "get" && len(parts) == 1 {
			verb = "list"
			if r.URL.Query().Get("watch") == "true" {
				verb = "watch"
			}
		}
		resource := parts[0]
		if len(parts) > 2 {
			resource += "/" + parts[2]
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.did[verb+" "+group+"/"+resource] = true
		return next.RoundTrip(r)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// operator starts the operator as its program does, as the account and with the rights that charts/canary gives it and no others, until
// the returned function is called.
func operator(t *testing.T, config *rest.Config, a *asked, options ctrl.Options) (m ctrl.Manager, start, stop func()) {
	t.Helper()
	own := rest.CopyConfig(config)
	own.Impersonate.UserName = "system:serviceaccount:" + namespace + ":canary"
	own.Wrap(a.wrap)
	ctrl.SetLogger(logr.Discard())
	options.Scheme, options.Cache.DefaultNamespaces = known(t), map[string]cache.Config{namespace: {}}
	options.Metrics, options.HealthProbeBindAddress = metricsserver.Options{BindAddress: "0"}, "0"
	options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = true, "canary", namespace
	options.LeaderElectionReleaseOnCancel = true
	m, err := ctrl.NewManager(own, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	start = func() {
		running.Go(func() {
			if err := m.Start(ctx); err != nil {
				t.Errorf("the manager ended: %v", err)
			}
		})
	}
	stop = func() {
		cancel()
		running.Wait()
	}
	return m, start, stop
}

// chart renders a chart as a release into the namespace, with helm of LAB_BIN.
func chart(t *testing.T, name, release string, args ...string) (out []*unstructured.Unstructured) {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../../charts")); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	helm := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("LAB_BIN"), "helm"), args...)
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		rendered, err := cmd.Output()
		if err != nil {
			t.Fatalf("helm %v: %v\n%s", args, err, stderr.String())
		}
		return rendered
	}
	if name == "waitlist" {
		helm("dependency", "build", filepath.Join(dir, name))
	}
	rendered := helm(append([]string{"template", release, filepath.Join(dir, name), "--namespace", namespace}, args...)...)
	for text := range strings.SplitSeq(string(rendered), "\n---\n") {
		object := new(unstructured.Unstructured)
		if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if object.GetKind() != "" {
			if object.GetNamespace() == "" {
				object.SetNamespace(namespace)
			}
			out = append(out, object)
		}
	}
	return out
}

// rights gives the operator's account what charts/canary gives it.
func (w *world) rights() {
	w.t.Helper()
	given := 0
	for _, o := range chart(w.t, "canary", "canary", "--set", "image.repository=registry.example.com/operator") {
		if o.GroupVersionKind().Group == rbacv1.GroupName && o.GetAnnotations()["helm.sh/hook"] == "" {
			w.create(o)
			given++
		}
	}
	if given != 6 {
		w.t.Errorf("the chart has %d objects with rights", given)
	}
}

// awaits waits for something while a manager runs.
func (w *world) awaits(what string, ok func() bool) {
	w.t.Helper()
	end := time.After(2 * time.Minute)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end:
			w.t.Fatalf("waited for %s: %+v", what, w.canaries())
		case <-tick.C:
			w.now = time.Now()
			w.turn()
		}
	}
}

func (w *world) reaches(name string, p v1alpha1.Phase) {
	w.t.Helper()
	w.awaits(fmt.Sprintf("%s to be %s", name, p), func() bool { return w.canary(name).Status.Phase == p })
}

// patch changes an object whatever the operator does to it meanwhile.
func patch[T client.Object](w *world, o T, change func(T)) {
	w.t.Helper()
	before, _ := o.DeepCopyObject().(client.Object)
	change(o)
	w.must(w.api.Patch(w.t.Context(), o, client.MergeFrom(before)))
}

// manages takes a Canary through its whole life and holds the role that the operator has against what was asked of the API server.
func manages(t *testing.T, api client.WithWatch, config *rest.Config) {
	t.Helper()
	w := worldOn(t, 1, api)
	w.managed = true
	a := &asked{did: map[string]bool{}}
	m, start, stop := operator(t, config, a, ctrl.Options{})
	defer stop()
	w.must(controller.New(m).Register(m))
	start()

	w.adopt("m", func(c *v1alpha1.Canary) { c.Spec.OnFailure = v1alpha1.Freeze })
	release := func(image string) {
		patch(w, w.deployment("m"), func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image })
	}
	none := corev1.LocalObjectReference{Name: "none"}
	patch(w, w.deployment("m"), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: none}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: none}},
		}
	})
	w.reaches("m", v1alpha1.Idle)
	release("good:1")
	w.reaches("m", v1alpha1.Progressing)
	patch(w, w.canary("m"), func(c *v1alpha1.Canary) {
		c.Annotations = map[string]string{v1alpha1.CommandAnnotation: machine.Command("promote", &c.Status)}
	})
	w.reaches("m", v1alpha1.Idle)
	if w.stable("m") != "good:1" {
		t.Errorf("%s is stable after a promotion", w.stable("m"))
	}
	patch(w, w.canary("m"), func(c *v1alpha1.Canary) { c.Spec.OnFailure = v1alpha1.Rollback })
	release("crash:2")
	w.reaches("m", v1alpha1.Failed)
	if w.weight("m") != 0 || w.stable("m") != "good:1" {
		t.Errorf("the weight is %d, %s is stable", w.weight("m"), w.stable("m"))
	}
	release("good:3")
	w.awaits("the candidate's weight", func() bool { return w.weight("m") == 5 })
	stop()

	// The operator is gone, as after its chart was uninstalled, and the chart's Job cleans up.
	m, start, stop = operator(t, config, a, ctrl.Options{})
	defer stop()
	left := make(chan error, 1)
	w.must(m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		left <- controller.New(m).Retire(ctx)
		return nil
	})))
	start()
	w.must(<-left)
	stop()
	c := w.canary("m")
	if w.weight("m") != 0 || len(c.Finalizers) > 0 || *w.deployment("m").Spec.Replicas != 0 || w.stable("m") != "good:1" {
		t.Errorf("it was left with the weight %d, %v and %s stable", w.weight("m"), c.Finalizers, w.stable("m"))
	}
	w.must(api.Delete(t.Context(), c))
	if w.get("m", new(v1alpha1.Canary)) {
		t.Error("nobody is there, and something holds up the Canary's deletion")
	}

	raw, err := os.ReadFile("../config/rbac/role.yaml")
	w.must(err)
	role := new(rbacv1.ClusterRole)
	w.must(yaml.UnmarshalStrict(raw, role))
	allowed := map[string]bool{}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					allowed[verb+" "+group+"/"+resource] = true
				}
			}
		}
	}
	for _, group := range []string{"", "events.k8s.io"} {
		a.did["patch "+group+"/events"] = true // an Event that comes again, which none did
	}
	for did := range maps.Clone(a.did) {
		if resource, watched := strings.CutPrefix(did, "watch "); watched {
			a.did["list "+resource] = true // where the API server cannot begin a watch with what is there
		}
	}
	if did, may := slices.Sorted(maps.Keys(a.did)), slices.Sorted(maps.Keys(allowed)); !slices.Equal(did, may) {
		t.Errorf("the operator asked for\n%s\nand has the rights\n%s", strings.Join(did, "\n"), strings.Join(may, "\n"))
	}
}

// deploys holds the Canaries of charts/waitlist against the kind, and lets the operator take the rendered suite over.
func deploys(t *testing.T, api client.WithWatch, config *rest.Config) {
	t.Helper()
	w := worldOn(t, 1, api)
	w.managed = true
	var names []string
	for _, o := range chart(t, "waitlist", "w", "--values", "../../../charts/waitlist/ci/canary-values.yaml") {
		switch o.GetKind() {
		case "Canary":
			raw, err := o.MarshalJSON()
			w.must(err)
			w.must(yaml.UnmarshalStrict(raw, new(v1alpha1.Canary)))
			names = append(names, o.GetName())
			fallthrough
		case "Deployment", "Service", "HorizontalPodAutoscaler", "HTTPRoute":
			if err := api.Create(t.Context(), o, client.FieldValidation("Strict")); err != nil {
				t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
			}
		}
	}
	slices.Sort(names)
	if want := []string{"w-account", "w-billing", "w-messaging", "w-notifier", "w-pages", "w-signup"}; !slices.Equal(names, want) {
		t.Fatalf("there are Canaries for %v", names)
	}
	// The process has a controller of that name already.
	options := ctrl.Options{Controller: ctrlconfig.Controller{SkipNameValidation: new(true)}}
	m, start, stop := operator(t, config, &asked{did: map[string]bool{}}, options)
	defer stop()
	w.must(controller.New(m).Register(m))
	start()
	for _, name := range names {
		w.reaches(name, v1alpha1.Idle)
	}
	for name, replicas := range map[string]int32{"w-account-stable": 2, "w-notifier-stable": 1, "w-account": 0, "w-signup": 0} {
		w.awaits(fmt.Sprintf("%s to have %d pods", name, replicas), func() bool {
			d := w.deployment(name)
			return d != nil && *d.Spec.Replicas == replicas
		})
	}
	route := w.route("w-signup")
	if route == nil || len(route.Spec.Rules) != 2 || *route.Spec.Rules[0].Matches[0].Path.Value != "/v1/public" ||
		*route.Spec.Rules[1].Matches[0].Path.Value != "/v1/waitlists" {
		t.Errorf("the route is %+v", route)
	}
	for _, container := range w.deployment("w-signup-stable").Spec.Template.Spec.Containers {
		if !slices.Contains(container.Env, corev1.EnvVar{Name: "CANDIDATE", Value: "false"}) {
			t.Errorf("the stable copy of signup takes itself for a candidate: %+v", container.Env)
		}
	}
}

// scripted deploys a release by the script that pipelines use, twice: the first version of all, and one in which a service crashes.
func scripted(t *testing.T, api client.WithWatch, config *rest.Config) {
	t.Helper()
	w := worldOn(t, 1, api)
	w.managed = true
	dir := t.TempDir()
	images, reports := filepath.Join(dir, "images.yaml"), filepath.Join(dir, "reports")
	kubeconfig := filepath.Join(dir, "kubeconfig")
	w.must(clientcmd.WriteToFile(access(config), kubeconfig))
	deploy := func(digit string, flags ...string) (code int, report string) {
		t.Helper()
		text := "global:\n  image: {repository: good}\n"
		for _, name := range []string{"account", "signup", "admin-analytics", "billing", "messaging", "notifier"} {
			text += fmt.Sprintf("%s:\n  image: {digest: \"sha256:%s\"}\n", name, strings.Repeat(digit, 64))
			flags = append(flags, "--set "+name+".migration.enabled=false", "--set "+name+".autoscaling.enabled=false")
		}
		w.must(os.WriteFile(images, []byte(text), 0o600))
		cmd := exec.CommandContext(t.Context(), "../../../.ci/deploy")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "BIN="+os.Getenv("LAB_BIN"), "IMAGES="+images, "REPORTS="+reports,
			"RELEASE=d", "NAMESPACE="+namespace, "VALUES=charts/waitlist/ci/canary-values.yaml", "HELM_DATA_HOME="+dir, "HELM_CACHE_HOME="+dir,
			"HELM_CONFIG_HOME="+dir, "HELMFLAGS=--set pages.enabled=false --set admin-analytics.canary.enabled=true "+strings.Join(flags, " "))
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		// With what it runs.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		w.must(cmd.Start())
		ended := make(chan struct{})
		t.Cleanup(func() { <-ended })
		go func() {
			defer close(ended)
			_ = cmd.Wait() // its exit code is looked at
		}()
		w.awaits("the script", func() bool {
			select {
			case <-ended:
				return true
			default:
				return false
			}
		})
		t.Logf("ended with %d\n%s", cmd.ProcessState.ExitCode(), out.String())
		raw, err := os.ReadFile(filepath.Join(reports, "d-signup.xml"))
		w.must(err)
		return cmd.ProcessState.ExitCode(), string(raw)
	}
	options := ctrl.Options{Controller: ctrlconfig.Controller{SkipNameValidation: new(true)}}
	m, start, stop := operator(t, config, &asked{did: map[string]bool{}}, options)
	defer stop()
	w.must(controller.New(m).Register(m))
	start()
	if code, report := deploy("1"); code != 0 || strings.Contains(report, "<failure") {
		t.Fatalf("the first deployment ended with %d: %s", code, report)
	}
	w.reaches("d-signup", v1alpha1.Idle)
	code, report := deploy("2", "--set signup.image.repository=crash")
	if code != 1 || !strings.Contains(report, machine.Crashed) {
		t.Errorf("a deployment that crashes ended with %d: %s", code, report)
	}
	for _, name := range []string{"d-signup", "d-account"} {
		if image := w.stable(name); !strings.HasSuffix(image, "@sha256:"+strings.Repeat("1", 64)) || w.weight(name) != 0 {
			t.Errorf("%s is stable of %s, and the candidate has the weight %d", image, name, w.weight(name))
		}
	}
}

// access is a kubeconfig.
func access(config *rest.Config) clientcmdapi.Config {
	return clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"x": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"x": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}},
		CurrentContext: "x",
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
		"weights fall":            {func(c *v1alpha1.Canary) { c.Spec.Steps[1].Weight = 4 }, "weights must not decrease"},
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
		}, "set either bad or boundaries"},
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
