// Package machine decides how a release goes on. From the Canary, the objects of the API server, the judge's verdict and the time, it
// derives the objects to write and the status to report. It has no effects, so that tests can take it through any situation.
//
// # States
//
// The memory is in the objects. A candidate is a target whose revision is not that of the stable copy; a promotion is a stable copy whose
// revision is not the one that was last seen to serve (Status.Stable). Only the step, the time in it and the rejected revision are in the
// status alone, and a candidate that loses them starts again at its first step.
//
// # Order of writes
//
// A plan may end after any of its writes, as when the operator is killed. So what takes the candidate's weight is written first, with
// the rejected revision in the same object; then the status; then the rest, which is decided from what was observed to be there, never
// from what a plan is about to write.
package machine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/judge"
)

// Reasons of a rejection.
const (
	Worse         = "Worse"
	Crashed       = "CandidateCrashed"
	Unready       = "CandidateUnready"
	Late          = "DeadlineExceeded"
	Aborted       = "Aborted"
	NotPromotable = "PromotionFailed"
	GroupFailed   = "GroupFailed"
)

// Reasons of faults: something that a person has to change. Traffic stays as it is.
const (
	TargetMissing    = "TargetMissing"
	TargetTaken      = "TargetTaken"
	ServiceMissing   = "ServiceMissing"
	PortMissing      = "PortMissing"
	GatewayMissing   = "GatewayMissing"
	ForeignObject    = "ForeignObject"
	AutoscalerTarget = "AutoscalerOnTarget"
	ReplicasClash    = "ReplicasContested"
	AnalysisInvalid  = "AnalysisInvalid"
	FormerGone       = "FormerRevisionGone"
)

// World is what was observed. Objects are nil where there is none. Decide does not change them.
type World struct {
	Canary *v1alpha1.Canary
	Target *appsv1.Deployment
	// Revision is the target's revision; see the function Revision.
	Revision string
	// Hash is the pod-template-hash of the target's present pod template, "" as long as it has no ReplicaSet.
	Hash string
	// Pods are those of that ReplicaSet.
	Pods []corev1.Pod
	// Stable is the Deployment <target>-stable.
	Stable *appsv1.Deployment
	// Former is the pod template of Status.Stable, from the stable copy's ReplicaSets.
	Former *corev1.PodTemplateSpec
	// Service is the one of serviceRef, StableService and CandidateService those that the route names.
	Service, StableService, CandidateService *corev1.Service
	// Endpoints are those of CandidateService.
	Endpoints []discoveryv1.Endpoint
	Route     *gatewayv1.HTTPRoute
	// MissingParents are the route's parents that do not exist.
	MissingParents []string
	// Autoscalers are those of the target and of the stable copy.
	Autoscalers []autoscalingv2.HorizontalPodAutoscaler
	// Others are the other Canaries of the namespace.
	Others []v1alpha1.Canary
	// Verdict is the judge's verdict on Revision, Insufficient before it has seen any of its requests.
	Verdict judge.Verdict
	// AnalysisFault says why the analysis of the spec cannot be done.
	AnalysisFault string
}

// Plan is what to do, in the order of the fields.
type Plan struct {
	// Lower is the route with less weight for the candidate.
	Lower *gatewayv1.HTTPRoute
	// Status is to be written if it differs from the Canary's.
	Status v1alpha1.CanaryStatus
	// Stable is the stable copy to create or update.
	Stable *appsv1.Deployment
	// Services are to be created or updated.
	Services []*corev1.Service
	// Replicas is the number of pods that the target shall have.
	Replicas *int32
	// Route is the route to create or update.
	Route *gatewayv1.HTTPRoute
	// Release says that the finalizer may go.
	Release bool
	// Events tell what has changed.
	Events []Event
	// After is when to look again, at the latest.
	After time.Duration
}

// Event is a Kubernetes Event for people.
type Event struct {
	Warning         bool
	Reason, Message string
}

