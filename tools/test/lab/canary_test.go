//go:build k8s

package lab_test

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/lab"
)

// canaryRate is how many requests a second the suite gets during a release: 100 of them are signup's, 5 of 8 of what Load sends.
const canaryRate = 160

// released is the service that is released alone.
const released = "signup"

// Labels that the operator gives: to what it makes, and to the pods of stable copies.
const (
	ownerLabel = "canary.waitlist.internal/canary"
	trackLabel = "canary.waitlist.internal/track"
)

// releases is the suite with the operator, which releases one service by canary.
type releases struct {
	*suite
	api dynamic.Interface
	// target is the Deployment of the service.
	target string
	// program is the operator's.
	program  string
	operator *exec.Cmd
	env      []string
	log      *os.File
}

// status is what a test needs to know of a Canary's status.
type status struct {
	Phase   string
	Step    int64
	Weight  int64
	Stable  struct{ Images []string }
	Verdict struct{ State, Reason string }
	// Rejected is why the target's revision failed.
	Rejected   struct{ Revision, Reason, Message string }
	Conditions []metav1.Condition
}

// variant builds the images of services in another version, with build tags or none, and returns the values file with their digests.
func (w *world) variant(t *testing.T, version, tags string, services ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "images.yaml")
	cmd := w.make(t.Context(), "images", "IMAGES="+file, "VERSION="+version, "SERVICES="+strings.Join(services, " "))
	if tags != "" {
		cmd.Env = append(cmd.Env, "GOFLAGS=-tags="+tags)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the version %s: %v\n%s", version, err, out)
	}
	return file
}

// digest returns that of a service from a file of variant.
func digest(t *testing.T, file, service string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + service + `:\n.*"(sha256:[0-9a-f]{64})"`).FindSubmatch(raw)
	if found == nil {
		t.Fatalf("there is no digest of %s in\n%s", service, raw)
	}
	return string(found[1])
}

// tagged says with which build tags the running processes of a service were built.
func (r *releases) tagged(t *testing.T, pods []corev1.Pod) []string {
	t.Helper()
	var out []string
	for _, p := range pods {
		for _, pid := range r.Nodes.Processes(p.UID) {
			info, err := buildinfo.ReadFile(fmt.Sprintf("/proc/%d/exe", pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range info.Settings {
				if s.Key == "-tags" {
					out = append(out, s.Value)
				}
			}
		}
	}
	return out
}

func routes() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
}

func canaries() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "canary.waitlist.internal", Version: "v1alpha1", Resource: "canaries"}
}

