package service_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestReleasesHaveNoFaults: the bad builds that releases are tested with need a tag that no release is built with, and can be built.
func TestReleasesHaveNoFaults(t *testing.T) {
	files := func(args ...string) []string {
		t.Helper()
		cmd := exec.Command("go", append(append([]string{"list"}, args...), "-f", `{{join .GoFiles " "}}`, ".")...)
		cmd.Env = append(os.Environ(), "GOFLAGS=")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	if in := files(); slices.Contains(in, "fault.go") || !slices.Contains(in, "nofault.go") {
		t.Errorf("a build without tags has %q", in)
	}
	if in := files("-tags", "fault"); !slices.Contains(in, "fault.go") || slices.Contains(in, "nofault.go") {
		t.Errorf("a bad build has %q", in)
	}
	if out, err := exec.Command("go", "build", "-tags", "fault", ".").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile("../../.ko.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, flags, found := strings.Cut(string(raw), "defaultFlags: ")
	flags, _, _ = strings.Cut(flags, "\n")
	if !found || strings.Contains(flags, "tags") {
		t.Errorf("releases are built with %q", flags)
	}
}