const (
	soon  = time.Second
	later = 10 * time.Second
)

// run is one decision.
type run struct {
	World
	spec *v1alpha1.CanarySpec
	st   v1alpha1.CanaryStatus
	now  time.Time
	plan Plan
}

// Decide returns what to do. It has no effects.
func Decide(w World, now time.Time) Plan {
	r := &run{World: w, spec: &w.Canary.Spec, st: *w.Canary.Status.DeepCopy(), now: now}
	r.st.ObservedGeneration = w.Canary.Generation
	r.st.Weight = r.weight()
	switch {
	case w.Canary.DeletionTimestamp != nil:
		r.leave()
	default:
		if reason, message := r.fault(); reason != "" {
			r.halt(reason, message)
		} else {
			r.reconcile()
		}
	}
	if before := w.Canary.Status.Phase; before != r.st.Phase {
		r.emitEvent(r.st.Phase == v1alpha1.Failed || r.st.Phase == v1alpha1.Frozen, string(r.st.Phase), r.message())
	}
	r.plan.Status = r.st
	return r.plan
}

// Leave returns what to do before the operator is removed: the same as for the Canary's deletion, but the Canary stays.
func Leave(w World, now time.Time) Plan {
	r := &run{World: w, spec: &w.Canary.Spec, st: *w.Canary.Status.DeepCopy(), now: now}
	r.leave()
	r.plan.Status = w.Canary.Status
	return r.plan
}

func (r *run) emitEvent(warning bool, reason, message string) {
	r.plan.Events = append(r.plan.Events, Event{Warning: warning, Reason: reason, Message: message})
}

// own says whether the Canary's operator made the object.
func (r *run) own(o metav1.Object) bool { return o.GetLabels()[v1alpha1.OwnerLabel] == r.Canary.Name }

// fault finds what a person has to change before anything may go on.
func (r *run) fault() (reason, message string) {
	name := r.spec.TargetRef.Name
	for _, o := range r.Others {
		if o.Spec.TargetRef.Name == name && o.DeletionTimestamp == nil && older(&o, r.Canary) {
			return TargetTaken, fmt.Sprintf("The Canary %s already releases the Deployment %s. Delete one of the two Canaries.", o.Name, name)
		}
	}
	if r.Target == nil {
		return TargetMissing, fmt.Sprintf("There is no Deployment %s. Create it, or correct targetRef.", name)
	}
	if r.Stable != nil && !r.own(r.Stable) {
		return ForeignObject, foreign("Deployment", r.Stable)
	}
	for _, a := range r.Autoscalers {
		switch {
		case a.Spec.ScaleTargetRef.Name == name:
			return AutoscalerTarget, fmt.Sprintf("The HorizontalPodAutoscaler %s scales the target. Let it scale the Deployment %s instead.",
				a.Name, StableName(r.spec))
		case r.spec.Replicas != nil:
			return ReplicasClash, fmt.Sprintf("The HorizontalPodAutoscaler %s scales the stable copy, but the Canary sets replicas as well. "+
				"Remove one of the two.", a.Name)
		}
	}
	if r.AnalysisFault != "" {
		return AnalysisInvalid, r.AnalysisFault
	}
	if r.spec.Route == nil {
		return "", ""
	}
	if r.spec.ServiceRef == nil {
		return ServiceMissing, "A route needs serviceRef. Name the Service of the target's pods."
	}
	if r.Service == nil {
		return ServiceMissing, fmt.Sprintf("There is no Service %s. Create it, or correct serviceRef.", r.spec.ServiceRef.Name)
	}
	port := func(p corev1.ServicePort) bool { return p.Port == r.spec.Route.Port }
	if !slices.ContainsFunc(r.Service.Spec.Ports, port) {
		return PortMissing, fmt.Sprintf("The Service %s has no port %d. Correct route.port.", r.Service.Name, r.spec.Route.Port)
	}
	for _, s := range []*corev1.Service{r.StableService, r.CandidateService} {
		if s != nil && !r.own(s) {
			return ForeignObject, foreign("Service", s)
		}
	}
	if r.Route != nil && !r.own(r.Route) {
		return ForeignObject, foreign("HTTPRoute", r.Route)
	}
	if len(r.MissingParents) > 0 {
		return GatewayMissing, fmt.Sprintf("The route's parent does not exist: %s. Create it, or correct parentRefs.",
			strings.Join(r.MissingParents, ", "))
	}
	return "", ""
}