// testCanaries releases good and bad builds of signup while the suite is used. Its parts run alone, too: what they all need is no part.
func (w *world) testCanaries(t *testing.T) {
	good := digest(t, w.variant(t, "next", "", released), released)
	bad := digest(t, w.variant(t, "bad", "fault", released), released)
	r := w.releases(t, `{"`+released+`": {"env": {"CANDIDATE": "true"}}}`)
	report := r.load(t, canaryRate, func() { r.adopt(t) })
	if len(report.Failed) > 0 {
		t.Errorf("%d requests failed while the operator took the service over", len(report.Failed))
	}
	if tags := r.tagged(t, r.podsOf(t, released)); len(tags) > 0 {
		t.Errorf("the release was built with %q", tags)
	}
	for _, c := range []struct {
		name, fault string
		reasons     []string
		// most is how many requests may fail, exposed how long the candidate may get any.
		most    int
		exposed time.Duration
	}{
		{"all answers are errors", "errors=100", []string{"Worse"}, 20, 6 * time.Second},
		{"half of the answers are errors", "errors=50", []string{"Worse"}, 20, 6 * time.Second},
		// Three errors tell it, so it reaches the next step at times.
		{"5 percent of the answers are errors", "errors=5", []string{"Worse"}, 40, time.Minute},
		{"answers take 300 ms longer", "slow=300ms", []string{"Worse"}, 0, 10 * time.Second},
		{"crashes at its start", "crash", []string{"CandidateCrashed"}, 0, 0},
		// What the gateway sends to it until it knows: 5 requests a second for two of its lags, and those after a restart.
		{"crashes under load", "crash=20", []string{"CandidateCrashed", "CandidateUnready"}, 20, 15 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.bad(t, bad, c.fault, c.reasons, c.most, c.exposed)
		})
	}
	t.Run("good", func(t *testing.T) {
		if failed := r.promotes(t, good, "good", time.Minute, func(status) {}); failed > 0 {
			t.Errorf("%d requests failed", failed)
		}
		r.weights(t, 5, 25, 50)
	})
	t.Run("interrupted", func(t *testing.T) { r.testInterrupted(t, good, bad) })
	t.Run("deleted", func(t *testing.T) {
		before := r.status(t).Stable.Images[0]
		all := r.api.Resource(canaries()).Namespace(r.Namespace)
		report := r.load(t, canaryRate, func() {
			r.release(t, good, "deleted")
			r.until(t, "the candidate has requests", progressing)
			if err := all.Delete(t.Context(), r.target, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			testenv.Within(t, patience, "the Canary is gone", func() bool {
				_, err := all.Get(t.Context(), r.target, metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
			r.alone(t)
			r.forget()
		})
		if len(report.Failed) > 0 {
			t.Errorf("%d requests failed", len(report.Failed))
		}
		r.stays(t, before)
	})
}

// releases deploys the suite with values and starts the operator.
func (w *world) releases(t *testing.T, values string) *releases {
	t.Helper()
	if err := w.cluster.AddCanaries(t.Context(), filepath.Join(w.root, "k8s/canary/config")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.json")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &releases{
		suite: w.deploy(t, w.chart(), w.images, file), target: lab.Release + "-" + released, program: filepath.Join(w.bin, "operator"),
	}
	var err error
	if r.api, err = dynamic.NewForConfig(w.cluster.Config); err != nil {
		t.Fatal(err)
	}
	r.create(t, "gateway.networking.k8s.io/v1", "gateways", "Gateway", "lab", map[string]any{
		"gatewayClassName": "lab",
		"listeners":        []any{map[string]any{"name": "http", "port": int64(80), "protocol": "HTTP"}},
	})
	_, err = r.Client.RbacV1().RoleBindings(r.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "canary"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "operator", Namespace: r.Namespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// It has the rights that are generated for it and no others.
	admin, err := os.ReadFile(w.cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	as := strings.Replace(string(admin), "user: {token:", "user: {as: system:serviceaccount:"+r.Namespace+":operator, token:", 1)
	if err := os.WriteFile(kubeconfig, []byte(as), 0o600); err != nil {
		t.Fatal(err)
	}
	if r.log, err = os.Create(filepath.Join(t.TempDir(), "operator.log")); err != nil {
		t.Fatal(err)
	}
	r.env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	r.start(t)
	t.Cleanup(func() {
		r.kill()
		// The copies stay whatever happens to their Canaries and to the release of helm, and nobody is left for the finalizers.
		ctx := context.WithoutCancel(t.Context())
		all := r.api.Resource(canaries()).Namespace(r.Namespace)
		list, err := all.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		} else {
			for _, c := range list.Items {
				_, err := all.Patch(ctx, c.GetName(), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
				if err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			}
		}
		if err := r.Client.AppsV1().Deployments(r.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: ownerLabel}); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			raw, _ := os.ReadFile(r.log.Name())
			lines := strings.Split(string(raw), "\n")
			t.Logf("the operator's last lines:\n%s", strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
		_ = r.log.Close()
	})
	return r
}

func (r *releases) start(t *testing.T) {
	t.Helper()
	r.operator = exec.Command(r.program, "-leader-elect=false", "-namespaces", r.Namespace, "-probes", "127.0.0.1:18081", "-metrics", "0")
	r.operator.Env, r.operator.Stdout, r.operator.Stderr = r.env, r.log, r.log
	r.operator.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.operator.Start(); err != nil {
		t.Fatal(err)
	}
}

func (r *releases) kill() {
	_ = r.operator.Process.Kill()
	_ = r.operator.Wait()
}

func (r *releases) create(t *testing.T, group, resource, kind, name string, spec map[string]any) {
	t.Helper()
	version, err := schema.ParseGroupVersion(group)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	objects := r.api.Resource(version.WithResource(resource)).Namespace(r.Namespace)
	if _, err := objects.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// adopt lets the operator take the service over.
func (r *releases) adopt(t *testing.T) {
	t.Helper()
	r.create(t, "canary.waitlist.internal/v1alpha1", "canaries", "Canary", r.target, map[string]any{
		"targetRef":  map[string]any{"name": r.target},
		"serviceRef": map[string]any{"name": r.target},
		"route": map[string]any{
			"parentRefs": []any{map[string]any{"name": "lab"}}, "port": int64(8080),
			"rules": []any{map[string]any{
				"matches": []any{map[string]any{"path": map[string]any{"type": "PathPrefix", "value": "/v1/public"}}},
			}},
		},
		"steps": []any{
			map[string]any{"weight": int64(5), "for": "5s"},
			map[string]any{"weight": int64(25), "for": "5s"},
			map[string]any{"weight": int64(50), "for": "5s"},
		},
		"deadline":  "3m",
		"stableEnv": []any{map[string]any{"name": "CANDIDATE", "value": "false"}},
	})
	r.until(t, "the stable copy serves", func(s status) bool { return s.Phase == "Idle" })
	if err := r.api.Resource(routes()).Namespace(r.Namespace).Delete(t.Context(), r.target, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.alone(t)
}

// alone waits until no pod of the target is left.
func (r *releases) alone(t *testing.T) {
	t.Helper()
	testenv.Within(t, patience, "the target has no pods", func() bool { return len(r.candidates(t)) == 0 })
}

// candidates are the pods of the target, those that end included.
func (r *releases) candidates(t *testing.T) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(r.pods(t), func(p corev1.Pod) bool {
		return !strings.HasPrefix(p.Name, r.target+"-") || p.Labels[trackLabel] != "" ||
			p.Labels["app.kubernetes.io/component"] != "server"
	})
}

func (r *releases) status(t *testing.T) (s status) {
	t.Helper()
	object, err := r.api.Resource(canaries()).Namespace(r.Namespace).Get(t.Context(), r.target, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(object.Object["status"])
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// until waits for a status.
func (r *releases) until(t *testing.T, what string, ok func(s status) bool) status {
	t.Helper()
	var s status
	defer func() {
		if t.Failed() {
			t.Logf("the status is %+v", s)
		}
	}()
	testenv.Within(t, 2*patience, what, func() bool { s = r.status(t); return ok(s) })
	return s
}

// release gives the target an image and a fault.
func (r *releases) release(t *testing.T, digest, fault string) {
	t.Helper()
	deployments := r.Client.AppsV1().Deployments(r.Namespace)
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := deployments.Get(t.Context(), r.target, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := &d.Spec.Template.Spec.Containers[0]
		repository, _, _ := strings.Cut(c.Image, "@")
		c.Image = repository + "@" + digest
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "FAULT" })
		c.Env = append(c.Env, corev1.EnvVar{Name: "FAULT", Value: fault})
		_, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// wire is what the gateway has sent to the candidate since the last call of forget.
func (r *releases) wire() lab.Sent { return r.Gateway.Sent(r.target + "-candidate") }

func (r *releases) forget() {
	for _, side := range []string{"-candidate", "-stable"} {
		r.Gateway.Forget(r.target + side)
	}
}

// bad releases a bad build, and expects that few requests fail until it is taken back, by itself.
func (r *releases) bad(t *testing.T, digest, fault string, reasons []string, most int, exposed time.Duration) {
	t.Helper()
	before := r.status(t)
	r.forget()
	var s status
	report := r.load(t, canaryRate, func() {
		r.release(t, digest, fault)
		s = r.until(t, "the candidate has failed and nothing of it is left", func(s status) bool {
			return s.Phase == "Failed" && s.Rejected.Revision != before.Rejected.Revision
		})
		r.alone(t)
	})
	wire := r.wire()
	t.Logf("FIGURES %s: %s, %d requests on the candidate in %.1f s, %d failed; %s %s", fault, s.Rejected.Reason, wire.Requests,
		wire.Last.Sub(wire.First).Seconds(), len(report.Failed), s.Rejected.Message, s.Verdict.Reason)
	if !slices.Contains(reasons, s.Rejected.Reason) {
		t.Errorf("it failed by %s, want %q", s.Rejected.Reason, reasons)
	}
	if len(report.Failed) > most || wire.Last.Sub(wire.First) > exposed {
		t.Errorf("%d requests failed, at most %d may; it had requests for %s, at most %s", len(report.Failed), most,
			wire.Last.Sub(wire.First), exposed)
	}
	if now := r.status(t); now.Phase != "Failed" || now.Weight != 0 {
		t.Errorf("it ended as %+v", now)
	}
	r.stays(t, before.Stable.Images[0])
}

// stays expects that the stable version has the image, which may be only its digest, and serves alone.
func (r *releases) stays(t *testing.T, image string) {
	t.Helper()
	d, err := r.Client.AppsV1().Deployments(r.Namespace).Get(t.Context(), r.target+"-stable", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now := d.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(now, image) {
		t.Errorf("the stable version of %s has the image %s, want %s", r.target, now, image)
	}
	if d.Status.ReadyReplicas != 2 || d.Status.UpdatedReplicas != 2 || d.Status.Replicas != 2 {
		t.Errorf("the stable version of %s has %d pods, %d of them ready, want 2", r.target, d.Status.Replicas, d.Status.ReadyReplicas)
	}
	if pods := r.candidates(t); len(pods) > 0 {
		t.Errorf("%s has %d pods", r.target, len(pods))
	}
	for service, weight := range r.routed(t) {
		if want := map[string]int64{r.target + "-stable": 100, r.target + "-candidate": 0}[service]; weight != want {
			t.Errorf("the route gives %s the weight %d, want %d", service, weight, want)
		}
	}
	if wire := r.wire(); wire.Requests > 0 && time.Since(wire.Last) < 2*lab.GatewayLag {
		t.Errorf("the gateway still sends requests to the candidate of %s", r.target)
	}
}

// routed are the weights of the operator's route by Service, none if there is no route.
func (r *releases) routed(t *testing.T) map[string]int64 {
	t.Helper()
	route, err := r.api.Resource(routes()).Namespace(r.Namespace).Get(t.Context(), r.target+"-canary", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	rules, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
	for _, rule := range rules {
		backends, _, _ := unstructured.NestedSlice(rule.(map[string]any), "backendRefs")
		for _, b := range backends {
			name, _, _ := unstructured.NestedString(b.(map[string]any), "name")
			out[name], _, _ = unstructured.NestedInt64(b.(map[string]any), "weight")
		}
	}
	return out
}

// promotes releases a good build, does something at each look at the status, and expects the build to be promoted by a time. It returns how
// many requests failed.
func (r *releases) promotes(t *testing.T, digest, label string, by time.Duration, each func(s status)) int {
	t.Helper()
	r.forget()
	began, took := time.Now(), time.Duration(0)
	report := r.load(t, canaryRate, func() {
		// Only bad builds know the variable; it makes a revision of its own here.
		r.release(t, digest, label)
		r.until(t, "it is promoted", func(s status) bool {
			each(s)
			return s.Phase == "Idle" && len(s.Stable.Images) == 1 && strings.HasSuffix(s.Stable.Images[0], digest) && r.labelled(t, label)
		})
		took = time.Since(began)
		r.alone(t)
	})
	t.Logf("FIGURES %s: promoted in %.1f s, %d requests on the candidate, %d failed", label, took.Seconds(), r.wire().Requests,
		len(report.Failed))
	if took > by {
		t.Errorf("it was promoted after %s, want %s", took, by)
	}
	return len(report.Failed)
}

// weights expects that the candidate had these weights in percent at the gateway and no others, with as many requests as chance allows.
func (r *releases) weights(t *testing.T, want ...int32) {
	t.Helper()
	candidate, stable := r.wire().ByWeight, r.Gateway.Sent(r.target+"-stable").ByWeight
	if got := slices.Sorted(maps.Keys(candidate)); !slices.Equal(got, want) {
		t.Errorf("the candidate had the weights %v, want %v", got, want)
	}
	for _, weight := range want {
		p, n := float64(weight)/100, float64(candidate[weight]+stable[100-weight])
		t.Logf("FIGURES weight %d: %d of %.0f requests, %.1f %%", weight, candidate[weight], n, 100*float64(candidate[weight])/n)
		if off := math.Abs(float64(candidate[weight]) - p*n); off > 5*math.Sqrt(n*p*(1-p)) {
			t.Errorf("with weight %d it got %d of %.0f requests", weight, candidate[weight], n)
		}
	}
}

// progressing says that the candidate has requests.
func progressing(s status) bool { return s.Phase == "Progressing" && s.Weight > 0 }

// labelled says whether the stable copy has the label of promotes.
func (r *releases) labelled(t *testing.T, label string) bool {
	t.Helper()
	d, err := r.Client.AppsV1().Deployments(r.Namespace).Get(t.Context(), r.target+"-stable", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].Env, func(e corev1.EnvVar) bool {
		return e.Name == "FAULT" && e.Value == label
	})
}
