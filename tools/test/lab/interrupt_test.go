//go:build k8s

package lab_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/lab"
)

// testInterrupted does to releases what may happen to them. Each goes on or is taken back, and none stays in between.
func (r *releases) testInterrupted(t *testing.T, good, bad string) {
	t.Helper()
	const by = 3 * time.Minute
	none := func(t *testing.T, failed int) {
		t.Helper()
		if failed > 0 {
			t.Errorf("%d requests failed", failed)
		}
	}
	t.Run("operator killed at every write", func(t *testing.T) {
		last, kills := "", 0
		none(t, r.promotes(t, good, "killed", by, func(s status) {
			// The judge's samples are no part of it: an operator that starts anew each second never has enough.
			if now := fmt.Sprint(s.Phase, s.Step, s.Weight, r.generations(t)); now != last {
				last = now
				kills++
				r.kill()
				r.start(t)
			}
		}))
		r.within(t, 5, 25, 50)
		t.Logf("FIGURES the operator was killed %d times", kills)
	})
	t.Run("image changed midway", func(t *testing.T) {
		r.release(t, bad, "")
		r.until(t, "the first one has requests", progressing)
		if tags := r.tagged(t, r.candidates(t)); !slices.Contains(tags, "fault") {
			t.Errorf("a bad build has the tags %q, so the look at good ones proves nothing", tags)
		}
		none(t, r.promotes(t, good, "changed", by, func(status) {}))
		r.within(t, 5, 25, 50)
	})
	t.Run("steps changed midway", func(t *testing.T) {
		none(t, r.promotes(t, good, "steps", by, once(progressing, func() { r.patch(t, `{"steps": [{"weight": 10, "for": "2s"}]}`) })))
		r.within(t, 5, 10)
		r.patch(t, `{"steps": [{"weight": 5, "for": "5s"}, {"weight": 25, "for": "5s"}, {"weight": 50, "for": "5s"}]}`)
	})
	t.Run("route edited by hand", func(t *testing.T) {
		all := r.api.Resource(routes()).Namespace(r.Namespace)
		none(t, r.promotes(t, good, "edited", by, once(progressing, func() {
			if _, err := all.Patch(t.Context(), r.target+"-canary", types.JSONPatchType,
				[]byte(`[{"op": "replace", "path": "/spec/rules/0/backendRefs/1/weight", "value": 900}]`), metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
			testenv.Within(t, patience, "the edit is put back", func() bool { return r.routed(t)[r.target+"-candidate"] <= 50 })
		})))
		r.within(t, 5, 25, 50)
	})
	t.Run("stable pod dies during the promotion", func(t *testing.T) {
		failed := r.promotes(t, good, "dies", by, once(func(s status) bool { return s.Phase == "Promoting" }, func() {
			for _, p := range r.podsOf(t, released) {
				if p.Labels[trackLabel] != "" {
					r.Nodes.Kill(p.UID)
					return
				}
			}
			t.Error("there is no stable pod")
		}))
		// What the gateway sends to the pod until it knows, as in the test of killed pods.
		if most := canaryRate * int(2*lab.GatewayLag/time.Second); failed > most {
			t.Errorf("%d requests failed, at most %d may", failed, most)
		}
	})
	t.Run("metrics away", func(t *testing.T) {
		r.patch(t, `{"analysis": {"port": 9}, "deadline": "20s"}`)
		before := r.status(t)
		r.forget()
		report := r.load(t, canaryRate, func() {
			r.release(t, good, "blind")
			s := r.until(t, "the deadline ends it", func(s status) bool { return s.Phase == "Failed" })
			if s.Rejected.Reason != "DeadlineExceeded" {
				t.Errorf("it failed by %+v", s.Rejected)
			}
			r.alone(t)
		})
		none(t, len(report.Failed))
		// It is held at the first step: nothing tells that it is good.
		r.within(t, 5)
		r.stays(t, before.Stable.Images[0])
		r.patch(t, `{"analysis": {"port": 8081}, "deadline": "3m"}`)
	})
}

// within expects that the candidate had no other weights at the gateway than these, since the last call of forget.
func (r *releases) within(t *testing.T, allowed ...int32) {
	t.Helper()
	for _, weight := range slices.Sorted(maps.Keys(r.wire().ByWeight)) {
		if !slices.Contains(allowed, weight) {
			t.Errorf("the candidate had %d requests with the weight %d, only %v are allowed", r.wire().ByWeight[weight], weight, allowed)
		}
	}
}

// generations changes with each write of the operator to an object's spec.
func (r *releases) generations(t *testing.T) string {
	t.Helper()
	deployments := r.Client.AppsV1().Deployments(r.Namespace)
	stable, err := deployments.Get(t.Context(), r.target+"-stable", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	target, err := deployments.Get(t.Context(), r.target, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(stable.Generation, target.Generation, r.routed(t))
}

// patch changes the Canary's spec.
func (r *releases) patch(t *testing.T, spec string) {
	t.Helper()
	if _, err := r.api.Resource(canaries()).Namespace(r.Namespace).Patch(t.Context(), r.target, types.MergePatchType,
		[]byte(`{"spec": `+spec+`}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// once returns a function that calls do at the first status that is so.
func once(is func(s status) bool, do func()) func(s status) {
	done := false
	return func(s status) {
		if !done && is(s) {
			done = true
			do()
		}
	}
}