func foreign(kind string, o metav1.Object) string {
	return fmt.Sprintf("The %s %s belongs to somebody else: it has no label %s with this Canary's name. Remove or rename it.",
		kind, o.GetName(), v1alpha1.OwnerLabel)
}

// older says which of two Canaries came first.
func older(a, b *v1alpha1.Canary) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// halt reports a fault. It leaves traffic as it is, except that it takes all from a candidate that has failed or cannot serve.
func (r *run) halt(reason, message string) {
	if reason == TargetTaken {
		r.st.Weight = 0 // the route belongs to the other Canary
	} else if r.Route != nil && r.own(r.Route) && r.weight() > 0 {
		broken, _ := r.broken()
		if _, given := r.rejection(); !r.ready() || broken != "" || r.Verdict.State == judge.Failed || given && !r.frozen() {
			r.plan.Lower = shared(r.Route, r.spec, 0)
			r.st.StepSince = nil
		}
	}
	if c := meta.FindStatusCondition(r.st.Conditions, v1alpha1.Stalled); c == nil || c.Reason != reason {
		r.emitEvent(true, reason, message)
	}
	if r.st.Phase == "" {
		r.st.Phase = v1alpha1.Initializing
	}
	r.conditions(metav1.ConditionFalse, metav1.ConditionFalse, metav1.ConditionTrue, reason, message)
	r.plan.After = later
	if r.weight() > 0 {
		r.plan.After = soon
	}
}

// leave gives the stable copy all traffic and stops the candidate. The operator's objects stay and serve.
func (r *run) leave() {
	serves := r.Stable != nil && r.own(r.Stable) && r.st.Stable != nil
	if r.Route != nil && r.own(r.Route) && r.weight() > 0 && serves {
		r.plan.Lower = shared(r.Route, r.spec, 0)
		r.plan.After = soon
		return
	}
	if r.Target != nil && serves && replicas(r.Target) != 0 && !r.taken() {
		r.plan.Replicas = new(int32(0))
		r.plan.After = soon
		return
	}
	r.plan.Release = true
}

func (r *run) taken() bool {
	return slices.ContainsFunc(r.Others, func(o v1alpha1.Canary) bool { return o.Spec.TargetRef.Name == r.spec.TargetRef.Name })
}

func (r *run) reconcile() {
	r.services()
	if r.st.Stable == nil && r.Stable != nil && RolledOut(r.Stable) {
		// It has come up for the first time, or the status is lost.
		r.st.Stable = revision(&r.Stable.Spec.Template)
	}
	switch {
	case r.st.Stable == nil:
		r.initialize()
	case r.Stable == nil:
		// Somebody deleted it. What the target says is all there is.
		r.st.Stable = nil
		r.initialize()
	default:
		r.release()
	}
	r.replicas()
}

// initialize lets the stable copy follow the target until it serves.
func (r *run) initialize() {
	r.phase(v1alpha1.Initializing)
	r.clear()
	if r.Stable == nil || r.Stable.Spec.Template.Annotations[v1alpha1.RevisionAnnotation] != r.Revision {
		r.plan.Stable = r.copyOf(&r.Target.Spec.Template, r.Revision)
	}
	r.keep(0)
	r.plan.After = soon
	if r.Stable != nil && r.plan.Stable == nil && stuck(r.Stable) {
		r.conditions(metav1.ConditionFalse, metav1.ConditionFalse, metav1.ConditionTrue, "StableNotReady",
			"The first version does not start. Look at the pods of the stable copy, and change the target to a version that works.")
		return
	}
	r.going(string(v1alpha1.Initializing), "The stable copy is not ready yet.")
}

