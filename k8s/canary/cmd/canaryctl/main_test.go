package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"waitlist.internal/k8s/canary/api/v1alpha1"
)

const (
	former = "registry.example.com/shop@sha256:01"
	pushed = "registry.example.com/shop@sha256:02"
	newer  = "registry.example.com/shop@sha256:03"
)

// serve returns a client of an API that has one Canary with this status.
func serve(t *testing.T, s v1alpha1.CanaryStatus) client.Client {
	t.Helper()
	known := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	s.Conditions = []metav1.Condition{{Type: v1alpha1.Ready, Status: metav1.ConditionFalse, Reason: "Why", Message: "Because <of> it."}}
	c := &v1alpha1.Canary{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "town"},
		Spec:       v1alpha1.CanarySpec{Steps: make([]v1alpha1.Step, 3)}, Status: s,
	}
	return fake.NewClientBuilder().WithScheme(known).WithObjects(c).WithStatusSubresource(c).Build()
}

func call(t *testing.T, api client.Client, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, func() (client.Client, string, error) { return api, "town", nil }, &out, &err)
	return code, out.String(), err.String()
}

func revision(image string) *v1alpha1.Revision {
	return &v1alpha1.Revision{Revision: image[len(image)-2:], Images: []string{image}}
}

func TestWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status v1alpha1.CanaryStatus
		code   int
	}{
		"promoted":             {v1alpha1.CanaryStatus{Phase: v1alpha1.Idle, Stable: revision(pushed)}, 0},
		"failed":               {v1alpha1.CanaryStatus{Phase: v1alpha1.Failed, Stable: revision(former), Candidate: revision(pushed)}, 1},
		"frozen":               {v1alpha1.CanaryStatus{Phase: v1alpha1.Frozen, Stable: revision(former), Candidate: revision(pushed)}, 5},
		"under way":            {v1alpha1.CanaryStatus{Phase: v1alpha1.Progressing, Stable: revision(former), Candidate: revision(pushed)}, 3},
		"not seen yet":         {v1alpha1.CanaryStatus{Phase: v1alpha1.Idle, Stable: revision(former)}, 3},
		"an earlier failure":   {v1alpha1.CanaryStatus{Phase: v1alpha1.Failed, Stable: revision(former), Candidate: revision(newer)}, 3},
		"being promoted":       {v1alpha1.CanaryStatus{Phase: v1alpha1.Promoting, Stable: revision(former), Candidate: revision(pushed)}, 3},
		"the first of all":     {v1alpha1.CanaryStatus{Phase: v1alpha1.Initializing}, 3},
		"same image, new pods": {v1alpha1.CanaryStatus{Phase: v1alpha1.Progressing, Stable: revision(pushed), Candidate: revision(pushed)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := serve(t, c.status)
			for _, format := range []string{"text", "json", "junit"} {
				code, out, _ := call(t, api, "wait", "-image", "sha256:02", "-timeout", "50ms", "-report", format, "shop")
				if code != c.code {
					t.Errorf("it ended with %d, want %d: %s", code, c.code, out)
				}
				switch format {
				case "json":
					var o outcome
					if err := json.Unmarshal([]byte(out), &o); err != nil || o.Verdict != verdicts[c.code] || o.Message == "" {
						t.Errorf("%v in %s", err, out)
					}
				case "junit":
					var s suite
					if err := xml.Unmarshal([]byte(out), &s); err != nil || (s.Case.Failure != nil) != (c.code != 0) || s.Tests != 1 {
						t.Errorf("%v in %s", err, out)
					}
				default:
					if !strings.Contains(out, verdicts[c.code]) {
						t.Errorf("it says %s", out)
					}
				}
			}
		})
	}
}

// An image that was the candidate's and is no longer anywhere has been replaced.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	c := &v1alpha1.Canary{Status: v1alpha1.CanaryStatus{Phase: v1alpha1.Progressing, Stable: revision(former), Candidate: revision(newer)}}
	if code, done := judged(c, "sha256:02", true); !done || code != superseded {
		t.Errorf("the code is %d, done %t", code, done)
	}
}

func TestOrders(t *testing.T) {
	t.Parallel()
	started := metav1.Time{Time: time.Unix(1_700_000_000, 0)}
	api := serve(t, v1alpha1.CanaryStatus{Phase: v1alpha1.Progressing, Candidate: revision(pushed), Started: &started})
	for _, c := range []struct {
		verb, command string
		paused        bool
	}{
		{"promote", "promote/02/1700000000", false},
		{"abort", "abort/02/1700000000", false},
		{"pause", "abort/02/1700000000", true},
		{"resume", "abort/02/1700000000", false},
	} {
		if code, _, stderr := call(t, api, c.verb, "shop"); code != 0 {
			t.Fatal(stderr)
		}
		now := new(v1alpha1.Canary)
		if err := api.Get(t.Context(), types.NamespacedName{Namespace: "town", Name: "shop"}, now); err != nil {
			t.Fatal(err)
		}
		if got := now.Annotations[v1alpha1.CommandAnnotation]; got != c.command || now.Spec.Paused != c.paused {
			t.Errorf("%s: the command is %s, paused %t", c.verb, got, now.Spec.Paused)
		}
	}
	idle := serve(t, v1alpha1.CanaryStatus{})
	if code, _, stderr := call(t, idle, "promote", "shop"); code != 2 || !strings.Contains(stderr, "no candidate") {
		t.Errorf("without a candidate: %d, %s", code, stderr)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	s := v1alpha1.CanaryStatus{Phase: v1alpha1.Progressing, Step: 2, Weight: 25, Verdict: &v1alpha1.Verdict{Candidate: 77}}
	for _, args := range [][]string{{"status"}, {"status", "shop"}, {"status", "-n", "town"}} {
		code, out, _ := call(t, serve(t, s), args...)
		if code != 0 || !strings.Contains(out, "shop  Progressing  2/3   25 %    77") {
			t.Errorf("%v: %d\n%s", args, code, out)
		}
	}
}

func TestWrongUse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		nil,
		{"promte"},
		{"wait", "shop"},
		{"wait", "-image", "x"},
		{"wait", "-image", "x", "-report", "pdf", "shop"},
		{"abort"},
		{"abort", "a", "b"},
		{"status", "missing"},
		{"pause", "missing"},
		{"pause", "-x", "shop"},
	} {
		if code, _, stderr := call(t, serve(t, v1alpha1.CanaryStatus{}), args...); code != 2 || stderr == "" {
			t.Errorf("%v: %d, %q", args, code, stderr)
		}
	}
}
