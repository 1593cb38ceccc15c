package join

import (
	"archive/zip"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write zones.txt anew")

// TestZones: the list is that of this Go's time zone database.
func TestZones(t *testing.T) {
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	database, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib/time/zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = database.Close() }()
	var names []string
	for _, f := range database.File {
		if !f.FileInfo().IsDir() {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	if *update {
		if err := os.WriteFile("zones.txt", []byte(strings.Join(names, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if !slices.Equal(names, zones) {
		t.Error("Go has a newer list of time zones: run TestZones with -update")
	}
}

func TestKnownZone(t *testing.T) {
	for name, want := range map[string]bool{
		"UTC": true, "Europe/Berlin": true, "Etc/GMT+5": true, "America/Argentina/Buenos_Aires": true,
		"Asia/Calcutta": true, "Europe/Kiev": true, "US/Pacific": true, // former names, which browsers send

		"./UTC": false, "Europe//Berlin": false, "Europe/./Berlin": false, "Europe/Berlin/": false, "Europe": false, "europe/berlin": false,
		"Local": false, "posix/UTC": false, "/UTC": false, "Etc/../UTC": false, "tzdata.zi": false, "": false, "UTC\n": false,
	} {
		if got := knownZone(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