// release finishes a promotion, then moves the candidate on, if there is one.
func (r *run) release() {
	copied := r.Stable.Spec.Template.Annotations[v1alpha1.RevisionAnnotation]
	if copied != r.st.Stable.Revision && !r.promote(copied) {
		return
	}
	if copied == r.Revision {
		r.idle()
		return
	}
	r.candidate()
}

// idle keeps the stable version serving while there is nothing to release.
func (r *run) idle() {
	r.clear()
	r.phase(v1alpha1.Idle)
	r.st.Stable.Images = images(&r.Stable.Spec.Template)
	r.keep(0)
	r.plan.After = later
	if !r.settled(0) {
		r.conditions(metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionFalse, "RouteNotAccepted",
			"The gateway has not accepted the route to the stable version yet.")
		r.plan.After = soon
		return
	}
	r.scale(0)
	if !RolledOut(r.Stable) {
		r.conditions(metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionFalse, "StableNotReady",
			"Not all pods of the stable version are ready.")
		return
	}
	r.conditions(metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionFalse, string(v1alpha1.Idle),
		"The stable version serves all requests.")
}

// promote follows a stable copy that takes over the revision copied. It returns true once that has rolled out, and goes back to the
// former one if it fails.
func (r *run) promote(copied string) bool {
	rejected, given := r.rejected(copied)
	if !given && r.ordered("abort", copied) {
		rejected, given = r.reject(copied, Aborted, "Somebody aborted the promotion."), true
	}
	if !given && stuck(r.Stable) {
		rejected, given = r.reject(copied, NotPromotable, "The stable copy's pods did not become ready with the candidate's revision."), true
	}
	if given {
		r.st.Rejected = rejected
		r.phase(v1alpha1.Failed)
		if r.Former == nil {
			r.keep(0)
			r.conditions(metav1.ConditionFalse, metav1.ConditionFalse, metav1.ConditionTrue, FormerGone,
				"The promotion failed, and no ReplicaSet of the stable copy has the former pod template. Change the target to a version that works.")
			if r.Revision != copied {
				r.plan.Stable = r.copyOf(&r.Target.Spec.Template, r.Revision)
			}
			r.plan.After = soon
			return false
		}
		r.plan.Stable = r.copyOf(r.Former, r.st.Stable.Revision)
		r.keep(0)
		r.conditions(metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionFalse, rejected.Reason, rejected.Message)
		r.plan.After = soon
		return false
	}
	if RolledOut(r.Stable) {
		r.st.Stable = revision(&r.Stable.Spec.Template)
		r.emitEvent(false, "Promoted", "The stable version is "+copied+".")
		return true
	}
	r.phase(v1alpha1.Promoting)
	weight := int32(0)
	if copied == r.Revision && r.ready() {
		weight = min(r.weight(), r.highest())
	}
	r.keep(weight)
	r.conditions(metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionFalse, string(v1alpha1.Promoting),
		"The stable copy is taking over the candidate's revision.")
	r.plan.After = soon
	return false
}

// candidate takes a candidate through its steps.
func (r *run) candidate() {
	if r.st.Candidate == nil || r.st.Candidate.Revision != r.Revision {
		r.clear()
		r.st.Candidate = &v1alpha1.Revision{Revision: r.Revision, Images: images(&r.Target.Spec.Template)}
		r.st.Started = &metav1.Time{Time: r.now}
		r.phase(v1alpha1.Starting)
	}
	if r.st.Phase == v1alpha1.Progressing || r.st.Phase == v1alpha1.Passed {
		r.st.Verdict = verdict(r.Verdict)
	}
	r.plan.After = soon
	r.pause()
	if r.ordered("promote", r.Revision) {
		r.st.Rejected = nil
		r.takeOver()
		return
	}
	if rejection, given := r.rejection(); given {
		r.st.Rejected = rejection
		r.fail()
		return
	}
	if reason, message := r.failure(); reason != "" {
		r.st.Rejected = r.reject(r.Revision, reason, message)
		r.fail()
		return
	}
	if name, failed := r.sibling(); failed {
		r.back(GroupFailed, fmt.Sprintf("The Canary %[1]s of the group %[2]s failed. This Canary starts again once the target of %[1]s changes.",
			name, r.spec.Group))
		return
	}
	r.progress()
}

