package lab

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"waitlist.internal/libs/service"
	"waitlist.internal/tools/internal/standalone"
)

const (
	// Release is the name of the chart's release.
	Release = "suite"
	// helmTimeout bounds an install or upgrade on a busy machine.
	helmTimeout = 75 * time.Second
	// namespaceTimeout bounds the removal of a namespace's objects.
	namespaceTimeout = time.Minute
	// certificates is the Secret with the certificate authorities from SSL_CERT_FILE.
	certificates = "certificates"
)

// Settings configure how the chart is deployed. They come from the environment because the deploying program is started in
// place of the standalone one.
type Settings struct {
	Kubeconfig string `env:"LAB_KUBECONFIG,required"`
	// Bin is the directory that contains helm.
	Bin string `env:"LAB_BIN,required"`
	// Chart is the umbrella chart: a directory with its dependencies, or a package.
	Chart string `env:"LAB_CHART,required"`
	// Values are additional values files, among them the one with the images' digests.
	Values []string `env:"LAB_VALUES"`
	// Roles is the SQL file that creates the services' roles in Postgres.
	Roles string `env:"LAB_ROLES,required"`
	// Images is a directory for the files of images.
	Images string `env:"LAB_IMAGES,required"`
	// Gateway is the kind of the routes: httproute or ingress.
	Gateway string `env:"LAB_GATEWAY" envDefault:"httproute"`
	// Replicas is the number of replicas of each service.
	Replicas int `env:"LAB_REPLICAS" envDefault:"2"`
}

// LoadSettings loads the settings from an environment.
func LoadSettings(environ []string) (Settings, error) { return service.Load[Settings](environ) }

// Deployment is the suite, deployed by its chart to a namespace with its own nodes.
type Deployment struct {
	Namespace string
	Client    kubernetes.Interface
	Nodes     *Nodes
	Gateway   *Gateway

	settings Settings
	log      *slog.Logger
	output   io.Writer
	values   string // values file that Deploy wrote
}

