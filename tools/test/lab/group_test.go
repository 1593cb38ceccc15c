//go:build k8s

package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"waitlist.internal/tools/test/lab"
)

// poisoned is the service whose bad build cannot handle an event.
const poisoned = "admin-analytics"

// testGroup takes the whole suite over as docs/canary.md says, releases all services at once while they are used, with the script of a
// pipeline, and removes the operator. Its parts run alone, too.
func (w *world) testGroup(t *testing.T) {
	next := w.variant(t, "next", "", services()...)
	bad := w.variant(t, "bad", "fault", poisoned)
	r := w.releases(t, `{}`)
	none := func(t *testing.T, report lab.Report) {
		t.Helper()
		if len(report.Failed) > 0 {
			t.Errorf("%d requests failed", len(report.Failed))
		}
	}
	// The rarest requests are those of billing and pages: ten a second.
	adopted := map[string]any{"global": map[string]any{"canary": map[string]any{
		"enabled": true, "deadline": "4m", "analysis": map[string]any{"sample": 5},
		"steps": []any{map[string]any{"weight": 25, "for": "5s"}, map[string]any{"weight": 50, "for": "5s"}},
	}}}
	none(t, r.load(t, canaryRate, func() {
		for _, service := range services() {
			r.of(service).scale(t, 3)
		}
		r.pipeline(t, w, 0, w.images, adopted, func() {})
		adopted["gateway"] = map[string]any{"ownedByOperator": []string{"account", "signup", "billing", "messaging", "pages"}}
		r.pipeline(t, w, 0, w.images, adopted, func() {})
	}))
	r.serve(t, w.images)
	serving, other := w.images, next

	t.Run("good", func(t *testing.T) {
		var took time.Duration
		none(t, r.load(t, canaryRate, func() {
			began := time.Now()
			r.pipeline(t, w, 0, other, adopted, func() {})
			took = time.Since(began)
		}))
		r.serve(t, other)
		serving, other = other, serving
		t.Logf("FIGURES all services: promoted in %.1f s with the time of the pipeline", took.Seconds())
	})
	t.Run("one poisons its consumer", func(t *testing.T) {
		raw, err := os.ReadFile(other)
		if err != nil {
			t.Fatal(err)
		}
		images := filepath.Join(t.TempDir(), "images.yaml")
		raw = bytes.ReplaceAll(raw, []byte(digest(t, other, poisoned)), []byte(digest(t, bad, poisoned)))
		if err := os.WriteFile(images, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		values := map[string]any{poisoned: map[string]any{"env": map[string]any{"FAULT": "poison"}}}
		maps.Copy(values, adopted)
		seen := consumed{}
		none(t, r.load(t, canaryRate, func() {
			r.pipeline(t, w, 1, images, values, func() { r.of(poisoned).count(t, &seen) })
		}))
		for _, service := range services() {
			s, want := r.of(service).status(t), "GroupFailed"
			if service == poisoned {
				want = "Worse"
			}
			if s.Phase != "Failed" || s.reason("Ready") != want {
				t.Errorf("%s ended as %s by %s, want %s", service, s.Phase, s.reason("Ready"), want)
			}
		}
		r.serve(t, serving)
		t.Logf("FIGURES %s: at least %d dead letters and %d retries in %.1f s; %s", poisoned, seen.letters, seen.retries,
			seen.last.Sub(seen.first).Seconds(), r.of(poisoned).status(t).Rejected.Message)
		if seen.retries == 0 {
			t.Error("the bad build retried nothing, so this proves nothing")
		}
	})
	t.Run("operator uninstalled", func(t *testing.T) {
		signup := r.of(released)
		none(t, r.load(t, canaryRate, func() {
			// As long as one of the group has failed, no other starts.
			r.pipeline(t, w, 0, serving, adopted, func() {})
			signup.release(t, digest(t, other, released), "uninstalled")
			signup.until(t, "the candidate has requests", progressing)
			r.kill()
			// The Job of charts/canary does this.
			retire := exec.CommandContext(t.Context(), r.program, "-retire", "-namespaces", r.Namespace, "-lease-namespace", r.Namespace,
				"-probes", "127.0.0.1:18081", "-metrics", "0")
			retire.Env = r.env
			if out, err := retire.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			signup.alone(t)
		}))
		r.serve(t, serving)
		for _, service := range services() {
			all := r.api.Resource(canaries()).Namespace(r.Namespace)
			c, err := all.Get(t.Context(), r.of(service).target, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if f := c.GetFinalizers(); len(f) > 0 {
				t.Errorf("the Canary of %s cannot be deleted: it has %q", service, f)
			}
		}
	})
}

// of is the same for another service.
func (r *releases) of(service string) *releases {
	other := *r
	other.target = lab.Release + "-" + service
	return &other
}

// scale sets the number of the target's pods, like kubectl scale.
func (r *releases) scale(t *testing.T, n int32) {
	t.Helper()
	deployments := r.Client.AppsV1().Deployments(r.Namespace)
	scale, err := deployments.GetScale(t.Context(), r.target, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.ResourceVersion, scale.Spec.Replicas = "", n
	if _, err := deployments.UpdateScale(t.Context(), r.target, scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pipeline releases images as .github/workflows/deploy.yml does, expects an exit code, and waits until no candidate is left. It calls each
// now and then meanwhile.
func (r *releases) pipeline(t *testing.T, w *world, want int, images string, values map[string]any, each func()) {
	t.Helper()
	raw, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file, reports := filepath.Join(t.TempDir(), "values.json"), t.TempDir()
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(w.root, ".ci/deploy"))
	cmd.Env = append(os.Environ(), "BIN="+w.bin, "KUBECONFIG="+w.cluster.Kubeconfig, "RELEASE="+lab.Release, "NAMESPACE="+r.Namespace,
		"IMAGES="+images, "VALUES="+r.Values()+" "+file, "REPORTS="+reports, "TIMEOUT=5m")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for going := true; going; {
		select {
		case err = <-ended:
			going = false
		case <-tick.C:
			each()
		}
	}
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if code != want {
		t.Fatalf("the pipeline ended with %d, want %d:\n%s\n%s", code, want, out.String(), r.Explain(t.Context()))
	}
	if files, err := filepath.Glob(filepath.Join(reports, "*.xml")); err != nil || len(files) != len(services()) {
		t.Errorf("there are reports of %d services, want %d (%v)", len(files), len(services()), err)
	}
	for _, service := range services() {
		r.of(service).alone(t)
	}
}

// serve expects that all stable versions have these images and serve alone.
func (r *releases) serve(t *testing.T, images string) {
	t.Helper()
	for _, service := range services() {
		r.of(service).stays(t, digest(t, images, service))
	}
}

// consumed is what a candidate has counted of its events.
type consumed struct {
	letters, retries int
	// first is when the first of them was seen, last when the last was.
	first, last time.Time
}

// count reads what the candidate's pods have counted.
func (r *releases) count(t *testing.T, seen *consumed) {
	t.Helper()
	for _, p := range r.candidates(t) {
		body := metrics(t.Context(), p.Status.PodIP)
		letters, retries := counter(body, "kafka_consumer_dead_letters_total"), counter(body, "kafka_consumer_retries_total")
		if letters <= seen.letters && retries <= seen.retries {
			continue
		}
		seen.letters, seen.retries, seen.last = max(letters, seen.letters), max(retries, seen.retries), time.Now()
		if seen.first.IsZero() {
			seen.first = seen.last
		}
	}
}

// metrics are what a pod shows, nothing if it does not answer.
func metrics(ctx context.Context, ip string) []byte {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(ip, "8081")+"/metrics", http.NoBody)
	if err != nil {
		return nil
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return body
}

// counter adds up all series of a metric.
func counter(body []byte, name string) (sum int) {
	for _, found := range regexp.MustCompile(`(?m)^`+name+`\{.*\} (\S+)$`).FindAllSubmatch(body, -1) {
		n, _ := strconv.ParseFloat(string(found[1]), 64)
		sum += int(n)
	}
	return sum
}

// reason is that of a condition.
func (s *status) reason(kind string) string {
	i := slices.IndexFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return ""
	}
	return s.Conditions[i].Reason
}