// pause counts the time in which the Canary is paused, which the deadline leaves out.
func (r *run) pause() {
	switch {
	case r.spec.Paused && r.st.PausedSince == nil:
		r.st.PausedSince = &metav1.Time{Time: r.now}
	case !r.spec.Paused && r.st.PausedSince != nil:
		r.st.PausedFor.Duration += r.now.Sub(r.st.PausedSince.Time)
		r.st.PausedSince = nil
	}
}

// failure finds what is wrong with the candidate.
func (r *run) failure() (reason, message string) {
	if r.ordered("abort", r.Revision) {
		return Aborted, "Somebody aborted the candidate."
	}
	if reason, message := r.broken(); reason != "" {
		return reason, message
	}
	if r.Verdict.State == judge.Failed {
		return Worse, r.Verdict.Reason
	}
	if r.st.PausedSince == nil && r.st.Started != nil && r.now.Sub(r.st.Started.Time)-r.st.PausedFor.Duration > r.spec.Deadline.Duration {
		return Late, fmt.Sprintf("The candidate was not promoted within %s; it was in phase %s, and the judge said %s.",
			r.spec.Deadline.Duration, r.st.Phase, r.Verdict.State)
	}
	return "", ""
}

// broken looks for failures that the pods' metrics do not show: restarts, crash loops and failing readiness.
func (r *run) broken() (reason, message string) {
	for _, p := range r.Pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		var started time.Time
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.RestartCount > 0 {
				why := ""
				if t := c.LastTerminationState.Terminated; t != nil {
					why = fmt.Sprintf(": %s, exit code %d", t.Reason, t.ExitCode)
				}
				return Crashed, fmt.Sprintf("The container %s of the pod %s restarted%s.", c.Name, p.Name, why)
			}
			if s := c.State.Waiting; s != nil && slices.Contains(hopeless, s.Reason) {
				return Crashed, fmt.Sprintf("The container %s of the pod %s does not start: %s.", c.Name, p.Name, s.Reason)
			}
			if s := c.State.Running; s != nil && s.StartedAt.After(started) {
				started = s.StartedAt.Time
			}
		}
		if p.Status.Phase == corev1.PodFailed {
			return Crashed, fmt.Sprintf("The pod %s failed: %s.", p.Name, p.Status.Reason)
		}
		for _, c := range p.Status.Conditions {
			// A pod that was never ready has had this condition since before its containers started.
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && !started.IsZero() && c.LastTransitionTime.After(started) {
				return Unready, fmt.Sprintf("The pod %s stopped being ready.", p.Name)
			}
		}
	}
	return "", ""
}

// hopeless are the reasons of a waiting container that no retry mends.
var hopeless = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError",
	"CreateContainerError", "RunContainerError",
}

// rejection returns why the target's revision is given up, if it is.
func (r *run) rejection() (*v1alpha1.Rejection, bool) { return r.rejected(r.Revision) }

func (r *run) rejected(revision string) (*v1alpha1.Rejection, bool) {
	if s := r.st.Rejected; s != nil && s.Revision == revision {
		return s, true
	}
	if r.Route != nil && r.own(r.Route) && r.Route.Annotations[v1alpha1.RejectedAnnotation] == revision {
		// The operator ended between its write of the route and that of the status.
		return r.reject(revision, Worse, "The candidate failed. The reason was lost when the operator restarted."), true
	}
	return nil, false
}

