// Package v1alpha1 is the API of the canary operator: the kind Canary.
//
// +kubebuilder:object:generate=true
// +groupName=canary.waitlist.internal
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Names of labels and annotations.
const (
	// OwnerLabel is on every object that the operator made; its value is the Canary's name. An object without it is somebody else's, and
	// the operator does not touch it.
	OwnerLabel = "canary.waitlist.internal/canary"
	// TrackLabel is "stable" on the pods of the stable copy. Pods of the target do not have it.
	TrackLabel = "canary.waitlist.internal/track"
	// RevisionAnnotation is on the pod template of the stable copy and names the target's revision that it is a copy of.
	RevisionAnnotation = "canary.waitlist.internal/revision"
	// RejectedAnnotation is on the HTTPRoute. The write that takes a failed candidate's weight also names its revision here, so that no
	// interruption can give it weight again.
	RejectedAnnotation = "canary.waitlist.internal/rejected"
	// CommandAnnotation is on the Canary: "promote" or "abort" with the candidate that it is for, as canaryctl writes it. It does
	// nothing to another candidate.
	CommandAnnotation = "canary.waitlist.internal/command"
	// Finalizer keeps a deleted Canary until the stable copy has all traffic.
	Finalizer = "canary.waitlist.internal/traffic"
	// Stable is the value of TrackLabel.
	Stable = "stable"
)

// OnFailure says what the operator does with a candidate that is worse.
// +kubebuilder:validation:Enum=Rollback;Freeze
type OnFailure string

const (
	// Rollback gives the stable version all traffic and stops the candidate's pods.
	Rollback OnFailure = "Rollback"
	// Freeze keeps the candidate's share as it is until a person decides, for releases that must not go back.
	Freeze OnFailure = "Freeze"
)

// CanarySpec says which Deployment is released by canary, and how.
// +kubebuilder:validation:XValidation:rule="!has(self.route) || self.steps.all(s, s.weight > 0)",message="a step needs a weight"
// +kubebuilder:validation:XValidation:rule="has(self.route) || self.steps.all(s, s.weight == 0)",message="weights need a route"
// +kubebuilder:validation:XValidation:rule="self.targetRef.name == oldSelf.targetRef.name",message="targetRef cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.route) == has(oldSelf.route)",message="route cannot be added or removed"
type CanarySpec struct {
	// TargetRef names the Deployment that helm or CI changes. Its pods are the candidate; it has none while there is no candidate.
	TargetRef TargetReference `json:"targetRef"`
	// ServiceRef names the Service of both versions' pods. The Services of each version get its ports. Required with a route.
	// +optional
	ServiceRef *ServiceReference `json:"serviceRef,omitempty"`
	// Route becomes an HTTPRoute named <target>-canary, which belongs to the operator. Without it the candidate takes what a replica
	// takes: calls and partitions.
	// +optional
	Route *Route `json:"route,omitempty"`
	// Steps are passed one after the other. Weights must not fall.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.map(s, s.weight).isSorted()",message="weights must not decrease"
	Steps []Step `json:"steps"`
	// Analysis says how the candidate is judged.
	// +kubebuilder:default={}
	// +optional
	Analysis Analysis `json:"analysis,omitempty"`
	// OnFailure is Rollback or Freeze.
	// +kubebuilder:default=Rollback
	// +optional
	OnFailure OnFailure `json:"onFailure,omitempty"`
	// Deadline is how long a candidate may take to be promoted before it fails. Time in which the Canary is paused does not count.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="deadline must be at least 1s"
	// +optional
	Deadline metav1.Duration `json:"deadline,omitempty"`
	// Group is the name that canaries of one release share, within a namespace. None of them is promoted before all have passed their
	// last step. If one is rolled back, so are those that are not promoted yet.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Group string `json:"group,omitempty"`
	// Paused holds the weight and the step. A candidate that fails is taken back all the same.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Replicas of the stable copy. Leave it out where a HorizontalPodAutoscaler sets them; that must name the stable copy,
	// <target>-stable. Without either, the stable copy keeps the number that the target had.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// CandidateReplicas are the pods of a candidate.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +optional
	CandidateReplicas int32 `json:"candidateReplicas,omitempty"`
	// StableEnv overrides the target's environment in every container of the stable copy: it tells a pod that it is no candidate.
	// +kubebuilder:validation:MaxItems=32
	// +optional
	StableEnv []EnvVar `json:"stableEnv,omitempty"`
}

