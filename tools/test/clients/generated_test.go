//go:build generators

package clients_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// generator is the openapi-generator that is used, from Maven.
const generator = "org.openapitools:openapi-generator-cli:7.25.0"

// TestGenerated makes clients from the OpenAPI document with the generators that
// are used most, and drives each through the programs in testdata/generated. It
// needs Java, Maven, npm and Python with venv, and fetches the generators.
func TestGenerated(t *testing.T) {
	t.Parallel()
	s := start(t, false)
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	document := filepath.Join(root, "proto/openapi/openapi.yaml")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/generated")); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, sub, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = filepath.Join(dir, sub)
		cmd.Env = append(os.Environ(), "WAITLIST_URL="+s.url, "GOWORK=off", "GOFLAGS=-mod=mod", "PYTHONPATH=client")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	jars := filepath.Join(root, ".data/generators")
	run(t, ".", "mvn", "-q", "-B", "dependency:copy", "-Dartifact="+generator, "-DoutputDirectory="+jars)
	jar := filepath.Join(jars, strings.ReplaceAll(strings.TrimPrefix(generator, "org.openapitools:"), ":", "-")+".jar")
	generate := func(t *testing.T, language string, args ...string) {
		t.Helper()
		run(t, language, "java", append([]string{
			"-jar", jar, "generate", "-g", language, "-i", document, "-o", "client",
			"--global-property=apiTests=false,modelTests=false,apiDocs=false,modelDocs=false",
		}, args...)...)
	}
	run(t, ".", "npm", "ci", "--silent")

	t.Run("redocly", func(t *testing.T) { // finds redocly.yaml
		run(t, ".", "npx", "redocly", "lint", document)
	})
	// drive tests one language, and that its program called all that a client must be able to.
	drive := func(language string, test func(t *testing.T)) {
		t.Run(language, func(t *testing.T) {
			before := maps.Clone(s.seen)
			test(t)
			for _, operation := range []string{
				"register", "createWaitlist", "listWaitlists", "getWaitlistConfig", "createSignup", "getSignupStatus", "listSignups",
				"importSignups", "exportSignups",
			} {
				if s.seen[operation] == before[operation] {
					t.Errorf("%s was not called", operation)
				}
			}
		})
	}
	drive("go", func(t *testing.T) {
		generate(t, "go")
		if err := os.Remove(filepath.Join(dir, "go/client/go.mod")); err != nil {
			t.Fatal(err)
		}
		run(t, "go", "go", "run", ".")
	})
	drive("oapi-codegen", func(t *testing.T) {
		if err := os.Mkdir(filepath.Join(dir, "oapi-codegen/client"), 0o750); err != nil {
			t.Fatal(err)
		}
		run(t, "oapi-codegen", "go", "-C", filepath.Join(root, "tools/buildtools/openapi"), "tool", "oapi-codegen",
			"-generate", "types,client", "-package", "client", "-o", filepath.Join(dir, "oapi-codegen/client/client.go"), document)
		run(t, "oapi-codegen", "go", "run", ".")
	})
	drive("typescript-fetch", func(t *testing.T) {
		generate(t, "typescript-fetch", "--additional-properties=importFileExtension=.js")
		run(t, "typescript-fetch", "npx", "tsc")
		run(t, "typescript-fetch", "node", "dist/main.js")
	})
	drive("python", func(t *testing.T) {
		generate(t, "python")
		run(t, "python", "python3", "-m", "venv", "venv")
		run(t, "python", "venv/bin/pip", "install", "--quiet", "--only-binary", ":all:", "-r", "requirements.txt")
		run(t, "python", "venv/bin/python", "main.py")
	})
	drive("java", func(t *testing.T) {
		generate(t, "java")
		if err := os.Rename(filepath.Join(dir, "java/Main.java"), filepath.Join(dir, "java/client/src/main/java/Main.java")); err != nil {
			t.Fatal(err)
		}
		run(t, "java/client", "mvn", "-q", "-B", "-Dmaven.test.skip", "-Dmaven.javadoc.skip", "-Dmaven.source.skip", "package")
		run(t, "java/client", "java", "-cp", "target/classes:target/lib/*", "Main")
	})
}
