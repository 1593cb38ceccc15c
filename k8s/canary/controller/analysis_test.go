package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"waitlist.internal/k8s/canary/api/v1alpha1"
)

// TestTrialOfTheSameAnalysis reads a Canary twice, as each look does: what was judged so far must be kept as long as the analysis says the
// same, wherever its parts lie in memory.
func TestTrialOfTheSameAnalysis(t *testing.T) {
	t.Parallel()
	p, of := new(Pods), types.NamespacedName{Namespace: "shop", Name: "a"}
	a := v1alpha1.Analysis{AlphaPercent: "1", Sample: 50, Checks: []v1alpha1.Check{{
		Name: "events", All: v1alpha1.Series{Metric: "handled", Labels: map[string]string{"a": "b", "c": "d"}},
		Bad: &v1alpha1.Series{Metric: "failed"}, Sample: new(int64(0)),
	}}}
	trial := func(revision string, a *v1alpha1.Analysis) *trial {
		t.Helper()
		out, err := p.trial(of, revision, *a.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := trial("1", &a)
	if trial("1", &a) != first {
		t.Error("the same analysis begins anew")
	}
	a.Checks[0].Sample = new(int64(5))
	second := trial("1", &a)
	if second == first {
		t.Error("another analysis goes on with the former one's requests")
	}
	if trial("2", &a) == second {
		t.Error("another revision goes on with the former one's requests")
	}
}
