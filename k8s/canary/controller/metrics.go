package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"waitlist.internal/k8s/canary/api/v1alpha1"
)

var (
	weights = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "canary_weight_percent", Help: "The candidate's share of the requests, as the route has it.",
	}, []string{"namespace", "name"})
	phases = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "canary_phase", Help: "1 for the phase that a Canary is in.",
	}, []string{"namespace", "name", "phase"})
	stalled = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "canary_stalled", Help: "1 while a person has to do something about a Canary, by the reason of its condition.",
	}, []string{"namespace", "name", "reason"})
)

// RegisterMetrics adds the operator's metrics to those of the manager.
func RegisterMetrics() error {
	for _, c := range []prometheus.Collector{weights, phases, stalled} {
		if err := metrics.Registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func measure(c *v1alpha1.Canary) {
	weights.WithLabelValues(c.Namespace, c.Name).Set(float64(c.Status.Weight))
	phases.DeletePartialMatch(prometheus.Labels{"namespace": c.Namespace, "name": c.Name})
	phases.WithLabelValues(c.Namespace, c.Name, string(c.Status.Phase)).Set(1)
	stalled.DeletePartialMatch(prometheus.Labels{"namespace": c.Namespace, "name": c.Name})
	if s := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.Stalled); s != nil && s.Status == metav1.ConditionTrue {
		stalled.WithLabelValues(c.Namespace, c.Name, s.Reason).Set(1)
	}
}

func forgetMetrics(key types.NamespacedName) {
	of := prometheus.Labels{"namespace": key.Namespace, "name": key.Name}
	weights.DeletePartialMatch(of)
	phases.DeletePartialMatch(of)
	stalled.DeletePartialMatch(of)
}
