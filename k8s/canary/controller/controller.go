// Package controller connects the machine to Kubernetes: it observes, lets the machine decide, and writes what it decided, in its order.
// Every write names the version of the object that the decision was made on, so that nothing is decided on one state and written over
// another.
package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/machine"
)

// retry is the pause after a conflict.
const retry = 50 * time.Millisecond

// Reconciler reconciles Canaries.
type Reconciler struct {
	client.Client
	direct  client.Reader
	analyst Analyst
	events  events.EventRecorder
	log     logr.Logger
	now     func() time.Time

	mu       sync.Mutex
	contents map[types.NamespacedName]contents
}

// New returns a Reconciler for a manager.
func New(m ctrl.Manager) *Reconciler {
	return NewWith(m.GetClient(), m.GetAPIReader(), new(Pods), m.GetEventRecorder("canary"), m.GetLogger().WithName("canary"), time.Now)
}

// NewWith returns a Reconciler. Direct reads what is not watched: Gateways, ConfigMaps and Secrets.
func NewWith(
	c client.Client, direct client.Reader, analyst Analyst, recorder events.EventRecorder, log logr.Logger, now func() time.Time,
) *Reconciler {
	return &Reconciler{
		Client: c, direct: direct, analyst: analyst, events: recorder, log: log, now: now, contents: map[types.NamespacedName]contents{},
	}
}

// Register adds the Reconciler to the manager. Any change in a namespace reconciles all its Canaries: with nothing to do, that only
// reads the cache.
func (r *Reconciler) Register(m ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var list v1alpha1.CanaryList
		if err := r.List(ctx, &list, client.InNamespace(o.GetNamespace())); err != nil {
			r.log.Error(err, "failed to list Canaries")
			return nil
		}
		var out []reconcile.Request
		for _, c := range list.Items {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&c)})
		}
		return out
	})
	b := ctrl.NewControllerManagedBy(m).Named("canary").For(&v1alpha1.Canary{}).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: 16})
	for _, o := range []client.Object{
		&v1alpha1.Canary{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &corev1.Pod{}, &corev1.Service{}, &discoveryv1.EndpointSlice{},
		&autoscalingv2.HorizontalPodAutoscaler{}, &gatewayv1.HTTPRoute{},
	} {
		b = b.Watches(o, all)
	}
	return b.Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, req.NamespacedName)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// Somebody was faster, or the cache is behind.
		return reconcile.Result{RequeueAfter: retry}, nil
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	c, err := get[v1alpha1.Canary](ctx, r, key.Namespace, key.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if c == nil {
		r.forget(key)
		return reconcile.Result{}, nil
	}
	if c.DeletionTimestamp == nil && !controllerutil.ContainsFinalizer(c, v1alpha1.Finalizer) {
		return reconcile.Result{}, r.finalize(ctx, c, controllerutil.AddFinalizer)
	}
	w, err := r.observe(ctx, c)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.analyze(ctx, &w); err != nil {
		return reconcile.Result{}, err
	}
	plan := machine.Decide(w, r.now())
	if err := r.write(ctx, &w, &plan); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: plan.After}, nil
}

// Retire leaves every Canary to itself, for good: the stable copy has all traffic, the candidate's pods stop, and nothing holds up the
// Canary's deletion. No operator may run meanwhile or afterwards, or it takes them up again.
func (r *Reconciler) Retire(ctx context.Context) error {
	var all v1alpha1.CanaryList
	if err := r.List(ctx, &all); err != nil {
		return fmt.Errorf("list Canaries: %w", err)
	}
	for _, c := range all.Items {
		key := client.ObjectKeyFromObject(&c)
		left := func(ctx context.Context) (bool, error) {
			err := r.leave(ctx, key)
			if apierrors.IsConflict(err) {
				return false, nil
			}
			return err == nil && !r.hasFinalizer(ctx, key), err
		}
		if err := wait.PollUntilContextCancel(ctx, retry, true, left); err != nil {
			return fmt.Errorf("leave the Canary %s: %w", key, err)
		}
		r.log.Info("Canary left to itself", "canary", key)
	}
	return nil
}