// Deploy deploys the suite. If a process dies, the next Deploy with the same data directory takes over its namespace.
func Deploy(ctx context.Context, settings Settings, suite standalone.Suite) (_ *Deployment, err error) {
	dir := filepath.Join(suite.DataDir, "lab")
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d := &Deployment{settings: settings, log: suite.Log, output: suite.Output, values: filepath.Join(dir, "values.json")}
	if _, d.Client, err = connect(settings.Kubeconfig); err != nil {
		return nil, err
	}
	defer func() { //nolint:contextcheck // clean up even if ctx ended
		if err != nil {
			err = errors.Join(err, d.Stop())
		}
	}()
	if err := d.makeNamespace(ctx, filepath.Join(dir, "namespace")); err != nil {
		return nil, err
	}
	var shared []string
	if mails := suite.Env["MAIL_DIR"]; mails != "" {
		// The containers' user writes to this directory.
		if mails, err = filepath.Abs(mails); err != nil {
			return nil, err
		}
		if err := errors.Join(os.MkdirAll(mails, 0o755), os.Chmod(mails, 0o777)); err != nil {
			return nil, err
		}
		suite.Env["MAIL_DIR"] = mails
		shared = append(shared, mails)
	}
	d.Nodes, err = StartNodes(ctx, NodesConfig{
		Kubeconfig: settings.Kubeconfig, Namespace: d.Namespace, Count: 2, Dir: dir, Images: settings.Images,
		Shared: shared, Output: suite.Output, Log: suite.Log,
	})
	if err != nil {
		return nil, err
	}
	databases, err := d.makeRoles(ctx, suite)
	if err != nil {
		return nil, err
	}
	if err := d.makeSecrets(ctx, suite, databases); err != nil {
		return nil, err
	}
	if d.Gateway, err = StartGateway(ctx, settings.Kubeconfig, d.Namespace, suite.Log); err != nil {
		return nil, err
	}
	if err := d.writeValues(suite); err != nil {
		return nil, err
	}
	if err := d.Upgrade(ctx, settings.Chart); err != nil {
		return nil, err
	}
	// Pods of the former process still serve, with its environment, while they drain.
	return d, d.awaitNone(ctx, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// makeNamespace creates a namespace that admits restricted pods only, or takes over the one that the file kept names.
func (d *Deployment) makeNamespace(ctx context.Context, kept string) error {
	if raw, err := os.ReadFile(kept); err == nil {
		d.Namespace = string(raw)
		return nil
	}
	name := "suite-" + strings.ToLower(rand.Text()[:8])
	if err := os.WriteFile(kept, []byte(name), 0o644); err != nil {
		return err
	}
	_, err := d.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		Annotations: map[string]string{"scheduler.alpha.kubernetes.io/node-selector": namespaceLabel + "=" + name},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	d.Namespace = name
	return nil
}

// secretKeys returns the variables that the suite stores in Secrets.
func secretKeys() []string {
	return []string{
		"TOKEN_KEYS", "ACCOUNT_TOKEN_KEYS", "SEAL_KEYS", "ADDRESS_KEY", "JWT_KEYS", "SERVICE_KEYS", "REDIS_URL", "STRIPE_SECRET_KEY",
		"STRIPE_WEBHOOK_SECRETS", "RESEND_API_KEY", "RESEND_WEBHOOK_SECRETS", "SMTP_PASSWORD", "TWILIO_AUTH_TOKEN",
	}
}

// makeRoles creates a Postgres role for each service, as an operator does, and returns each service's database URL.
func (d *Deployment) makeRoles(ctx context.Context, suite standalone.Suite) (map[string]string, error) {
	admin, err := url.Parse(suite.Env["POSTGRES_URL"])
	if err != nil {
		return nil, fmt.Errorf("parse POSTGRES_URL: %w", err)
	}
	sql, err := os.ReadFile(d.settings.Roles)
	if err != nil {
		return nil, fmt.Errorf("read LAB_ROLES: %w", err)
	}
	conn, err := pgx.Connect(ctx, admin.String())
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.PgConn().Exec(ctx, string(sql)).ReadAll(); err != nil {
		return nil, fmt.Errorf("create the roles: %w", err)
	}
	out := map[string]string{}
	for name := range suite.Seeds {
		if name == "pages" { // has no database
			continue
		}
		role := "waitlist_" + strings.ReplaceAll(name, "-", "_")
		// Passwords are the same for all suites on a server because they share the roles.
		if _, err := conn.Exec(ctx, "ALTER ROLE "+role+" PASSWORD '"+role+"'"); err != nil {
			return nil, fmt.Errorf("set the password of %s: %w", role, err)
		}
		own := *admin
		own.User = url.UserPassword(role, role)
		out[name] = own.String()
	}
	return out, nil
}

func (d *Deployment) makeSecrets(ctx context.Context, suite standalone.Suite, databases map[string]string) error {
	shared := map[string]string{}
	for _, k := range secretKeys() {
		if v := suite.Env[k]; v != "" {
			shared[k] = v
		}
	}
	secrets := map[string]map[string]string{"shared": shared}
	for name, seed := range suite.Seeds {
		secrets[name] = map[string]string{"SERVICE_KEY": seed}
		if own := databases[name]; own != "" {
			secrets[name]["POSTGRES_URL"] = own
		}
	}
	if file := suite.Env["SSL_CERT_FILE"]; file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read SSL_CERT_FILE: %w", err)
		}
		secrets[certificates] = map[string]string{"ca.crt": string(content)}
	}
	for name, content := range secrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: content}
		_, err := d.Client.CoreV1().Secrets(d.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = d.Client.CoreV1().Secrets(d.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("create the secret %s: %w", name, err)
		}
	}
	return nil
}

