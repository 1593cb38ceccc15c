package observability_test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Paths and objects of the API server. No node runs the Deployment's pods: its Canary stays in the phase Initializing, which is no fault.
const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	deployments = "/apis/apps/v1/namespaces/" + namespace + "/deployments"
	canaries    = "/apis/canary.waitlist.internal/v1alpha1/namespaces/" + namespace + "/canaries"

	deployment = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
		"selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
			"containers": [{"name": "web", "image": "registry.example.com/web"}]}}}}`
	canary = `{"apiVersion": "canary.waitlist.internal/v1alpha1", "kind": "Canary", "metadata": {"name": "web"}, "spec": {
		"targetRef": {"name": "web"}, "steps": [{}]}}`
)

// kubernetes is an API server.
type kubernetes struct {
	*running
	url, token string
	client     *http.Client
}

// newKubernetes starts etcd and an API server from LAB_BIN, where make test-faults puts them.
func (r *running) newKubernetes() (k *kubernetes, kubeconfig string) {
	r.Helper()
	bin, c := os.Getenv("LAB_BIN"), newCertificates(r, map[string]int{"server": 1})
	etcd, address := "http://"+freePort(r), freePort(r)
	_, port, _ := net.SplitHostPort(address)
	k = &kubernetes{running: r, url: "https://" + address, token: rand.Text()}
	kubeconfig = c.file("kubeconfig")
	c.write(r, "tokens.csv", []byte(k.token+",admin,admin,system:masters\n"))
	c.write(r, "kubeconfig", []byte(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "`+k.url+`", certificate-authority: authorities.pem}}]
users: [{name: admin, user: {token: "`+k.token+`"}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`))
	authorities, err := os.ReadFile(c.file("authorities.pem"))
	if err != nil {
		r.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)
	k.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
	r.runs(filepath.Join(bin, "etcd"), nil, "--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--listen-client-urls="+etcd,
		"--advertise-client-urls="+etcd, "--listen-peer-urls=http://"+freePort(r))
	r.runs(filepath.Join(bin, "kube-apiserver"), nil, "--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--advertise-address=127.0.0.1", "--tls-cert-file="+c.file("server.pem"), "--tls-private-key-file="+c.file("server.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.file("server.pem"),
		"--service-account-signing-key-file="+c.file("server.key"), "--token-auth-file="+c.file("tokens.csv"),
		"--authorization-mode=RBAC", "--service-cluster-ip-range=198.19.0.0/16", "--endpoint-reconciler-type=none")
	r.await("the API server", func() bool { return k.ask("GET", "/readyz", "") == http.StatusOK })
	return k, kubeconfig
}

// ask returns the status of an answer, 0 if there is none.
func (k *kubernetes) ask(method, path, body string) int {
	k.Helper()
	req, err := http.NewRequestWithContext(k.Context(), method, k.url+path, strings.NewReader(body))
	if err != nil {
		k.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+k.token)
	req.Header.Set("Content-Type", "application/yaml") // JSON is YAML
	res, err := k.client.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0
	}
	return res.StatusCode
}

// must sends a request that must succeed.
func (k *kubernetes) must(method, path, body string) {
	k.Helper()
	if status := k.ask(method, path, body); status < 200 || status >= 300 {
		k.Fatalf("%s %s: %d", method, path, status)
	}
}

// releases starts an API server with a Canary and the operator, and waits until that looks after it.
func (r *running) releases() *kubernetes {
	r.Helper()
	k, kubeconfig := r.newKubernetes()
	list := exec.CommandContext(r.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api")
	list.Dir = filepath.Join(root, "k8s/canary")
	gateway, err := list.Output()
	if err != nil {
		r.Fatal(err)
	}
	standard := filepath.Join(strings.TrimSpace(string(gateway)), "config/crd/standard/gateway.networking.k8s.io_")
	for _, file := range []string{
		standard + "gateways.yaml", standard + "httproutes.yaml", filepath.Join(list.Dir, "config/crd/canary.waitlist.internal_canaries.yaml"),
	} {
		kind, err := os.ReadFile(file)
		if err != nil {
			r.Fatal(err)
		}
		k.must("POST", definitions, string(kind))
	}
	k.must("POST", "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+namespace+`"}}`)
	k.must("POST", deployments, deployment)
	r.await("the kind Canary", func() bool { return k.ask("POST", canaries, canary) == http.StatusCreated })
	metrics := freePort(r)
	r.runs(filepath.Join(os.Getenv("LAB_BIN"), "operator"), []string{"KUBECONFIG=" + kubeconfig},
		"-namespaces="+namespace, "-leader-elect=false", "-probes="+freePort(r), "-metrics="+metrics)
	r.more = func() []sample {
		now, _ := scrapeAs(r, "http://"+metrics+"/metrics", "text/plain")
		return now
	}
	r.await("the operator", func() bool { return total(r.more(), "canary_phase") == 1 })
	return k
}
