//go:build k8s

package lab_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/internal/standalone"
	"waitlist.internal/tools/test/lab"
)

const (
	// rate is the number of requests per second during a rollout.
	rate = 150
	// atLeast is the minimum duration of a load, so that it covers the time after a change.
	atLeast = 10 * time.Second
	// patience bounds a rollout on a busy machine.
	patience = 2 * time.Minute
)

// suite is the suite in this process, deployed by the chart.
type suite struct {
	*lab.Deployment
	url, db, redis string
	stop           func()
}

// deploy installs a chart with values, those of the images among them. It is removed at the end of the test if not earlier.
func (w *world) deploy(t *testing.T, chart string, values ...string) *suite {
	t.Helper()
	s := &suite{db: testenv.Postgres(t)}
	dir := t.TempDir()
	reachable(t, dir)
	brokers, prefix := testenv.Kafka(t)
	environ := []string{
		"HTTP_ADDR=127.0.0.1:0", "DATA_DIR=" + filepath.Join(dir, "data"), "POSTGRES_URL=" + s.db, "RATE_LIMIT_RPS=100000",
		"RATE_LIMIT_BURST=100000",
		"TRUSTED_PROXIES=127.0.0.1/32", "KAFKA_BROKERS=" + strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX=" + prefix,
	}
	cfg, err := standalone.Load(environ)
	if err != nil {
		t.Fatal(err)
	}
	settings := lab.Settings{
		Kubeconfig: w.cluster.Kubeconfig, Bin: w.bin, Chart: chart, Values: values,
		Roles: w.roles(), Images: filepath.Join(w.dir, "pulled"), Gateway: "httproute", Replicas: 2,
	}
	cfg.Deploy = func(ctx context.Context, suite standalone.Suite) (_ standalone.Deployed, err error) {
		s.redis = suite.Env["REDIS_URL"]
		s.Deployment, err = lab.Deploy(ctx, settings, suite)
		return s.Deployment, err
	}
	running, err := standalone.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.url = running.URL
	stopped := false
	s.stop = func() {
		if !stopped {
			stopped = true
			if err := running.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "data/standalone.log"))
			var failures []string
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, `"level":"ERROR"`) {
					failures = append(failures, line)
				}
			}
			t.Logf("errors in the log:\n%s", strings.Join(failures[:min(len(failures), 20)], ""))
		}
	})
	return s
}

// load sends requests at a rate until change has finished, and a while longer.
func (s *suite) load(t *testing.T, rate int, change func()) lab.Report {
	t.Helper()
	l, err := lab.StartLoad(t.Context(), s.url, rate)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Within(t, patience, "the load has begun", func() bool { return l.Sent() > 2*rate })
	begin := time.Now()
	change()
	took := time.Since(begin)
	sent := l.Sent()
	testenv.Within(t, patience, "the load went on", func() bool { return l.Sent() > sent+rate*int(atLeast/time.Second) })
	r := l.Stop()
	t.Logf("%d requests, %d failed, the slowest took %s; the change took %s", r.Sent, len(r.Failed),
		r.Slowest.Round(time.Millisecond), took.Round(time.Millisecond))
	for _, f := range r.Failed[:min(len(r.Failed), 5)] {
		t.Log(f)
	}
	s.audit(t, r)
	return r
}

// audit compares what a load was told with the tables: no acknowledged signup is missing, and positions have no gaps.
func (s *suite) audit(t *testing.T, r lab.Report) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT email FROM signup.signup WHERE waitlist_id = ANY($1)", r.Waitlists)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(stored)
	for _, email := range r.Joined {
		if _, found := slices.BinarySearch(stored, email); !found {
			t.Errorf("the signup of %s was acknowledged but is missing", email)
		}
	}
	if len(slices.Compact(stored)) != len(stored) {
		t.Error("an address is stored twice")
	}
}

