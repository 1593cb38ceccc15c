// Command canaryctl shows and steers canaries, and reports the outcome of an image to a pipeline:
//
//	canaryctl status [-watch] [name]
//	canaryctl wait -image sha256:… [-timeout 1h] [-report text|json|junit] name
//	canaryctl promote|abort|pause|resume name
//
// Exit codes of wait: 0, the image serves all requests; 1, it failed and was taken back; 2, wrong use or no access; 3, no verdict in time;
// 4, another image took its place before its verdict; 5, it failed and is frozen where it was. The other commands end with 0 or 2.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"waitlist.internal/k8s/canary/api/v1alpha1"
	"waitlist.internal/k8s/canary/machine"
)

const poll = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], connect, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// connect returns a client by KUBECONFIG, ~/.kube/config or the pod's account, and the default namespace.
func connect() (client.Client, string, error) {
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil)
	namespace, _, err := config.Namespace()
	if err != nil {
		return nil, "", err
	}
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, "", err
	}
	known := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(known); err != nil {
		return nil, "", err
	}
	c, err := client.New(rest, client.Options{Scheme: known})
	return c, namespace, err
}

// command is one call.
type command struct {
	client         client.Client
	namespace      string
	name           string
	image, report  string
	timeout        time.Duration
	watch          bool
	stdout, stderr io.Writer
}

// run returns the exit code.
func run(ctx context.Context, args []string, connect func() (client.Client, string, error), stdout, stderr io.Writer) int {
	c := command{stdout: stdout, stderr: stderr}
	if len(args) == 0 {
		args = []string{""}
	}
	verb := args[0]
	flags := flag.NewFlagSet("canaryctl "+verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.namespace, "n", "", "namespace; empty: that of the kubeconfig")
	switch verb {
	case "status":
		flags.BoolVar(&c.watch, "watch", false, "keep running and print what changes")
	case "wait":
		flags.StringVar(&c.image, "image", "", "digest of the image, sha256:…, or the whole reference")
		flags.DurationVar(&c.timeout, "timeout", time.Hour, "how long to wait for the verdict")
		flags.StringVar(&c.report, "report", "text", "text, json or junit")
	case "promote", "abort", "pause", "resume":
	default:
		fmt.Fprintln(stderr, "Use canaryctl status, wait, promote, abort, pause or resume; -h after one of them explains it.")
		return wrongUse
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return promoted
	} else if err != nil {
		return wrongUse
	}
	c.name = flags.Arg(0)
	if flags.NArg() > 1 || c.name == "" && verb != "status" {
		fmt.Fprintln(stderr, "Name one Canary, after the flags.")
		return wrongUse
	}
	if verb == "wait" && (c.image == "" || reports[c.report] == nil) {
		fmt.Fprintln(stderr, "Name the image with -image, and text, json or junit with -report.")
		return wrongUse
	}
	api, namespace, err := connect()
	if err != nil {
		fmt.Fprintln(stderr, "Cannot connect to the cluster:", err)
		return wrongUse
	}
	c.client = api
	if c.namespace == "" {
		c.namespace = namespace
	}
	switch verb {
	case "status":
		err = c.status(ctx)
	case "wait":
		return c.wait(ctx)
	default:
		err = c.order(ctx, verb)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return wrongUse
	}
	return promoted
}

func (c *command) get(ctx context.Context) (*v1alpha1.Canary, error) {
	out := new(v1alpha1.Canary)
	if err := c.client.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: c.name}, out); err != nil {
		return nil, fmt.Errorf("read the Canary %s: %w", c.name, err)
	}
	return out, nil
}

func (c *command) list(ctx context.Context) ([]v1alpha1.Canary, error) {
	if c.name != "" {
		one, err := c.get(ctx)
		if err != nil {
			return nil, err
		}
		return []v1alpha1.Canary{*one}, nil
	}
	var all v1alpha1.CanaryList
	if err := c.client.List(ctx, &all, client.InNamespace(c.namespace)); err != nil {
		return nil, fmt.Errorf("list Canaries: %w", err)
	}
	return all.Items, nil
}

// status prints one Canary or all of the namespace. If it watches, it prints them again after each change.
func (c *command) status(ctx context.Context) error {
	last := ""
	for {
		all, err := c.list(ctx)
		if err != nil {
			return err
		}
		if text := table(all); text != last {
			fmt.Fprint(c.stdout, text)
			last = text
		}
		if !c.watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(poll):
		}
	}
}

func table(all []v1alpha1.Canary) string {
	var b buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tPHASE\tSTEP\tWEIGHT\tREQUESTS\tMESSAGE")
	for _, one := range all {
		s := one.Status
		requests, message := int64(0), ""
		if s.Verdict != nil {
			requests = s.Verdict.Candidate
		}
		if r := meta.FindStatusCondition(s.Conditions, v1alpha1.Ready); r != nil {
			message = r.Message
		}
		fmt.Fprintf(w, "%s\t%s\t%d/%d\t%d %%\t%d\t%s\n", one.Name, s.Phase, s.Step, len(one.Spec.Steps), s.Weight, requests, message)
	}
	_ = w.Flush() // into memory
	return b.String()
}

// order writes a person's command into the Canary.
func (c *command) order(ctx context.Context, verb string) error {
	now, err := c.get(ctx)
	if err != nil {
		return err
	}
	next := now.DeepCopy()
	switch verb {
	case "pause", "resume":
		next.Spec.Paused = verb == "pause"
	default:
		if now.Status.Candidate == nil || now.Status.Started == nil {
			return fmt.Errorf("the Canary %s has no candidate to %s", c.name, verb)
		}
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[v1alpha1.CommandAnnotation] = machine.Command(verb, &now.Status)
	}
	// The candidate must still be the one that was read.
	if err := c.client.Patch(ctx, next, client.MergeFromWithOptions(now, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("%s the Canary %s: %w", verb, c.name, err)
	}
	fmt.Fprintf(c.stdout, "%s: %s\n", c.name, verb)
	return nil
}
