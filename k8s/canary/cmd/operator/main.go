// Command operator releases Deployments by canary; package machine says how. It serves /healthz and /readyz at port 8081 and metrics at
// port 8080, and of several replicas one leads. With -retire it does not release anything: it waits until no other operator leads, leaves
// every Canary to itself, and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/controller"
)

func main() {
	// A tenth of the container's limit is left to the kernel. An error means that there are no control groups.
	_, _ = memlimit.Set()
	ctx := ctrl.SetupSignalHandler()
	if err := run(ctx, os.Args[1:], os.Stderr); errors.Is(err, flag.ErrHelp) {
		return
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run returns when ctx ends it, or after it has retired.
func run(ctx context.Context, args []string, log io.Writer) error {
	flags := flag.NewFlagSet("operator", flag.ContinueOnError)
	flags.SetOutput(log)
	namespaces := flags.String("namespaces", "", "namespaces to work in, separated by commas; empty: all")
	elect := flags.Bool("leader-elect", true, "work only while no other replica leads")
	probes := flags.String("probes", ":8081", "address of /healthz and /readyz")
	metrics := flags.String("metrics", ":8080", "address of /metrics")
	lease := flags.String("lease-namespace", "", "namespace of the lease by which one leads; empty: the pod's own")
	retire := flags.Bool("retire", false, "give stable versions all traffic, remove the finalizers of all Canaries, and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(log, nil)))
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, gatewayv1.Install, v1alpha1.AddToScheme} {
		if err := add(known); err != nil {
			return fmt.Errorf("add kinds: %w", err)
		}
	}
	options := ctrl.Options{
		Scheme: known, HealthProbeBindAddress: *probes, Metrics: server.Options{BindAddress: *metrics},
		LeaderElection: *elect, LeaderElectionID: "canary.waitlist.internal", LeaderElectionNamespace: *lease,
		// It ends right after, so the next leader need not wait for the lease to end.
		LeaderElectionReleaseOnCancel: true,
	}
	if *namespaces != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{}
		for name := range strings.SplitSeq(*namespaces, ",") {
			options.Cache.DefaultNamespaces[name] = cache.Config{}
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	m, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("make a manager: %w", err)
	}
	operator := controller.New(m)
	if *retire {
		ctx, end := context.WithCancel(ctx)
		defer end()
		if err := m.Add(manager.RunnableFunc(func(ctx context.Context) error {
			defer end()
			return operator.Retire(ctx)
		})); err != nil {
			return err
		}
		return m.Start(ctx)
	}
	if err := errors.Join(
		m.AddHealthzCheck("alive", healthz.Ping), m.AddReadyzCheck("alive", healthz.Ping),
		controller.RegisterMetrics(), operator.Register(m),
	); err != nil {
		return err
	}
	return m.Start(ctx)
}