func (r *run) reject(revision, reason, message string) *v1alpha1.Rejection {
	return &v1alpha1.Rejection{Revision: revision, Reason: reason, Message: message, Time: metav1.Time{Time: r.now}}
}

func (r *run) frozen() bool {
	return r.spec.OnFailure == v1alpha1.Freeze && r.st.Rejected != nil && r.st.Rejected.Reason != Aborted
}

// fail acts on a rejected candidate.
func (r *run) fail() {
	if r.frozen() && r.ordered("abort", r.Revision) {
		r.st.Rejected = r.reject(r.Revision, Aborted, "Somebody aborted the candidate.")
	}
	if !r.frozen() {
		r.back(r.st.Rejected.Reason, r.st.Rejected.Message)
		return
	}
	r.phase(v1alpha1.Frozen)
	weight := int32(0)
	if r.ready() {
		weight = min(r.weight(), r.allowed())
	}
	r.keep(weight)
	r.conditions(metav1.ConditionFalse, metav1.ConditionFalse, metav1.ConditionTrue, r.st.Rejected.Reason,
		r.st.Rejected.Message+" The candidate stays as it is until you promote it, abort it, or change the target.")
}

// back gives the stable version all traffic, then stops the candidate's pods.
func (r *run) back(reason, message string) {
	r.phase(v1alpha1.Failed)
	r.st.Step, r.st.StepSince = 0, nil
	r.keep(0)
	stalled, going := metav1.ConditionTrue, metav1.ConditionFalse
	if r.settled(0) {
		r.scale(0)
	} else {
		stalled, going = going, stalled
	}
	r.conditions(metav1.ConditionFalse, going, stalled, reason, message)
}

// sibling finds a Canary of the group that failed by itself and whose target still has what failed.
func (r *run) sibling() (string, bool) {
	for _, o := range r.group() {
		if o.Status.Phase == v1alpha1.Failed && o.Status.Rejected != nil {
			return o.Name, true
		}
	}
	return "", false
}

func (r *run) group() []v1alpha1.Canary {
	var out []v1alpha1.Canary
	for _, o := range r.Others {
		if r.spec.Group != "" && o.Spec.Group == r.spec.Group && o.DeletionTimestamp == nil {
			out = append(out, o)
		}
	}
	return out
}

// waits names the first Canary of the group that is not ready to be promoted.
func (r *run) waits() string {
	for _, o := range r.group() {
		if !slices.Contains([]v1alpha1.Phase{v1alpha1.Passed, v1alpha1.Promoting, v1alpha1.Idle}, o.Status.Phase) {
			return o.Name
		}
	}
	return ""
}

// progress takes the candidate one step further, or holds it.
func (r *run) progress() {
	r.scale(max(1, r.spec.CandidateReplicas))
	if !r.ready() {
		r.phase(v1alpha1.Starting)
		r.st.Step, r.st.StepSince = 0, nil
		r.keep(0)
		r.going("Starting", "The candidate's pods are not ready yet.")
		return
	}
	hold := r.hold()
	if r.st.Step == 0 {
		if hold != "" {
			r.keep(0)
			r.going("Held", hold)
			return
		}
		r.st.Step, r.st.StepSince = 1, nil
		r.phase(v1alpha1.Progressing)
	}
	r.st.Step = min(r.st.Step, int32(len(r.spec.Steps)))
	step := r.step()
	if hold != "" {
		r.phase(v1alpha1.Progressing)
		r.st.StepSince = nil
		r.keep(min(r.weight(), step.Weight))
		r.going("Held", hold)
		return
	}
	if !r.settled(step.Weight) {
		r.st.StepSince = nil
	} else if r.st.StepSince == nil {
		r.st.StepSince = &metav1.Time{Time: r.now}
	}
	if why := r.unfinished(step); why != "" {
		r.phase(v1alpha1.Progressing)
		r.keep(step.Weight)
		r.going(string(r.st.Phase), why)
		return
	}
	if int(r.st.Step) < len(r.spec.Steps) {
		r.phase(v1alpha1.Progressing)
		r.st.Step, r.st.StepSince = r.st.Step+1, nil
		r.keep(r.step().Weight)
		r.going(string(v1alpha1.Progressing), fmt.Sprintf("The candidate moves on to step %d of %d.", r.st.Step, len(r.spec.Steps)))
		return
	}
	r.phase(v1alpha1.Passed)
	r.keep(step.Weight)
	if other := r.waits(); other != "" {
		r.going("WaitingForGroup", fmt.Sprintf("The candidate passed and waits for the Canary %s of the group %s.", other, r.spec.Group))
		return
	}
	if r.Canary.Status.Phase != v1alpha1.Passed {
		// The others of the group must be able to read it first.
		r.going(string(v1alpha1.Passed), "The candidate passed its last step.")
		return
	}
	r.takeOver()
}

