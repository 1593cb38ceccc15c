package controller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"waitlist.internal/k8s/canary/api/v1alpha1"
)

// TestMetrics holds what is told of a Canary against its status: nothing of a former one may stay.
func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(weights, phases, stalled)
	told := func() (all []string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if labels["name"] == "metrics" {
					all = append(all, fmt.Sprintf("%s %s%s %g", f.GetName(), labels["phase"], labels["reason"], m.GetGauge().GetValue()))
				}
			}
		}
		return all
	}
	c := &v1alpha1.Canary{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "metrics"}}
	for _, step := range []struct {
		phase  v1alpha1.Phase
		weight int32
		status metav1.ConditionStatus
		want   []string
	}{
		{v1alpha1.Progressing, 25, metav1.ConditionFalse, []string{"canary_phase Progressing 1", "canary_weight_percent  25"}},
		{v1alpha1.Failed, 0, metav1.ConditionTrue, []string{"canary_phase Failed 1", "canary_stalled Worse 1", "canary_weight_percent  0"}},
		{v1alpha1.Idle, 0, metav1.ConditionFalse, []string{"canary_phase Idle 1", "canary_weight_percent  0"}},
	} {
		c.Status = v1alpha1.CanaryStatus{
			Phase: step.phase, Weight: step.weight,
			Conditions: []metav1.Condition{{Type: v1alpha1.Stalled, Status: step.status, Reason: "Worse"}},
		}
		measure(c)
		if got := told(); !slices.Equal(got, step.want) {
			t.Errorf("%s is told as %q, want %q", step.phase, got, step.want)
		}
	}
	forgetMetrics(types.NamespacedName{Namespace: "shop", Name: "metrics"})
	if got := told(); got != nil {
		t.Errorf("a Canary that is gone is told as %q", got)
	}
}
