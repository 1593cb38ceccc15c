//go:build k8s && anchor

package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/lab"
)

const (
	prometheusAddress = "127.0.0.1:19090"
	anchorName        = "anchor"
	// anchorLabel tells signup's pods from others, whatever the anchor renames.
	anchorLabel = "waitlist.internal/anchor"
)

// measured are the releases that both controllers meet; "" is a good build.
func measured() []string { return []string{"errors=50", "", "errors=100", "errors=5"} }

// TestAnchor releases the same builds under the same load through the same gateway, by our operator and by Flagger, the best-known canary
// controller. It prints figures and compares nothing.
func TestAnchor(t *testing.T) {
	w := newWorld(t)
	good := digest(t, w.variant(t, "next", "", released), released)
	bad := digest(t, w.variant(t, "bad", "fault", released), released)
	image := func(fault string) string {
		if fault == "" {
			return good
		}
		return bad
	}
	t.Run("ours", func(t *testing.T) {
		r := w.releases(t, `{"`+released+`": {"env": {"CANDIDATE": "true"}}}`)
		r.adopt(t)
		for _, fault := range measured() {
			r.measure(t, r.target+"-candidate", "ours", image(fault), fault, func() string { return r.status(t).Phase })
			if s := r.status(t); s.Phase == "Failed" {
				t.Logf("FIGURES ours, %q: %s; %s", fault, s.Rejected.Reason, s.Rejected.Message)
			}
			r.alone(t)
		}
	})
	for _, threshold := range []int64{1, 3} {
		t.Run(fmt.Sprintf("Flagger with threshold %d", threshold), func(t *testing.T) {
			a := w.anchor(t, threshold)
			for _, fault := range measured() {
				a.measure(t, anchorName+"-canary", fmt.Sprintf("Flagger with threshold %d", threshold), image(fault), fault, func() string {
					phase, _, _ := unstructured.NestedString(a.look(t).Object, "status", "phase")
					return phase
				})
			}
		})
	}
}

// measure releases a build and logs what that cost until a phase ends it. The phase of the release before must be over.
func (r *releases) measure(t *testing.T, service, by, digest, fault string, phase func() string) {
	t.Helper()
	r.Gateway.Forget(service)
	var ended string
	var began, at time.Time
	report := r.load(t, canaryRate, func() {
		began = time.Now()
		r.release(t, digest, fault)
		under := false
		testenv.Within(t, 2*patience, "the release has ended", func() bool {
			ended = phase()
			final := ended == "Failed" || ended == "Succeeded" || ended == "Idle"
			under = under || !final && ended != "Initialized"
			return under && final
		})
		at = time.Now()
	})
	wire := r.Gateway.Sent(service)
	t.Logf("FIGURES %s, %q: %s %.1f s after the deployment's change, %.1f s after its first request; %d requests in %.1f s, %d failed of %d",
		by, fault, ended, at.Sub(began).Seconds(), at.Sub(wire.First).Seconds(), wire.Requests, wire.Last.Sub(wire.First).Seconds(),
		len(report.Failed), report.Sent)
}

// anchored is the suite with Flagger and a Prometheus.
type anchored struct {
	*releases
	kind    dynamic.ResourceInterface
	targets string
}