// takeOver gives the stable copy the candidate's revision. The candidate keeps its share meanwhile.
func (r *run) takeOver() {
	r.phase(v1alpha1.Promoting)
	weight := int32(0)
	if r.ready() {
		weight = min(r.weight(), r.highest())
	}
	r.keep(weight)
	r.plan.Stable = r.copyOf(&r.Target.Spec.Template, r.Revision)
	r.going(string(v1alpha1.Promoting), "The stable copy is taking over the candidate's revision.")
}

func (r *run) going(reason, message string) {
	r.conditions(metav1.ConditionFalse, metav1.ConditionTrue, metav1.ConditionFalse, reason, message)
}

// hold says why the candidate must not get more.
func (r *run) hold() string {
	switch {
	case r.spec.Paused:
		return "The Canary is paused."
	case !serves(r.Stable):
		return "No pod of the stable version is ready, so there is nothing to compare the candidate with."
	}
	return ""
}

// unfinished says what the step still needs.
func (r *run) unfinished(step v1alpha1.Step) string {
	n, of := r.st.Step, len(r.spec.Steps)
	if r.st.StepSince == nil {
		return fmt.Sprintf("Step %d of %d: the gateway has not accepted the weight %d yet.", n, of, step.Weight)
	}
	if left := step.For.Duration - r.now.Sub(r.st.StepSince.Time); left > 0 {
		return fmt.Sprintf("Step %d of %d ends in %s at the earliest.", n, of, left.Round(time.Second))
	}
	if r.Verdict.State != judge.Passing || int64(r.Verdict.Candidate) < step.Sample {
		return fmt.Sprintf("Step %d of %d: the judge has seen %d requests of the candidate and says %s.",
			n, of, r.Verdict.Candidate, r.Verdict.State)
	}
	return ""
}

func (r *run) step() v1alpha1.Step { return r.spec.Steps[r.st.Step-1] }

// allowed is the weight of the step that the candidate is in.
func (r *run) allowed() int32 {
	if r.spec.Route == nil || r.st.Step == 0 {
		return 0
	}
	return r.spec.Steps[min(int(r.st.Step), len(r.spec.Steps))-1].Weight
}

func (r *run) highest() int32 { return r.spec.Steps[len(r.spec.Steps)-1].Weight }

// clear forgets the candidate.
func (r *run) clear() {
	r.st.Candidate, r.st.Started, r.st.PausedSince, r.st.PausedFor = nil, nil, nil, metav1.Duration{}
	r.st.Step, r.st.StepSince, r.st.Verdict = 0, nil, nil
	if r.st.Rejected != nil && r.st.Rejected.Revision != r.Revision {
		r.st.Rejected = nil
	}
}

func (r *run) phase(p v1alpha1.Phase) {
	r.st.Phase = p
	if p == v1alpha1.Idle || p == v1alpha1.Initializing {
		r.st.Rejected = nil
	}
}