// testRollouts takes one deployment through its life under load.
func (w *world) testRollouts(t *testing.T) {
	chart := w.chart()
	former, images := w.former(t)
	s := w.deploy(t, former, images)
	none := func(t *testing.T, r lab.Report) {
		t.Helper()
		if len(r.Failed) > 0 {
			t.Errorf("%d requests failed", len(r.Failed))
		}
	}
	// replaced checks that the change fails no request and replaces all pods.
	replaced := func(t *testing.T, change func()) {
		t.Helper()
		before := s.pods(t)
		none(t, s.load(t, rate, change))
		if t.Failed() {
			return
		}
		for _, p := range s.pods(t) {
			if slices.ContainsFunc(before, func(old corev1.Pod) bool { return old.UID == p.UID }) {
				t.Errorf("pod %s is from the other release", p.Name)
			}
		}
	}
	t.Run("upgrade", func(t *testing.T) {
		replaced(t, func() { w.upgrade(t, s) })
	})
	t.Run("roll back", func(t *testing.T) {
		replaced(t, func() {
			if err := s.Helm(t.Context(), "rollback", lab.Release, "--namespace", s.Namespace, "--wait", "--timeout",
				patience.String()); err != nil {
				t.Errorf("%v\n%s", err, s.Explain(t.Context()))
			}
		})
	})
	w.upgrade(t, s)
	t.Run("pods deleted", func(t *testing.T) {
		none(t, s.load(t, rate, func() {
			for _, service := range services() {
				pods := s.podsOf(t, service)
				err := s.Client.CoreV1().Pods(s.Namespace).Delete(t.Context(), pods[0].Name, metav1.DeleteOptions{})
				if err != nil {
					t.Error(err)
				}
				testenv.Within(t, patience, service+" has two ready pods, without the one that was deleted", func() bool {
					now := s.podsOf(t, service)
					return len(now) == 2 && ready(now) == 2 && !slices.ContainsFunc(now, func(p corev1.Pod) bool { return p.UID == pods[0].UID })
				})
			}
		}))
	})
	t.Run("pods killed", func(t *testing.T) {
		r := s.load(t, rate, func() {
			for _, service := range services() {
				pod := s.podsOf(t, service)[0]
				s.Nodes.Kill(pod.UID)
				testenv.Within(t, patience, service+" was restarted", func() bool {
					now := s.podsOf(t, service)
					return ready(now) == 2 && slices.ContainsFunc(now, func(p corev1.Pod) bool {
						return p.UID == pod.UID && p.Status.ContainerStatuses[0].RestartCount > pod.Status.ContainerStatuses[0].RestartCount
					})
				})
			}
		})
		// A kill loses the requests in the process and those that the gateway sends until it notices: half of a service's share of
		// the rate for the gateway's lag.
		most := len(services()) * rate / 2 * int(2*lab.GatewayLag/time.Second)
		if len(r.Failed) > most {
			t.Errorf("%d requests failed; at most %d were on their way to killed pods", len(r.Failed), most)
		}
	})
	t.Run("scale", func(t *testing.T) {
		none(t, s.load(t, rate, func() {
			var up []string
			for _, service := range services() {
				up = append(up, "--set", service+".replicas=3")
			}
			if err := s.Upgrade(t.Context(), chart, append(up, "--values", w.images)...); err != nil {
				t.Error(err)
			}
			for _, service := range services() {
				testenv.Within(t, patience, service+" has three ready pods", func() bool { return ready(s.podsOf(t, service)) == 3 })
			}
			if err := s.Upgrade(t.Context(), chart, "--values", w.images); err != nil {
				t.Error(err)
			}
			for _, service := range services() {
				testenv.Within(t, patience, service+" has two pods", func() bool { return len(s.podsOf(t, service)) == 2 })
			}
		}))
	})
	t.Run("stop and start", func(t *testing.T) {
		// As for a restore. The upgrades that follow must still work.
		for _, replicas := range []int32{0, 2} {
			deployments := s.Client.AppsV1().Deployments(s.Namespace)
			for _, service := range services() {
				scale, err := deployments.GetScale(t.Context(), lab.Release+"-"+service, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				// Like kubectl, overwrite what the controller wrote meanwhile.
				scale.ResourceVersion, scale.Spec.Replicas = "", replicas
				if _, err := deployments.UpdateScale(t.Context(), scale.Name, scale, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			for _, service := range services() {
				testenv.Within(t, patience, service+" is scaled", func() bool {
					pods := s.podsOf(t, service)
					return len(pods) == int(replicas) && ready(pods) == len(pods)
				})
			}
		}
		if err := s.Upgrade(t.Context(), chart, "--values", w.images); err != nil {
			t.Error(err)
		}
	})
	t.Run("drain too short", func(t *testing.T) {
		// Pods that stop listening before the gateway knows must fail requests; otherwise the checks above prove nothing.
		hasty := []string{"--values", w.images}
		for _, service := range services() {
			hasty = append(hasty, "--set", service+".shutdown.delaySeconds=0")
		}
		if err := s.Upgrade(t.Context(), chart, append(hasty, "--set", "global.revision=hasty")...); err != nil {
			t.Fatal(err)
		}
		r := s.load(t, rate, func() {
			if err := s.Upgrade(t.Context(), chart, append(hasty, "--set", "global.revision=again")...); err != nil {
				t.Error(err)
			}
		})
		if len(r.Failed) == 0 {
			t.Error("no request failed although pods did not wait for the gateway")
		}
	})
	t.Run("helm test", func(t *testing.T) {
		if err := s.Helm(t.Context(), "test", lab.Release, "--namespace", s.Namespace, "--timeout", "2m"); err != nil {
			t.Errorf("%v\n%s", err, s.Explain(t.Context()))
		}
	})
	t.Run("uninstall", func(t *testing.T) {
		if err := s.Helm(t.Context(), "uninstall", lab.Release, "--namespace", s.Namespace, "--wait"); err != nil {
			t.Fatal(err)
		}
		var left []string
		testenv.Within(t, patience, "the pods have gone", func() bool { return len(s.pods(t)) == 0 })
		left, err := w.cluster.Objects(t.Context(), s.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		left = slices.DeleteFunc(left, func(o string) bool {
			// Kubernetes' own objects and the record of events.
			return strings.HasPrefix(o, "events/") || o == "serviceaccounts/default" || o == "configmaps/kube-root-ca.crt" ||
				strings.HasPrefix(o, "secrets/") && !strings.Contains(o, "helm")
		})
		if len(left) > 0 {
			t.Errorf("left behind: %s", strings.Join(left, ", "))
		}
	})
}

// former returns the chart and images to upgrade from: those of the last release (LAB_FORMER), or if there is none, those of
// this source under another version.
func (w *world) former(t *testing.T) (chart, images string) {
	t.Helper()
	root, dir := w.root, t.TempDir()
	if ref := os.Getenv("LAB_FORMER"); ref != "" {
		root = filepath.Join(dir, "source")
		out, err := exec.CommandContext(t.Context(), "git", "-C", w.root, "worktree", "add", "--detach", root, ref).CombinedOutput()
		if err != nil {
			t.Fatalf("check out %s: %v\n%s", ref, err, out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("git", "-C", w.root, "worktree", "remove", "--force", root).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	images = filepath.Join(dir, "images.yaml")
	build := w.make(t.Context(), "images", "IMAGES="+images, "VERSION=former")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the former images: %v\n%s", err, out)
	}
	pack := exec.CommandContext(t.Context(), filepath.Join(w.bin, "helm"), "package", "--dependency-update",
		"--version", "0.0.1-former", "--destination", dir, filepath.Join(root, "charts/waitlist"))
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("package the former chart: %v\n%s", err, out)
	}
	return filepath.Join(dir, "waitlist-0.0.1-former.tgz"), images
}

// upgrade upgrades a suite to the present chart and images, as operators do.
func (w *world) upgrade(t *testing.T, s *suite) {
	t.Helper()
	cmd := w.make(t.Context(), "deploy", "RELEASE="+lab.Release, "NAMESPACE="+s.Namespace,
		"IMAGES="+filepath.Join(t.TempDir(), "images.yaml"), "VALUES="+s.Values())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("make deploy: %v\n%s", err, out)
	}
}

func (s *suite) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := s.Client.CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// podsOf returns a service's pods that are not terminating.
func (s *suite) podsOf(t *testing.T, service string) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(s.pods(t), func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Labels["app.kubernetes.io/name"] != service ||
			p.Labels["app.kubernetes.io/component"] != "server" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

func ready(pods []corev1.Pod) int {
	n := 0
	for _, p := range pods {
		if slices.ContainsFunc(p.Status.Conditions,
			func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
			n++
		}
	}
	return n
}
