package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// namespaceLabel is the label of a node that names the namespace of its pods.
	namespaceLabel = "lab.waitlist/namespace"
	// firstAddress and lastAddress bound the last byte of pod addresses.
	firstAddress, lastAddress = 10, 250
	// mostNetworks is the maximum number of concurrent sets of nodes.
	mostNetworks = 250
)

// NodesConfig configures StartNodes.
type NodesConfig struct {
	Kubeconfig string
	// Namespace is the only namespace whose pods run on these nodes.
	Namespace string
	// Count is the number of nodes; each is a zone of its own.
	Count int
	// Dir receives the files of pods, Images those of images. Several sets of nodes may share Images.
	Dir, Images string
	// Shared are directories that every container sees at the same path.
	Shared []string
	// Output receives the lines that containers write.
	Output io.Writer
	Log    *slog.Logger
}

// Nodes are the nodes of one namespace, all in this process. If the process dies, their pods die, as on machines that lose
// power.
type Nodes struct {
	cfg       NodesConfig
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	images    *images
	names     *names
	number    int // the network is 198.18.number.0/24
	nodes     map[string]bool

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu        sync.Mutex
	pods      map[types.UID]*pod
	addresses map[string]bool // taken by pods
	output    sync.Mutex
}

// StartNodes registers the nodes and runs the pods scheduled to them until Stop.
func StartNodes(ctx context.Context, cfg NodesConfig) (_ *Nodes, err error) {
	_, client, err := connect(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	n := &Nodes{
		cfg: cfg, client: client, images: &images{dir: cfg.Images, pulled: map[string]*image{}},
		informers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(cfg.Namespace)),
		nodes:     map[string]bool{}, pods: map[types.UID]*pod{}, addresses: map[string]bool{},
	}
	n.ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if err := n.register(ctx); err != nil {
		return nil, err
	}
	n.names, err = startNames(ctx, fmt.Sprintf("198.18.%d.2:53", n.number), n.informers.Discovery().V1().EndpointSlices().Lister())
	if err != nil {
		return nil, err
	}
	pods := n.informers.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.sync(o) },    //nolint:contextcheck // pods have the nodes' context
		UpdateFunc: func(_, o any) { n.sync(o) }, //nolint:contextcheck // as above
		DeleteFunc: func(o any) { n.gone(o) },
	}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	n.informers.Start(n.ctx.Done())
	n.informers.WaitForCacheSync(ctx.Done())
	return n, nil
}

// register claims a free network and registers the nodes. The first node's name reserves the network. It takes over the
// nodes of a process that died.
func (n *Nodes) register(ctx context.Context) error {
	kept := filepath.Join(n.cfg.Dir, "network")
	if raw, err := os.ReadFile(kept); err == nil {
		if _, err := fmt.Sscan(string(raw), &n.number); err != nil {
			return fmt.Errorf("read the number of the network: %w", err)
		}
	}
	for number := max(n.number, 1); number <= mostNetworks; number++ {
		err := n.addNode(ctx, number, 0)
		if apierrors.IsAlreadyExists(err) && n.number == 0 {
			continue
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		n.number = number
		if err := errors.Join(os.MkdirAll(n.cfg.Dir, 0o755), os.WriteFile(kept, fmt.Append(nil, number), 0o644)); err != nil {
			return fmt.Errorf("store the number of the network: %w", err)
		}
		for i := range n.cfg.Count {
			if err := n.addNode(ctx, number, i); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			n.nodes[nodeName(number, i)] = true
		}
		return nil
	}
	return errors.New("all networks are taken: too many sets of nodes")
}

func nodeName(network, i int) string { return fmt.Sprintf("node-%d-%d", network, i) }

func (n *Nodes) addNode(ctx context.Context, network, i int) error {
	name := nodeName(network, i)
	_, err := n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelTopologyZone: fmt.Sprint("zone-", i),
		namespaceLabel: n.cfg.Namespace,
	}}}, metav1.CreateOptions{})
	if err != nil {
		return err // the caller inspects it
	}
	size := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{
		Capacity: size, Allocatable: size,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.host(network)}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "LabReady",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}})
	if err != nil {
		return fmt.Errorf("encode the status of %s: %w", name, err)
	}
	if _, err := n.client.CoreV1().Nodes().
		Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("set the status of %s: %w", name, err)
	}
	return nil
}

// host returns the nodes' own address.
func (n *Nodes) host(network int) string { return fmt.Sprintf("198.18.%d.1", network) }

// sync handles a created or changed pod.
func (n *Nodes) sync(o any) {
	obj, ok := o.(*corev1.Pod)
	if !ok || !n.nodes[obj.Spec.NodeName] {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	p := n.pods[obj.UID]
	ended := obj.Status.Phase == corev1.PodSucceeded || obj.Status.Phase == corev1.PodFailed
	if p == nil && (!ended || obj.DeletionTimestamp != nil) {
		p = newPod(n, obj)
		n.pods[obj.UID] = p
		n.work.Go(func() {
			p.run(ended)
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.addresses, p.ip)
		})
	}
	if p != nil && obj.DeletionTimestamp != nil {
		p.terminate(time.Duration(*obj.DeletionGracePeriodSeconds) * time.Second)
	}
}

// gone handles a deleted pod, and kills it if it still runs.
func (n *Nodes) gone(o any) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	obj, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pods[obj.UID]; p != nil {
		p.terminate(0)
		delete(n.pods, obj.UID)
	}
}

// address returns a free address, wanted if possible. The caller holds n.mu.
func (n *Nodes) address(wanted string) string {
	if wanted != "" && !n.addresses[wanted] {
		n.addresses[wanted] = true
		return wanted
	}
	for i := firstAddress; i <= lastAddress; i++ {
		a := fmt.Sprintf("198.18.%d.%d", n.number, i)
		if !n.addresses[a] {
			n.addresses[a] = true
			return a
		}
	}
	return "" // the API server rejects an empty address
}

// Kill kills a container's process with SIGKILL if the pod runs here.
func (n *Nodes) Kill(pod types.UID) {
	n.mu.Lock()
	p := n.pods[pod]
	n.mu.Unlock()
	if p != nil {
		p.kill()
	}
}

// Processes returns the process ids of a pod's containers that run.
func (n *Nodes) Processes(pod types.UID) []int {
	n.mu.Lock()
	p := n.pods[pod]
	n.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []int
	for _, c := range p.containers {
		if c.process != nil {
			out = append(out, c.process.Pid)
		}
	}
	return out
}

// Stop kills all pods with SIGKILL and removes the nodes. Delete the pods first if they should end in order.
func (n *Nodes) Stop(ctx context.Context) error {
	n.cancel()
	n.mu.Lock()
	for _, p := range n.pods {
		p.terminate(0)
	}
	n.mu.Unlock()
	n.work.Wait()
	n.informers.Shutdown()
	var errs []error
	if n.names != nil {
		errs = append(errs, n.names.stop())
	}
	for name := range n.nodes {
		if err := n.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
