// Command secrets prints the Kubernetes Secrets that charts/waitlist expects, with new keys:
//
//	go run ./tools/cmd/secrets -keys keys -from secrets.env -namespace waitlist | kubectl apply -f -
//
// The -from file adds secrets that only the operator knows, one per line: KEY=value
// for all services, service.KEY=value for one. Empty lines and lines that start with
// # are ignored. The -keys folder stores the keys, one per file, so that the next run
// prints the same ones; without it the keys exist only in the output.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"waitlist.internal/tools/internal/standalone"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// secret is a Kubernetes Secret.
type secret struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   metadata          `yaml:"metadata"`
	StringData map[string]string `yaml:"stringData"`
}

type metadata struct {
	Name      string            `yaml:"name"`
	Namespace string            `yaml:"namespace,omitempty"`
	Labels    map[string]string `yaml:"labels"`
}

// holders returns the services that receive each private key; no other service gets
// it. Keys that are not listed are public and go to all services.
func holders() map[string][]string {
	return map[string][]string{
		"TOKEN_KEYS":         {"messaging", "signup"},
		"ACCOUNT_TOKEN_KEYS": {"account", "messaging"},
		"SEAL_KEYS":          {"messaging", "signup"},
		"JWT_KEYS":           {"account"},
		"ADDRESS_KEY":        {"account"},
	}
}

func run(args []string, out, errOut io.Writer) error {
	flags := flag.NewFlagSet("secrets", flag.ContinueOnError)
	flags.SetOutput(errOut)
	keys := flags.String("keys", "", "folder that stores the keys; empty: do not store them")
	from := flags.String("from", "", "file with more secrets, one KEY=value or service.KEY=value per line")
	namespace := flags.String("namespace", "", "namespace of the Secrets; empty: the one that kubectl uses")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir := *keys
	if dir == "" {
		temporary, err := os.MkdirTemp("", "keys-")
		if err != nil {
			return fmt.Errorf("create a folder for the keys: %w", err)
		}
		defer func() { _ = os.RemoveAll(temporary) }()
		dir = temporary
	}
	data, err := generate(dir)
	if err != nil {
		return err
	}
	if *from != "" {
		lines, err := os.ReadFile(*from)
		if err != nil {
			return fmt.Errorf("read the -from file: %w", err)
		}
		if err := add(data, lines); err != nil {
			return fmt.Errorf("%s: %w", *from, err)
		}
	}
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	for _, name := range append([]string{""}, standalone.ServiceNames()...) {
		if err := encoder.Encode(secret{
			APIVersion: "v1", Kind: "Secret",
			Metadata: metadata{
				Name: strings.TrimSuffix("waitlist-"+name, "-"), Namespace: *namespace,
				Labels: map[string]string{"app.kubernetes.io/part-of": "waitlist"},
			},
			StringData: data[name],
		}); err != nil {
			return fmt.Errorf("print the Secret: %w", err)
		}
	}
	return encoder.Close()
}

// generate returns the data of each service's Secret by service name. The key ""
// holds the Secret that all services share.
func generate(dir string) (map[string]map[string]string, error) {
	shared, seeds, err := standalone.Keys(dir)
	if err != nil {
		return nil, err
	}
	data := map[string]map[string]string{"": {}}
	for _, name := range standalone.ServiceNames() {
		data[name] = map[string]string{"SERVICE_KEY": seeds[name]}
	}
	for variable, value := range shared {
		to := holders()[variable]
		if to == nil {
			to = []string{""}
		}
		for _, name := range to {
			data[name][variable] = value
		}
	}
	return data, nil
}

// add adds the lines of the -from file to data. Errors name the line number and never
// its content, which is secret.
func add(data map[string]map[string]string, lines []byte) error {
	valid := regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	scanner := bufio.NewScanner(bytes.NewReader(lines))
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		variable, value, ok := strings.Cut(line, "=")
		service, name, own := strings.Cut(variable, ".")
		if !own {
			service, name = "", variable
		}
		if !ok || !valid.MatchString(name) || (own && !slices.Contains(standalone.ServiceNames(), service)) {
			return fmt.Errorf("line %d: write KEY=value or <service>.KEY=value", n)
		}
		data[service][name] = value
	}
	return scanner.Err()
}