// anchor deploys the suite and lets Flagger take signup over: the shortest interval that it knows, and a Prometheus that scrapes each
// second. It fails a canary after so many bad looks.
func (w *world) anchor(t *testing.T, threshold int64) *anchored {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fluxcd/flagger")
	list.Dir, list.Env = filepath.Join(w.root, "tools/buildtools/anchor"), append(os.Environ(), "GOWORK=off")
	module, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cluster.AddKinds(t.Context(), filepath.Join(strings.TrimSpace(string(module)), "artifacts/flagger/crd.yaml")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	a := &anchored{releases: &releases{suite: w.deploy(t, w.chart(), w.images), target: lab.Release + "-" + released}}
	t.Cleanup(func() {
		// Runs after Flagger's end, which would make it anew.
		err := a.Client.AppsV1().Deployments(a.Namespace).Delete(context.WithoutCancel(t.Context()), a.target+"-primary", metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	a.targets = filepath.Join(dir, "targets.json")
	if a.api, err = dynamic.NewForConfig(w.cluster.Config); err != nil {
		t.Fatal(err)
	}
	a.kind = a.api.Resource(schema.GroupVersionResource{Group: "flagger.app", Version: "v1beta1", Resource: "canaries"}).Namespace(a.Namespace)
	a.create(t, "gateway.networking.k8s.io/v1", "gateways", "Gateway", "lab", map[string]any{
		"gatewayClassName": "lab",
		"listeners":        []any{map[string]any{"name": "http", "port": int64(80), "protocol": "HTTP"}},
	})
	// It renames the label that Services select by, so calls by gRPC would find no pod.
	a.merge(t, "deployments", a.target, `{"spec": {"template": {"metadata": {"labels": {"`+anchorLabel+`": "`+released+`"}}}}}`)
	testenv.Within(t, patience, "all pods have the label", func() bool {
		pods := a.podsOf(t, released)
		labelled := 0
		for _, p := range pods {
			if p.Labels[anchorLabel] != "" {
				labelled++
			}
		}
		return len(pods) == 2 && labelled == 2 && ready(pods) == 2
	})
	for _, service := range []string{a.target, a.target + "-grpc"} {
		a.merge(t, "services", service, `{"spec": {"selector": {"app.kubernetes.io/name": null, "`+anchorLabel+`": "`+released+`"}}}`)
	}

	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(`global: {scrape_interval: 1s, scrape_timeout: 900ms}
scrape_configs: [{job_name: pods, file_sd_configs: [{files: ["`+a.targets+`"], refresh_interval: 1s}]}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	a.discover(t)
	a.process(t, dir, "prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "tsdb"), "--web.listen-address",
		prometheusAddress)
	a.process(t, dir, filepath.Join(w.bin, "flagger"), "-kubeconfig", w.cluster.Kubeconfig, "-mesh-provider", "gatewayapi:v1",
		"-metrics-server", "http://"+prometheusAddress, "-port", "18089", "-namespace", a.Namespace, "-log-level", "info",
		"-enable-config-tracking=false")
	a.create(t, "flagger.app/v1beta1", "metrictemplates", "MetricTemplate", "success", map[string]any{
		"provider": map[string]any{"type": "prometheus", "address": "http://" + prometheusAddress},
		"query": `100 - 100 * (sum(rate(http_server_responses_total{deployment="{{ target }}", http_response_status_code=~"5.."}[{{ interval }}]))
			or vector(0)) / sum(rate(http_server_responses_total{deployment="{{ target }}"}[{{ interval }}]))`,
	})
	a.create(t, "flagger.app/v1beta1", "canaries", "Canary", a.target, map[string]any{
		"targetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": a.target},
		"service": map[string]any{
			"name": anchorName, "port": int64(8080), "targetPort": "http", "gatewayRefs": []any{map[string]any{"name": "lab"}},
			"match": []any{map[string]any{"uri": map[string]any{"prefix": "/v1/public"}}},
		},
		"progressDeadlineSeconds": int64(120),
		"analysis": map[string]any{
			"interval": "10s", "threshold": threshold, "stepWeights": []any{int64(5), int64(25), int64(50)},
			"metrics": []any{map[string]any{
				"name": "success", "interval": "10s", "templateRef": map[string]any{"name": "success"},
				"thresholdRange": map[string]any{"min": int64(99)},
			}},
		},
	})
	testenv.Within(t, 2*patience, "Flagger has taken the service over", func() bool {
		phase, _, _ := unstructured.NestedString(a.look(t).Object, "status", "phase")
		return phase == "Initialized"
	})
	if err := a.api.Resource(routes()).Namespace(a.Namespace).Delete(t.Context(), a.target, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return a
}

// look returns Flagger's Canary, and tells Prometheus the pods of now, as its discovery in a cluster does.
func (a *anchored) look(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	a.discover(t)
	c, err := a.kind.Get(t.Context(), a.target, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *anchored) discover(t *testing.T) {
	t.Helper()
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := []group{}
	for _, p := range a.pods(t) {
		if p.Labels[anchorLabel] == "" || p.Status.PodIP == "" {
			continue
		}
		deployment := a.target
		if strings.HasPrefix(p.Name, a.target+"-primary-") {
			deployment += "-primary"
		}
		groups = append(groups, group{[]string{p.Status.PodIP + ":8081"}, map[string]string{"deployment": deployment}})
	}
	raw, err := json.Marshal(groups)
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := os.ReadFile(a.targets); string(now) == string(raw) {
		return
	}
	// Replaced whole: Prometheus never reads half of it.
	if err := os.WriteFile(a.targets+".next", raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a.targets+".next", a.targets); err != nil {
		t.Fatal(err)
	}
}

// merge changes a Deployment or a Service.
func (a *anchored) merge(t *testing.T, resource, name, patch string) {
	t.Helper()
	of := schema.GroupVersionResource{Version: "v1", Resource: resource}
	if resource == "deployments" {
		of.Group = "apps"
	}
	if _, err := a.api.Resource(of).Namespace(a.Namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// process runs a program until the end of the test.
func (a *anchored) process(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, filepath.Base(program)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			raw, _ := os.ReadFile(log.Name())
			lines := strings.Split(string(raw), "\n")
			t.Logf("last lines of %s:\n%s", filepath.Base(program), strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	})
}