// writeValues writes the chart values of this deployment.
func (d *Deployment) writeValues(suite standalone.Suite) error {
	env := maps.Clone(suite.Env)
	maps.DeleteFunc(env, func(k, v string) bool {
		return v == "" || slices.Contains(secretKeys(), k) || strings.HasPrefix(k, "LAB_") ||
			slices.Contains([]string{
				"POSTGRES_URL", "HTTP_ADDR", "GRPC_ADDR", "INTERNAL_ADDR", "DATA_DIR", "LOG_FILE", "PATH", "HOME",
				"TMPDIR", "STRIPESIM_ADDR",
			}, k)
	})
	setDefault(env, "CORS_ALLOWED_ORIGIN", "*")
	// The tests expect the services' defaults, not the chart's.
	for k, v := range map[string]string{
		"ENFORCE_EMAIL_VERIFICATION": "false", "TRIAL_PER_PERSON": "false", "REFUSE_COMMON_PASSWORDS": "false",
		"MAIL_DAILY_CAP": "0", "BLAST_DAILY_CAP_TRIAL": "0", "MAIL_DAILY_CAP_RECIPIENT": "0",
		"ASK_DAILY_CAP_RECIPIENT": "0",
		"SMS_DAILY_CAP":           "0", "SMS_DAILY_CAP_PREFIX": "0", "KAFKA_REPLICATION": "1",
	} {
		setDefault(env, k, v)
	}
	global := map[string]any{"env": env, "existingSecret": "shared", "bindPodIP": true}
	if env["SSL_CERT_FILE"] != "" {
		global["certificates"] = []any{map[string]any{"name": certificates, "secret": certificates}}
		env["SSL_CERT_FILE"] = "/etc/certificates/" + certificates + "/ca.crt"
	}
	values := map[string]any{
		"global":  global,
		"gateway": map[string]any{"kind": d.settings.Gateway, "parentRefs": []any{map[string]any{"name": "lab"}}},
	}
	for name := range suite.Seeds {
		service := map[string]any{
			// Set here as well, because the chart has defaults per service.
			"env": env, "existingSecret": name, "replicas": d.settings.Replicas,
			"shutdown": map[string]any{"delaySeconds": 3, "drainSeconds": 20},
			"rollout":  map[string]any{"minReadySeconds": 0},
			"probes": map[string]any{
				"readiness": map[string]any{"periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 2},
			},
		}
		if name == "pages" {
			service["enabled"] = true
		}
		values[name] = service
	}
	raw, err := json.MarshalIndent(values, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(d.values, raw, 0o600)
}

func setDefault(env map[string]string, name, value string) {
	if env[name] == "" {
		env[name] = value
	}
}

// Upgrade installs a chart, or upgrades an earlier release to it, and waits until its pods are ready. more are additional
// arguments for helm.
func (d *Deployment) Upgrade(ctx context.Context, chart string, more ...string) error {
	args := []string{"upgrade", "--install", Release, chart, "--namespace", d.Namespace, "--wait", "--timeout", helmTimeout.String()}
	for _, file := range append([]string{d.values}, d.settings.Values...) {
		args = append(args, "--values", file)
	}
	if err := d.Helm(ctx, append(args, more...)...); err != nil {
		return fmt.Errorf("%w\n%s", err, d.Explain(ctx))
	}
	return nil
}

// Values returns the path of the values file that this deployment wrote.
func (d *Deployment) Values() string { return d.values }

// Explain describes the pods that are not ready and the namespace's warning events.
func (d *Deployment) Explain(ctx context.Context) string {
	var b strings.Builder
	pods, err := d.Client.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if !c.Ready {
				state, _ := json.Marshal(c.State)
				fmt.Fprintf(&b, "%s: %s on %s: %s\n", p.Name, p.Status.Phase, p.Spec.NodeName, state)
			}
		}
		if len(p.Status.ContainerStatuses) == 0 {
			conditions, _ := json.Marshal(p.Status.Conditions)
			fmt.Fprintf(&b, "%s: %s on %q: %s\n", p.Name, p.Status.Phase, p.Spec.NodeName, conditions)
		}
	}
	events, err := d.Client.CoreV1().Events(d.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
	if err != nil {
		return b.String() + err.Error()
	}
	for _, e := range events.Items {
		fmt.Fprintf(&b, "%s %s: %s: %s\n", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return b.String()
}

// Helm runs helm against the deployment's cluster.
func (d *Deployment) Helm(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(d.settings.Bin, "helm"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.settings.Kubeconfig, "HELM_DRIVER=secret")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("helm %s: %w: %s", args[0], err, out)
	}
	return nil
}

// Handler returns the gateway.
func (d *Deployment) Handler() http.Handler { return d.Gateway }

// Ready returns nil if all pods that are not terminating are ready right now and the gateway routes to each service.
func (d *Deployment) Ready(ctx context.Context) error {
	pods, err := d.Client.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=server"})
	if err != nil {
		return err
	}
	if len(pods.Items) == 0 {
		return errors.New("nothing is deployed")
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && !podReady(ctx, p.Status.PodIP) {
			return fmt.Errorf("pod %s is not ready", p.Name)
		}
	}
	return d.Gateway.Ready()
}

func podReady(ctx context.Context, ip string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(ip, "8081")+"/readyz", nil)
	if err != nil {
		return false
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// Stop uninstalls the release and removes the namespace and the nodes.
func (d *Deployment) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), namespaceTimeout)
	defer cancel()
	var errs []error
	if d.Gateway != nil {
		d.Gateway.Stop()
	}
	if d.Nodes != nil {
		errs = append(errs,
			d.Helm(ctx, "uninstall", Release, "--namespace", d.Namespace, "--ignore-not-found", "--wait", "--timeout", namespaceTimeout.String()))
	}
	if d.Nodes != nil {
		errs = append(errs, d.awaitNone(ctx, func(corev1.Pod) bool { return true }))
	}
	if d.Namespace != "" {
		if err := d.Client.CoreV1().Namespaces().Delete(ctx, d.Namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove the namespace: %w", err))
		}
	}
	if d.Nodes != nil {
		errs = append(errs, d.Nodes.Stop(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(filepath.Dir(d.values)))...)
}

// awaitNone waits until no pod matches.
func (d *Deployment) awaitNone(ctx context.Context, match func(corev1.Pod) bool) error {
	for {
		pods, err := d.Client.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(pods.Items, match) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for pods to end: %w", errors.Join(ctx.Err(), err))
		case <-time.After(pollEvery):
		}
	}
}
