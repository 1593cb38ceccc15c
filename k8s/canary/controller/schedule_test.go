package controller_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	corev1 "k8s.io/api/core/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/machine"
)

// TestSchedules takes random schedules, CANARY_SCHEDULES or ten (five with -short), of releases, edits of specs and of routes by
// hand, failing pods, commands, kills of the operator between any two writes, errors of the API server and conflicts. The oracles
// are in world: after each write, and after each reconcile that ended well, the state must be legal. In the end, left alone, each
// Canary must arrive where it belongs.
func TestSchedules(t *testing.T) {
	t.Parallel()
	start, n := uint64(1), uint64(10)
	if testing.Short() {
		n = 5
	}
	if text := os.Getenv("CANARY_SCHEDULES"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	switch text := os.Getenv("CANARY_SEED"); text {
	case "":
	case "random":
		start = uint64(time.Now().UnixNano())
	default:
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		schedule(t, seed, map[v1alpha1.Phase]bool{})
		return
	}
	t.Logf("seeds %d to %d; CANARY_SEED takes one of them alone, or random ones", start, start+n-1)
	total := struct{ kills, errs, conflicts, phases int }{}
	seen := map[v1alpha1.Phase]bool{}
	for seed := start; seed < start+n; seed++ {
		w := schedule(t, seed, seen)
		total.kills, total.errs, total.conflicts = total.kills+w.kills, total.errs+w.errs, total.conflicts+w.clash
	}
	t.Logf("%d kills, %d errors, %d conflicts; phases %v", total.kills, total.errs, total.conflicts, seen)
	for _, p := range []v1alpha1.Phase{
		v1alpha1.Initializing, v1alpha1.Idle, v1alpha1.Starting, v1alpha1.Progressing, v1alpha1.Passed, v1alpha1.Promoting, v1alpha1.Failed,
		v1alpha1.Frozen,
	} {
		if !seen[p] {
			t.Errorf("no schedule came to %s", p)
		}
	}
}

func schedule(t *testing.T, seed uint64, seen map[v1alpha1.Phase]bool) *world {
	t.Helper()
	w := newWorld(t, seed)
	w.note("seed %d", seed)
	names := []string{"a", "b"}[:1+w.rand.IntN(2)]
	for _, name := range names {
		w.adopt(name, func(c *v1alpha1.Canary) {
			c.Spec.CandidateReplicas = 1 + w.rand.Int32N(2)
			if w.one(2) {
				c.Spec.Group = "release"
			}
		})
	}
	w.faults, w.lazy = true, true
	release := 0
	for range 120 {
		w.now = w.now.Add(time.Duration(w.rand.IntN(1500)) * time.Millisecond)
		name := names[w.rand.IntN(len(names))]
		if w.one(12) {
			release++
			w.disturb(name, release)
		}
		w.turn()
		w.reconcile(name)
		seen[w.canary(name).Status.Phase] = true
	}
	w.note("the world calms down")
	if !w.get("public", new(gatewayv1.Gateway)) {
		w.create(gateway())
	}
	for _, name := range names {
		w.edit(name, func(c *v1alpha1.Canary) {
			c.Spec.Paused, c.Spec.OnFailure, c.Spec.Deadline = false, v1alpha1.Rollback, seconds(60)
			c.Annotations = nil
		})
		clear(w.broken)
		if w.canary(name).Status.Stable == nil {
			// What never served has nothing to go back to.
			w.release(name, fmt.Sprintf("good:%d", release))
			w.until(name, v1alpha1.Idle)
		}
		image := []string{"good", "bad", "never", "crash"}[w.rand.IntN(4)]
		w.release(name, fmt.Sprintf("%s:%d", image, release+1))
	}
	for _, name := range names {
		w.rest(name)
	}
	for _, name := range names {
		w.arrived(name, names)
	}
	return w
}

// rest settles until a Canary has been where it is for a while.
func (w *world) rest(name string) {
	for still := 0; still < 10; {
		before := w.canary(name)
		w.settle(1)
		still++
		if p := w.canary(name).Status.Phase; p != before.Status.Phase || p != v1alpha1.Idle && p != v1alpha1.Failed {
			still = 0
		}
		if w.rounds++; w.rounds > 400 {
			w.fatal("%s does not come to rest: %+v", name, w.canary(name).Status)
		}
	}
}

// disturb does something that people and machines do.
func (w *world) disturb(name string, n int) {
	var did string
	switch w.rand.IntN(12) {
	case 0, 1, 2, 3:
		images := []string{"good", "good", "bad", "never", "crash"}
		w.release(name, images[w.rand.IntN(len(images))]+":"+strconv.Itoa(n))
		did = "release"
	case 4:
		did = "edit the steps"
		w.edit(name, func(c *v1alpha1.Canary) {
			c.Spec.Steps = nil
			weight := int32(1)
			for range 1 + w.rand.IntN(4) {
				weight += w.rand.Int32N(25)
				c.Spec.Steps = append(c.Spec.Steps, v1alpha1.Step{Weight: weight, For: seconds(w.rand.IntN(4))})
			}
		})
	case 5:
		did = "edit the spec"
		w.edit(name, func(c *v1alpha1.Canary) {
			c.Spec.Paused = w.one(4)
			c.Spec.OnFailure = v1alpha1.Rollback
			if w.one(3) {
				c.Spec.OnFailure = v1alpha1.Freeze
			}
			c.Spec.Deadline = seconds(20 + w.rand.IntN(100))
		})
	case 6, 7:
		did = "edit the route by hand"
		if h := w.route(name); h != nil && len(h.Spec.Rules) > 0 {
			refs := h.Spec.Rules[0].BackendRefs
			if len(refs) > 1 {
				refs[0].Weight, refs[1].Weight = new(w.rand.Int32N(100)), new(w.rand.Int32N(100))
			}
			if w.one(3) {
				h.Annotations = nil
			}
			w.update(h)
		}
	case 8:
		did = "a pod stops being ready"
		for _, p := range w.podsOf(name) {
			w.broken[p.Name] = true
		}
	case 9:
		did = "evict the candidate's pods"
		for _, p := range w.podsOf(name) {
			w.must(w.api.Delete(w.t.Context(), &p))
		}
	case 10:
		if g := new(gatewayv1.Gateway); w.get("public", g) {
			did = "delete the Gateway"
			w.must(w.api.Delete(w.t.Context(), g))
		} else {
			did = "create the Gateway"
			w.create(gateway())
		}
	case 11:
		c := w.canary(name)
		verb := []string{"promote", "abort"}[w.rand.IntN(2)]
		did = "order " + verb
		if c.Status.Candidate != nil {
			w.edit(name, func(c *v1alpha1.Canary) {
				c.Annotations = map[string]string{v1alpha1.CommandAnnotation: machine.Command(verb, &c.Status)}
			})
		}
	}
	w.note("%s: %s", name, did)
}

// arrived checks where a Canary is in the end.
func (w *world) arrived(name string, names []string) {
	c, image := w.canary(name), w.image(name)
	stable := w.deployment(name + "-stable").Spec.Template.Spec.Containers[0].Image
	good := image[:4] == "good"
	for _, other := range names {
		// A group arrives together or not at all.
		if other != name && c.Spec.Group != "" && w.canary(other).Spec.Group == c.Spec.Group && w.image(other)[:4] != "good" {
			if stable == image {
				w.fatal("%s was promoted, and %s of its group has %s", name, other, w.image(other))
			}
			good = false
		}
	}
	// A schedule may have ordered a bad revision's promotion.
	running := new(corev1.PodList)
	w.must(w.api.List(w.t.Context(), running))
	switch {
	case good && (c.Status.Phase != v1alpha1.Idle || stable != image):
		w.fatal("%s has %s and ended as %s with %s stable: %+v", name, image, c.Status.Phase, stable, c.Status)
	case !good && (c.Status.Phase != v1alpha1.Failed || stable == image):
		w.fatal("%s has %s and ended as %s with %s stable: %+v", name, image, c.Status.Phase, stable, c.Status)
	case w.weight(name) != 0 || c.Status.Weight != 0:
		w.fatal("%s ended with the weight %d, and its status says %d", name, w.weight(name), c.Status.Weight)
	case *w.deployment(name).Spec.Replicas != 0:
		w.fatal("%s ended with %d pods of the target", name, *w.deployment(name).Spec.Replicas)
	case w.deployment(name+"-stable").Status.AvailableReplicas == 0:
		w.fatal("%s ended without a stable pod", name)
	}
}