func (r *Reconciler) leave(ctx context.Context, key types.NamespacedName) error {
	c, err := get[v1alpha1.Canary](ctx, r, key.Namespace, key.Name)
	if c == nil || err != nil {
		return err
	}
	w, err := r.observe(ctx, c)
	if err != nil {
		return err
	}
	plan := machine.Leave(w, r.now())
	return r.write(ctx, &w, &plan)
}

// hasFinalizer says whether a Canary still has the operator's finalizer, as far as the cache knows.
func (r *Reconciler) hasFinalizer(ctx context.Context, key types.NamespacedName) bool {
	c, err := get[v1alpha1.Canary](ctx, r, key.Namespace, key.Name)
	return err != nil || c != nil && controllerutil.ContainsFinalizer(c, v1alpha1.Finalizer)
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.analyst.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.contents, key)
	forgetMetrics(key)
}

// write does what was planned, in the plan's order. It ends at the first error.
func (r *Reconciler) write(ctx context.Context, w *machine.World, p *machine.Plan) error {
	if p.Lower != nil {
		if err := r.Update(ctx, p.Lower); err != nil {
			return fmt.Errorf("take weight from the candidate: %w", err)
		}
	}
	if p.Release {
		if err := r.finalize(ctx, w.Canary, controllerutil.RemoveFinalizer); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("release the Canary: %w", err)
		}
		return nil
	}
	c := w.Canary.DeepCopy()
	c.Status = p.Status
	measure(c) // even if the status is unchanged: another operator may have written it
	if !equality.Semantic.DeepEqual(p.Status, w.Canary.Status) {
		if err := r.Status().Update(ctx, c); err != nil {
			return fmt.Errorf("write the status: %w", err)
		}
		for _, e := range p.Events {
			kind := corev1.EventTypeNormal
			if e.Warning {
				kind = corev1.EventTypeWarning
			}
			r.events.Eventf(c, nil, kind, e.Reason, "Release", "%s", e.Message)
		}
	}
	for _, s := range p.Services {
		if err := r.put(ctx, s); err != nil {
			return fmt.Errorf("write the Service %s: %w", s.Name, err)
		}
	}
	if p.Stable != nil {
		if err := r.put(ctx, p.Stable); err != nil {
			return fmt.Errorf("write the stable copy: %w", err)
		}
	}
	if p.Replicas != nil {
		target := w.Target.DeepCopy()
		target.Spec.Replicas = p.Replicas
		// A patch of this field alone: the rest is helm's.
		patch := client.MergeFromWithOptions(w.Target, client.MergeFromWithOptimisticLock{})
		if err := r.Patch(ctx, target, patch); err != nil {
			return fmt.Errorf("scale the target: %w", err)
		}
	}
	if p.Route != nil {
		if err := r.put(ctx, p.Route); err != nil {
			return fmt.Errorf("write the route: %w", err)
		}
	}
	return nil
}

// finalize changes the Canary's finalizers and nothing else. Whoever writes the whole object owns its spec, and helm 4 then finds a
// conflict in each value that is spelled differently, such as 1h and 1h0m0s.
func (r *Reconciler) finalize(ctx context.Context, c *v1alpha1.Canary, change func(client.Object, string) bool) error {
	next := c.DeepCopy()
	if !change(next, v1alpha1.Finalizer) {
		return nil
	}
	return r.Patch(ctx, next, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{}))
}

// put creates an object that is not there yet, and updates any other.
func (r *Reconciler) put(ctx context.Context, o client.Object) error {
	if o.GetResourceVersion() == "" {
		return r.Create(ctx, o)
	}
	return r.Update(ctx, o)
}