// ordered says whether a person gave this command for this revision since it became the candidate.
func (r *run) ordered(verb, revision string) bool {
	return r.st.Candidate != nil && r.st.Candidate.Revision == revision && r.st.Started != nil &&
		r.Canary.Annotations[v1alpha1.CommandAnnotation] == Command(verb, &r.st)
}

// Command is the value of CommandAnnotation that orders something for a status's candidate. It is for that candidate alone: if the target
// gets the same revision again later, it has no effect.
func Command(verb string, s *v1alpha1.CanaryStatus) string {
	return fmt.Sprintf("%s/%s/%d", verb, s.Candidate.Revision, s.Started.Unix())
}

func (r *run) conditions(ready, reconciling, stalled metav1.ConditionStatus, reason, message string) {
	for kind, status := range map[string]metav1.ConditionStatus{
		v1alpha1.Ready: ready, v1alpha1.Reconciling: reconciling, v1alpha1.Stalled: stalled,
	} {
		meta.SetStatusCondition(&r.st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: r.Canary.Generation,
			LastTransitionTime: metav1.Time{Time: r.now},
		})
	}
	slices.SortFunc(r.st.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
}

func (r *run) message() string {
	if c := meta.FindStatusCondition(r.st.Conditions, v1alpha1.Ready); c != nil {
		return c.Message
	}
	return string(r.st.Phase)
}

func verdict(v judge.Verdict) *v1alpha1.Verdict {
	return &v1alpha1.Verdict{State: v.State.String(), Reason: v.Reason, Candidate: int64(v.Candidate), Stable: int64(v.Stable)}
}

func revision(t *corev1.PodTemplateSpec) *v1alpha1.Revision {
	return &v1alpha1.Revision{Revision: t.Annotations[v1alpha1.RevisionAnnotation], Images: images(t)}
}

func images(t *corev1.PodTemplateSpec) []string {
	var out []string
	for _, c := range t.Spec.Containers {
		out = append(out, c.Image)
	}
	return out
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// RolledOut says whether all pods that the Deployment shall have are of its present template and available, and no others are left.
func RolledOut(d *appsv1.Deployment) bool {
	n, s := replicas(d), d.Status
	return n > 0 && s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n
}

// serves says whether the Deployment has pods of its present template alone, and some that are available.
func serves(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == s.Replicas && s.AvailableReplicas > 0
}

// stuck says whether the Deployment has given up on its present template.
func stuck(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded"
	})
}

// scale sets the number of the target's pods.
func (r *run) scale(n int32) {
	if r.Target != nil && replicas(r.Target) != n {
		r.plan.Replicas = &n
	}
}

// replicas sets the stable copy's number of pods if the Canary names one.
func (r *run) replicas() {
	if r.spec.Replicas == nil || r.Stable == nil || r.plan.Stable != nil || replicas(r.Stable) == *r.spec.Replicas {
		return
	}
	r.plan.Stable = r.Stable.DeepCopy()
	r.plan.Stable.Spec.Replicas = r.spec.Replicas
}

// services plans the Services of the two versions.
func (r *run) services() {
	if r.spec.Route == nil {
		return
	}
	stable := r.service(r.StableService, StableName(r.spec), map[string]string{v1alpha1.TrackLabel: v1alpha1.Stable})
	// The hash pins the revision: pods of another one that start or stop never get this one's traffic.
	candidate := r.service(r.CandidateService, CandidateName(r.spec), map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: r.pinned()})
	for _, pair := range [][2]*corev1.Service{{r.StableService, stable}, {r.CandidateService, candidate}} {
		if pair[0] == nil || !equality.Semantic.DeepEqual(pair[0], pair[1]) {
			r.plan.Services = append(r.plan.Services, pair[1])
		}
	}
}

// pinned is the hash that the candidate's Service selects, or one that no pod has.
func (r *run) pinned() string {
	if r.Hash == "" {
		return "none"
	}
	return r.Hash
}
