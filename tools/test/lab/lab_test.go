//go:build k8s

package lab_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/lab"
)

func TestMain(m *testing.M) {
	if lab.ContainerMain() {
		os.Exit(lab.ContainerFailed)
	}
	code, done, err := lab.Enter()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if done {
		os.Exit(code)
	}
	testenv.Main(m)
}

// services returns the services that have an image.
func services() []string {
	return []string{"account", "signup", "messaging", "admin-analytics", "billing", "notifier", "pages"}
}

// world is what all tests share: a cluster, a registry with the images, and the directories of the workspace and its tools.
type world struct {
	root, bin, dir string
	cluster        *lab.Cluster
	registry       *lab.Registry
	// images is the values file with the images' digests.
	images string
}

// chart returns the umbrella chart.
func (w *world) chart() string { return filepath.Join(w.root, "charts/waitlist") }

func (w *world) roles() string { return filepath.Join(w.root, "k8s/postgres/roles.sql") }

// TestLab is a single test because its parts share the cluster.
func TestLab(t *testing.T) {
	w := newWorld(t)
	t.Run("images", w.testImages)
	t.Run("replicas", w.testReplicas)
	t.Run("model", w.testModel)
	t.Run("rollouts", w.testRollouts)
	t.Run("keys", w.testKeys)
	t.Run("canaries", w.testCanaries)
	t.Run("group", w.testGroup)
	for _, kind := range []string{"httproute", "ingress"} {
		t.Run(kind, func(t *testing.T) {
			if err := w.endToEnd(t.Context(), kind); err != nil {
				t.Error(err)
			}
		})
	}
}

// newCluster returns a world without images.
func newCluster(t *testing.T) *world {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{root: root, bin: os.Getenv("LAB_BIN"), dir: t.TempDir()}
	if w.bin == "" {
		t.Fatal("Run make test-k8s, or set LAB_BIN to the directory of its tools.")
	}
	reachable(t, w.dir)
	if w.cluster, err = lab.StartCluster(t.Context(), w.bin, filepath.Join(w.dir, "cluster")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := w.cluster.AddGatewayAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := newCluster(t)
	var err error
	if w.registry, err = lab.StartRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.registry.Stop(); err != nil {
			t.Error(err)
		}
	})
	w.images = filepath.Join(w.dir, "images.yaml")
	w.buildImages(t, w.images)
	return w
}

// reachable lets all users enter a temporary directory: pods run as users of their own.
func reachable(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// buildImages builds and pushes the images as a release does, and writes their digests to file.
func (w *world) buildImages(t *testing.T, file string) {
	t.Helper()
	cmd := w.make(t.Context(), "images", "IMAGES="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make images: %v\n%s", err, out)
	}
}

// make returns a call of the Makefile with the lab's registry. args come last and override the rest. LAB_KOFLAGS adds flags of ko, such
// as --platform=linux/amd64, which halves the time of a first build.
func (w *world) make(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "make", append([]string{
		"BIN=" + w.bin, "VERSION=lab", "REPO=" + w.registry.Address + "/waitlist", "KOFLAGS=--insecure-registry " + os.Getenv("LAB_KOFLAGS"),
	}, args...)...)
	cmd.Dir = w.root
	cmd.Env = append(os.Environ(), "KO_DEFAULTBASEIMAGE="+w.registry.Base(), "KUBECONFIG="+w.cluster.Kubeconfig)
	return cmd
}

// testImages checks that the same source gives the same images.
func (w *world) testImages(t *testing.T) {
	again := filepath.Join(t.TempDir(), "images.yaml")
	w.buildImages(t, again)
	first, err1 := os.ReadFile(w.images)
	second, err2 := os.ReadFile(again)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if string(first) != string(second) || strings.Count(string(first), "sha256:") != len(services()) {
		t.Errorf("the first build gave\n%s\nthe second\n%s", first, second)
	}
}

// endToEnd runs the end-to-end suite against the chart with one kind of routes. LAB_E2E_ARGS adds flags.
func (w *world) endToEnd(ctx context.Context, kind string) error {
	args := append([]string{"-test.v", "-test.timeout=60m", "-test.parallel=1"}, strings.Fields(os.Getenv("LAB_E2E_ARGS"))...)
	cmd := exec.CommandContext(ctx, filepath.Join(w.bin, "e2e.test"), args...)
	cmd.Dir = filepath.Join(w.root, "tools/test/e2e")
	cmd.Env = append(os.Environ(),
		"E2E_STANDALONE="+filepath.Join(w.bin, "lab"), "LAB_KUBECONFIG="+w.cluster.Kubeconfig, "LAB_CHART="+w.chart(), "LAB_VALUES="+w.images,
		"LAB_ROLES="+w.roles(), "LAB_IMAGES="+filepath.Join(w.dir, "pulled"), "LAB_GATEWAY="+kind,
	)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run()
}
