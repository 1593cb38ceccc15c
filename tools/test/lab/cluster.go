package lab

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	etcdURL   = "http://127.0.0.1:2379"
	serverURL = "https://127.0.0.1:6443"
	// startTimeout bounds the start of the control plane on a busy machine.
	startTimeout = 2 * time.Minute
	stopTimeout  = 10 * time.Second
	pollEvery    = 50 * time.Millisecond
)

// Cluster is a running control plane without nodes. A network namespace holds only one because its ports are fixed.
type Cluster struct {
	// Kubeconfig is the path of an administrator's kubeconfig.
	Kubeconfig string
	// Config is the same access for Go clients.
	Config *rest.Config
	// Client is an administrator's client.
	Client kubernetes.Interface

	dir       string
	processes []*process
}

// process is a process of the control plane.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
}

// StartCluster starts the control plane from the binaries in bin and keeps its state and logs in dir. The caller must call
// Stop.
func StartCluster(ctx context.Context, bin, dir string) (_ *Cluster, err error) {
	c := &Cluster{dir: dir, Kubeconfig: filepath.Join(dir, "kubeconfig")}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cluster's directory: %w", err)
	}
	token := rand.Text()
	key, err := serviceAccountKey()
	if err != nil {
		return nil, err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{
		"kubeconfig": kubeconfig(token), "tokens.csv": token + ",admin,admin,system:masters\n", "accounts.key": key,
	} {
		if err := os.WriteFile(file(name), []byte(content), 0o600); err != nil {
			return nil, fmt.Errorf("write %s: %w", name, err)
		}
	}
	for _, p := range []struct {
		name string
		args []string
	}{
		{"etcd", []string{
			"--data-dir=" + file("etcd"), "--unsafe-no-fsync", "--listen-client-urls=" + etcdURL,
			"--advertise-client-urls=" + etcdURL, "--listen-peer-urls=http://127.0.0.1:2380",
		}},
		{"kube-apiserver", []string{
			"--etcd-servers=" + etcdURL, "--bind-address=127.0.0.1", "--secure-port=6443", "--advertise-address=127.0.0.1",
			"--cert-dir=" + file("certs"), "--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + file("accounts.key"), "--service-account-signing-key-file=" + file("accounts.key"),
			"--authorization-mode=RBAC", "--token-auth-file=" + file("tokens.csv"), "--service-cluster-ip-range=198.19.0.0/16",
			"--enable-admission-plugins=PodNodeSelector", "--endpoint-reconciler-type=none",
		}},
		{"kube-controller-manager", []string{
			"--kubeconfig=" + c.Kubeconfig, "--bind-address=127.0.0.1", "--cert-dir=" + file("certs-controllers"),
			"--service-account-private-key-file=" + file("accounts.key"), "--leader-elect=false", "--node-monitor-grace-period=1h",
			"--controllers=*,-nodeipam,-node-route-controller,-cloud-node-lifecycle-controller",
		}},
		{"kube-scheduler", []string{
			"--kubeconfig=" + c.Kubeconfig, "--bind-address=127.0.0.1", "--cert-dir=" + file("certs-scheduler"), "--leader-elect=false",
		}},
	} {
		if err := c.start(bin, p.name, p.args); err != nil {
			return nil, err
		}
		if p.name == "kube-apiserver" {
			if err := c.connect(ctx); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

func (c *Cluster) start(bin, name string, args []string) error {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close()
	p := &process{name: name, cmd: exec.Command(filepath.Join(bin, name), args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s (make test-k8s builds it): %w", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	c.processes = append(c.processes, p)
	return nil
}

// connect creates the clients and waits for the API server.
func (c *Cluster) connect(ctx context.Context) (err error) {
	if c.Config, c.Client, err = connect(c.Kubeconfig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	server := c.processes[len(c.processes)-1]
	for {
		err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return nil
		}
		select {
		case <-server.done:
			return fmt.Errorf("%s ended; see its log in %s", server.name, c.dir)
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w", err)
		case <-time.After(pollEvery):
		}
	}
}

// connect returns a client without rate limits.
func connect(kubeconfig string) (*rest.Config, kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	cfg.QPS, cfg.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("create a client: %w", err)
	}
	return cfg, client, nil
}

// Stop stops the processes in the reverse order of their start.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range slices.Backward(c.processes) {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(stopTimeout):
			_ = p.cmd.Process.Kill()
			<-p.done
			errs = append(errs, fmt.Errorf("%s did not stop within %s", p.name, stopTimeout))
		}
	}
	return errors.Join(errs...)
}

func kubeconfig(token string) string {
	return `apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "` + serverURL + `", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: "` + token + `"}}]
contexts: [{name: lab, context: {cluster: lab, user: admin}}]
current-context: lab
`
}

func serviceAccountKey() (string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", fmt.Errorf("create the key of service accounts: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})), nil
}