// TargetReference names a Deployment of the Canary's namespace.
type TargetReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	Name string `json:"name"`
}

// ServiceReference names a Service of the Canary's namespace.
type ServiceReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// EnvVar is a variable of a container's environment.
type EnvVar struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// +optional
	Value string `json:"value,omitempty"`
}

// Route is passed to the HTTPRoute as it is given.
type Route struct {
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	ParentRefs []gatewayv1.ParentReference `json:"parentRefs"`
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Hostnames []gatewayv1.Hostname `json:"hostnames,omitempty"`
	// Port is the Service's port that requests go to.
	Port gatewayv1.PortNumber `json:"port"`
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Rules []Rule `json:"rules"`
	// Annotations of the HTTPRoute.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Rule is an HTTPRoute's rule without its backends, which the operator sets.
type Rule struct {
	// Matches has the HTTPRoute's own default, so that what is stored there is what was asked for.
	// +kubebuilder:default={{path:{type:"PathPrefix",value:"/"}}}
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Matches []gatewayv1.HTTPRouteMatch `json:"matches,omitempty"`
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Filters []gatewayv1.HTTPRouteFilter `json:"filters,omitempty"`
	// +optional
	Timeouts *gatewayv1.HTTPRouteTimeouts `json:"timeouts,omitempty"`
}

// Step is a share of the requests that a candidate has to do well with.
type Step struct {
	// Weight is the candidate's share in percent. 0 without a route.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=0
	// +optional
	Weight int32 `json:"weight"`
	// For is the least time, counted from when the route was read back with this weight.
	// +kubebuilder:default="0s"
	// +optional
	For metav1.Duration `json:"for,omitempty"`
	// Sample is how many requests the candidate must have been judged by, over all steps so far.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Sample int64 `json:"sample,omitempty"`
}

// Analysis says how a candidate is judged. Package judge explains the tests.
type Analysis struct {
	// Port of the pods' metrics.
	// +kubebuilder:default=8081
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`
	// Path of the pods' metrics.
	// +kubebuilder:default="/metrics"
	// +kubebuilder:validation:Pattern=`^/`
	// +optional
	Path string `json:"path,omitempty"`
	// AlphaPercent bounds the share of good candidates that fail, over all looks and checks.
	// +kubebuilder:default="1"
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]?(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)$`
	// +optional
	AlphaPercent string `json:"alphaPercent,omitempty"`
	// Sample is how many requests each version must have answered in each check before a candidate can pass a step.
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=1
	// +optional
	Sample int64 `json:"sample,omitempty"`
	// Checks replace the two on HTTP servers, of errors and of latency.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Checks []Check `json:"checks,omitempty"`
}

// Check compares a share, or a distribution.
// +kubebuilder:validation:XValidation:rule="has(self.bad) != has(self.boundaries)",message="set either bad or boundaries"
type Check struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// All counts what is judged: a counter, or a histogram where there are boundaries.
	All Series `json:"all"`
	// Bad counts those of All that must not get more frequent. If its metric is not All's, as where All counts successes alone, All does not
	// include them, and they are added to it.
	// +optional
	Bad *Series `json:"bad,omitempty"`
	// Boundaries are upper bounds of buckets of the histogram, increasing decimal numbers.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Boundaries []Decimal `json:"boundaries,omitempty"`
	// Sample is for this check, in place of the analysis's. With 0 the check may fail a candidate and never holds one up.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Sample *int64 `json:"sample,omitempty"`
}

// Decimal is a number as text.
// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?$`
// +kubebuilder:validation:MaxLength=24
type Decimal string

