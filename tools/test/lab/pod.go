package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// firstRestart and lastRestart bound the pause before a container restarts. A kubelet waits 10 s to 5 min, too long for
	// tests.
	firstRestart, lastRestart = 200 * time.Millisecond, 5 * time.Second
	// statusPause is the pause between attempts to report a pod's status.
	statusPause = 100 * time.Millisecond
)

// pod is a pod on one of the nodes.
type pod struct {
	node *Nodes
	spec *corev1.Pod
	ip   string
	dir  string

	stop  chan struct{} // closed when the pod is terminated
	force chan struct{} // closed when its grace period is over

	mu         sync.Mutex
	stopOnce   sync.Once
	forceTimer *time.Timer
	forced     bool
	containers []*podContainer
	initial    []*podContainer
	reported   []byte // the last status sent
	dirty      chan struct{}
}

// podContainer is a container of a pod. The pod's mu guards its changing fields.
type podContainer struct {
	spec     corev1.Container
	process  *os.Process // while it runs
	started  bool        // its startup probe has passed
	ready    bool
	restarts int32
	state    corev1.ContainerState
	last     corev1.ContainerState
}

// newPod creates a pod. The caller holds n.mu.
func newPod(n *Nodes, obj *corev1.Pod) *pod {
	p := &pod{
		node: n, spec: obj, ip: n.address(obj.Status.PodIP), dir: filepath.Join(n.cfg.Dir, "pods", string(obj.UID)),
		stop: make(chan struct{}), force: make(chan struct{}), dirty: make(chan struct{}, 1),
	}
	containers := func(specs []corev1.Container, old []corev1.ContainerStatus) []*podContainer {
		var all []*podContainer
		for i, s := range specs {
			c := &podContainer{spec: s, state: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
			// A pod of a node that died continues as after a restart.
			if i < len(old) {
				c.restarts = old[i].RestartCount + 1
			}
			all = append(all, c)
		}
		return all
	}
	p.initial, p.containers = containers(obj.Spec.InitContainers, nil), containers(obj.Spec.Containers, obj.Status.ContainerStatuses)
	return p
}

// terminate asks the pod to stop and kills it after grace.
func (p *pod) terminate(grace time.Duration) {
	p.stopOnce.Do(func() { close(p.stop) })
	p.mu.Lock()
	defer p.mu.Unlock()
	end := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.forced {
			p.forced = true
			close(p.force)
		}
	}
	if p.forceTimer != nil {
		p.forceTimer.Stop()
	}
	p.forceTimer = time.AfterFunc(grace, end)
}

// kill kills the pod's processes. The restart policy decides what happens next.
func (p *pod) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.containers {
		if c.process != nil {
			_ = c.process.Kill()
		}
	}
}

// run runs the pod until it has ended for good or was terminated. If the pod has already ended, it only waits for the pod's
// removal.
func (p *pod) run(ended bool) {
	defer func() { _ = os.RemoveAll(p.dir) }() // leftovers only waste space
	var reporter sync.WaitGroup
	done := make(chan struct{})
	if !ended {
		reporter.Go(func() { p.report(done) })
		p.changed()
		ok := true
		for _, c := range p.initial {
			if ok = p.keepRunning(c, true); !ok {
				break
			}
		}
		if ok {
			var all sync.WaitGroup
			for _, c := range p.containers {
				all.Go(func() { p.keepRunning(c, false) })
			}
			all.Wait()
		}
	}
	close(done)
	reporter.Wait()
	<-p.stop
	if p.node.ctx.Err() != nil {
		return // the node dies without reporting
	}
	err := p.node.client.CoreV1().Pods(p.spec.Namespace).Delete(context.WithoutCancel(p.node.ctx), p.spec.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(p.spec.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		p.node.cfg.Log.Error("pod not removed", "pod", p.spec.Name, "error", err)
	}
}

// keepRunning runs a container and restarts it as the pod's policy requires, an init container only after a failure. It
// reports whether the container succeeded.
func (p *pod) keepRunning(c *podContainer, initial bool) bool {
	pause := firstRestart
	for {
		code, err := p.runOnce(c)
		reason := "Completed"
		switch {
		case err != nil:
			reason = "StartError"
			p.node.cfg.Log.Error("container not started", "pod", p.spec.Name, "container", c.spec.Name, "error", err)
		case code != 0:
			reason = "Error"
		}
		p.mu.Lock()
		c.process, c.ready, c.started = nil, false, false
		end := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(code), Reason: reason,
			FinishedAt: metav1.Now(),
		}}
		if err != nil {
			end.Terminated.Message = err.Error()
		}
		c.state, c.last = end, end
		policy := p.spec.Spec.RestartPolicy
		if initial && policy == corev1.RestartPolicyAlways {
			policy = corev1.RestartPolicyOnFailure
		}
		again := policy == corev1.RestartPolicyAlways || (policy == corev1.RestartPolicyOnFailure && code != 0)
		p.mu.Unlock()
		p.changed()
		select {
		case <-p.stop:
			return false
		default:
		}
		if !again {
			return code == 0
		}
		p.mu.Lock()
		c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		p.mu.Unlock()
		p.changed()
		select {
		case <-p.stop:
			return false
		case <-time.After(pause):
		}
		pause = min(2*pause, lastRestart)
		p.mu.Lock()
		c.restarts++
		p.mu.Unlock()
	}
}