// Series selects series of one metric.
type Series struct {
	// +kubebuilder:validation:MinLength=1
	Metric string `json:"metric"`
	// Labels are regular expressions that a label's whole value must match.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// Phase is where a Canary stands.
type Phase string

const (
	// Initializing means: no stable version serves yet. The stable copy follows the target.
	Initializing Phase = "Initializing"
	// Idle means: the stable copy serves what the target says; there is no candidate.
	Idle Phase = "Idle"
	// Starting means: there is a candidate, without traffic, since it is not ready.
	Starting Phase = "Starting"
	// Progressing means: the candidate has the weight of a step.
	Progressing Phase = "Progressing"
	// Passed means: the candidate has passed its last step and waits for its group.
	Passed Phase = "Passed"
	// Promoting means: the stable copy takes over the candidate's revision.
	Promoting Phase = "Promoting"
	// Failed means: the stable version has all traffic, and the target's revision is given up.
	Failed Phase = "Failed"
	// Frozen means: the candidate is worse and keeps what it has, until a person decides.
	Frozen Phase = "Frozen"
)

// Conditions, as kstatus knows them.
const (
	// Ready is True while the stable version serves and no candidate is under way or given up.
	Ready = "Ready"
	// Reconciling is True while something goes on by itself.
	Reconciling = "Reconciling"
	// Stalled is True while a person has to do something. Its reason names the fault.
	Stalled = "Stalled"
)

// CanaryStatus is what the operator has seen and decided.
type CanaryStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Stable is the revision that serves.
	// +optional
	Stable *Revision `json:"stable,omitempty"`
	// Candidate is the target's revision while it is not the stable one.
	// +optional
	Candidate *Revision `json:"candidate,omitempty"`
	// Started is when the candidate was first seen.
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// Step is the step that the candidate is in, from 1.
	// +optional
	Step int32 `json:"step,omitempty"`
	// StepSince is when the route was read back with the step's weight.
	// +optional
	StepSince *metav1.Time `json:"stepSince,omitempty"`
	// PausedSince is when the current pause of the candidate began.
	// +optional
	PausedSince *metav1.Time `json:"pausedSince,omitempty"`
	// PausedFor is the length of the candidate's earlier pauses together.
	// +optional
	PausedFor metav1.Duration `json:"pausedFor,omitempty"`
	// Weight is the candidate's share in percent as the HTTPRoute has it.
	Weight int32 `json:"weight"`
	// Verdict is how the judge sees the candidate.
	// +optional
	Verdict *Verdict `json:"verdict,omitempty"`
	// Rejected is the revision that failed, while the target has it.
	// +optional
	Rejected *Rejection `json:"rejected,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Revision is a version of the target's pods.
type Revision struct {
	// Revision is a hash of the pod template and of the ConfigMaps and Secrets that it names.
	Revision string `json:"revision"`
	// Images of the containers, in their order.
	// +optional
	Images []string `json:"images,omitempty"`
}

// Verdict is how the judge sees a candidate.
type Verdict struct {
	// State is Insufficient, Passing or Failed.
	State string `json:"state"`
	// Reason has the figures of the check that failed, or of the one with the most evidence.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Candidate and Stable are the requests that each version was judged by.
	Candidate int64 `json:"candidate"`
	Stable    int64 `json:"stable"`
}

// Rejection says why a revision failed.
type Rejection struct {
	Revision string      `json:"revision"`
	Reason   string      `json:"reason"`
	Message  string      `json:"message"`
	Time     metav1.Time `json:"time"`
}

// Canary releases a Deployment's changes by canary.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=all
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have at most 63 characters"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Step",type=integer,JSONPath=`.status.step`
// +kubebuilder:printcolumn:name="Weight",type=integer,JSONPath=`.status.weight`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Canary struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CanarySpec `json:"spec"`
	// +optional
	Status CanaryStatus `json:"status,omitempty"`
}

// CanaryList is a list of Canaries.
// +kubebuilder:object:root=true
type CanaryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Canary `json:"items"`
}

// Env returns StableEnv as a container takes it.
func (s *CanarySpec) Env() []corev1.EnvVar {
	var out []corev1.EnvVar
	for _, e := range s.StableEnv {
		out = append(out, corev1.EnvVar{Name: e.Name, Value: e.Value})
	}
	return out
}