// runOnce runs a container's process until it exits and returns the exit code.
func (p *pod) runOnce(c *podContainer) (code int, err error) {
	cmd, err := p.prepare(c)
	if err != nil {
		return 128, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return 128, err
	}
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	_ = in.Close()
	var copied sync.WaitGroup
	copied.Go(func() {
		defer out.Close()
		p.copyLines(out)
	})
	if err != nil {
		copied.Wait()
		return 128, err
	}
	ended := make(chan struct{})
	p.mu.Lock()
	c.process = cmd.Process
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	c.started = c.spec.StartupProbe == nil
	c.ready = c.started && c.spec.ReadinessProbe == nil
	p.mu.Unlock()
	p.changed()
	var watchers sync.WaitGroup
	watchers.Go(func() { p.probe(c, cmd.Process, ended) })
	watchers.Go(func() {
		select {
		case <-ended:
			return
		case <-p.stop:
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-p.force:
			_ = cmd.Process.Kill()
		}
	})
	err = cmd.Wait()
	close(ended)
	watchers.Wait()
	copied.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// prepare creates a container's files and returns its process, which is not started yet.
func (p *pod) prepare(c *podContainer) (*exec.Cmd, error) {
	ctx := p.node.ctx
	img, err := p.node.images.pull(ctx, c.spec.Image)
	if err != nil {
		return nil, err
	}
	spec := container{Root: filepath.Join(p.dir, c.spec.Name), Dir: img.config.WorkingDir}
	if err := os.RemoveAll(spec.Root); err != nil {
		return nil, err
	}
	if err := img.link(spec.Root); err != nil {
		return nil, err
	}
	if spec.UID, spec.GID, err = p.user(c, img); err != nil {
		return nil, err
	}
	if s := c.spec.SecurityContext; s != nil && s.ReadOnlyRootFilesystem != nil {
		spec.ReadOnly = *s.ReadOnlyRootFilesystem
	}
	if spec.Mounts, err = p.mounts(ctx, c, spec.GID); err != nil {
		return nil, err
	}
	files := map[string]string{
		"/etc/hosts": "127.0.0.1 localhost\n" + p.ip + " " + p.spec.Name + "\n",
		"/etc/resolv.conf": fmt.Sprintf("nameserver 198.18.%d.2\nsearch %s.svc.%s svc.%s %s\noptions ndots:5\n",
			p.node.number, p.spec.Namespace, clusterDomain, clusterDomain, clusterDomain),
	}
	for _, dir := range []string{"/proc", "/dev", "/etc"} {
		if err := os.MkdirAll(filepath.Join(spec.Root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	for path, content := range files {
		if err := os.WriteFile(filepath.Join(spec.Root, path), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	if spec.Env, err = p.environment(ctx, c, img); err != nil {
		return nil, err
	}
	command := c.spec.Command
	if len(command) == 0 {
		command = img.config.Entrypoint
	}
	args := c.spec.Args
	if len(args) == 0 && len(c.spec.Command) == 0 {
		args = img.config.Cmd
	}
	spec.Args = append(slices.Clone(command), args...)
	if len(spec.Args) == 0 {
		return nil, errors.New("neither the image nor the pod has a command")
	}
	if !filepath.IsAbs(spec.Args[0]) {
		return nil, fmt.Errorf("the lab needs commands with absolute paths, not %q", spec.Args[0])
	}
	if spec.Dir == "" {
		spec.Dir = "/"
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, containerCommand)
	cmd.Env = []string{containerVariable + "=" + string(raw)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// user returns the user and group that the container runs as, from the container's security context, the pod's or the image.
func (p *pod) user(c *podContainer, img *image) (uid, gid int, err error) {
	uid, gid = -1, -1
	if name, group, _ := strings.Cut(img.config.User, ":"); name != "" {
		if uid, err = strconv.Atoi(name); err != nil {
			return 0, 0, fmt.Errorf("the image's user %q is not a number", name)
		}
		gid = uid
		if group != "" {
			if gid, err = strconv.Atoi(group); err != nil {
				return 0, 0, fmt.Errorf("the image's group %q is not a number", group)
			}
		}
	}
	set := func(id *int64, to *int) {
		if id != nil {
			*to = int(*id)
		}
	}
	nonRoot := false
	if s := p.spec.Spec.SecurityContext; s != nil {
		set(s.RunAsUser, &uid)
		set(s.RunAsGroup, &gid)
		nonRoot = s.RunAsNonRoot != nil && *s.RunAsNonRoot
	}
	if s := c.spec.SecurityContext; s != nil {
		set(s.RunAsUser, &uid)
		set(s.RunAsGroup, &gid)
		if s.RunAsNonRoot != nil {
			nonRoot = *s.RunAsNonRoot
		}
	}
	if nonRoot && uid <= 0 {
		return 0, 0, errors.New("the container has runAsNonRoot but its image runs as root")
	}
	return max(uid, 0), max(gid, 0), nil
}

// copyLines copies a container's output line by line.
func (p *pod) copyLines(out *os.File) {
	scanner := bufio.NewScanner(out)
	scanner.Buffer(make([]byte, 64<<10), 4<<20)
	for scanner.Scan() {
		p.node.output.Lock()
		_, _ = p.node.cfg.Output.Write(append(scanner.Bytes(), '\n'))
		p.node.output.Unlock()
	}
}

// probe runs the container's probes until it ends. A startup or liveness probe that fails too often kills it.
func (p *pod) probe(c *podContainer, process *os.Process, ended <-chan struct{}) {
	end := func(which string) {
		p.node.cfg.Log.Warn("probe failed", "probe", which, "pod", p.spec.Name, "container", c.spec.Name)
		_ = process.Kill()
	}
	if probe := c.spec.StartupProbe; probe != nil {
		passed := false
		p.every(probe, ended, func(ok bool, row int32) bool {
			passed = ok && row >= max(probe.SuccessThreshold, 1)
			if !ok && row >= failures(probe) {
				end("startup")
				return false
			}
			return !passed
		})
		if !passed {
			return
		}
		p.mu.Lock()
		c.started, c.ready = true, c.spec.ReadinessProbe == nil
		p.mu.Unlock()
		p.changed()
	}
	var probes sync.WaitGroup
	if probe := c.spec.ReadinessProbe; probe != nil {
		probes.Go(func() {
			p.every(probe, ended, func(ok bool, row int32) bool {
				if (ok && row >= max(probe.SuccessThreshold, 1)) || (!ok && row >= failures(probe)) {
					p.mu.Lock()
					changed := c.ready != ok
					c.ready = ok
					p.mu.Unlock()
					if changed {
						p.changed()
					}
				}
				return true
			})
		})
	}
	if probe := c.spec.LivenessProbe; probe != nil {
		probes.Go(func() {
			p.every(probe, ended, func(ok bool, row int32) bool {
				select {
				case <-p.stop:
					return false
				default:
				}
				if !ok && row >= failures(probe) {
					end("liveness")
					return false
				}
				return true
			})
		})
	}
	probes.Wait()
}

func failures(p *corev1.Probe) int32 {
	if p.FailureThreshold == 0 {
		return 3
	}
	return p.FailureThreshold
}

// every runs a probe at its period until ended or until fn returns false. row is how often in a row the result was the same.
func (p *pod) every(probe *corev1.Probe, ended <-chan struct{}, fn func(ok bool, row int32) bool) {
	client := &http.Client{
		Timeout:   time.Duration(max(probe.TimeoutSeconds, 1)) * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext},
	}
	wait := time.Duration(probe.InitialDelaySeconds) * time.Second
	var row int32
	last := false
	for {
		select {
		case <-ended:
			return
		case <-time.After(wait):
		}
		wait = time.Duration(max(probe.PeriodSeconds, 1)) * time.Second
		ok := p.ask(client, probe)
		if ok == last {
			row++
		} else {
			row = 1
		}
		last = ok
		if !fn(ok, row) {
			return
		}
	}
}

// ask performs an HTTP probe; other kinds fail.
func (p *pod) ask(client *http.Client, probe *corev1.Probe) bool {
	if probe.HTTPGet == nil {
		return false
	}
	port := probe.HTTPGet.Port.IntValue()
	if probe.HTTPGet.Port.Type == intstr.String {
		for _, c := range p.spec.Spec.Containers {
			for _, named := range c.Ports {
				if named.Name == probe.HTTPGet.Port.StrVal {
					port = int(named.ContainerPort)
				}
			}
		}
	}
	url := "http://" + net.JoinHostPort(p.ip, strconv.Itoa(port)) + probe.HTTPGet.Path
	req, err := http.NewRequestWithContext(p.node.ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode >= 200 && res.StatusCode < 400
}

// changed triggers a report of the pod's status.
func (p *pod) changed() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// report sends every status change to the API server until done, and then the last one.
func (p *pod) report(done <-chan struct{}) {
	for {
		last := false
		select {
		case <-p.dirty:
		case <-done:
			last = true
		}
		for p.node.ctx.Err() == nil {
			err := p.send()
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				break
			}
			p.node.cfg.Log.Warn("pod status not reported", slog.String("pod", p.spec.Name), slog.Any("error", err))
			select {
			case <-p.node.ctx.Done():
			case <-time.After(statusPause):
			}
		}
		if last {
			return
		}
	}
}

func (p *pod) send() error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.spec.UID}, "status": p.status()})
	if err != nil {
		return err
	}
	if string(patch) == string(p.reported) {
		return nil
	}
	_, err = p.node.client.CoreV1().Pods(p.spec.Namespace).
		Patch(p.node.ctx, p.spec.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		p.reported = patch
	}
	return err
}

// status returns the pod's status in the form of the API.
func (p *pod) status() corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	running, failed, ready := false, false, true
	statuses := func(all []*podContainer) []corev1.ContainerStatus {
		var out []corev1.ContainerStatus
		for _, c := range all {
			out = append(out, corev1.ContainerStatus{
				Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, Ready: c.ready, Started: new(c.started),
				RestartCount: c.restarts, State: c.state, LastTerminationState: c.last,
			})
		}
		return out
	}
	for _, c := range p.containers {
		ready = ready && c.ready
		if t := c.state.Terminated; t == nil {
			running = true
		} else if t.ExitCode != 0 {
			failed = true
		}
	}
	phase := corev1.PodRunning
	switch {
	case !running && failed:
		phase = corev1.PodFailed
	case !running:
		phase = corev1.PodSucceeded
	case slices.ContainsFunc(p.containers, func(c *podContainer) bool {
		return c.restarts == 0 && c.state.Waiting != nil && c.state.Waiting.Reason == "ContainerCreating"
	}):
		phase = corev1.PodPending
	}
	condition := func(kind corev1.PodConditionType, yes bool) corev1.PodCondition {
		value := corev1.ConditionFalse
		if yes {
			value = corev1.ConditionTrue
		}
		return corev1.PodCondition{Type: kind, Status: value}
	}
	return corev1.PodStatus{
		Phase: phase, PodIP: p.ip, PodIPs: []corev1.PodIP{{IP: p.ip}}, HostIP: p.node.host(p.node.number),
		HostIPs: []corev1.HostIP{{IP: p.node.host(p.node.number)}}, StartTime: &p.spec.CreationTimestamp,
		Conditions: []corev1.PodCondition{
			condition(corev1.PodInitialized, true), condition(corev1.PodReady, ready), condition(corev1.ContainersReady, ready),
		},
		InitContainerStatuses: statuses(p.initial), ContainerStatuses: statuses(p.containers),
	}
}
