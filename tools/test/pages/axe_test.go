package pages_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// axe-core (MPL-2.0) is fetched when the tests run and never shipped.
const (
	axeVersion   = "4.14.1"
	axeIntegrity = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)

var axeOnce sync.Mutex // one download for all tests

// axeSource returns the source of axe, from .data or with npm.
func axeSource(t *testing.T) string {
	t.Helper()
	axeOnce.Lock()
	defer axeOnce.Unlock()
	dir, err := filepath.Abs("../../../.data")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "axe-core-"+axeVersion+".tgz")
	packed, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		npm := exec.CommandContext(t.Context(), "npm", "pack", "--silent", "axe-core@"+axeVersion)
		npm.Dir = dir
		if out, err := npm.CombinedOutput(); err != nil {
			t.Fatalf("fetch axe with npm: %v\n%s", err, out)
		}
		packed, err = os.ReadFile(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha512.Sum512(packed); base64.StdEncoding.EncodeToString(sum[:]) != axeIntegrity {
		t.Fatalf("%s is not what was pinned", path)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(unzipped); ; {
		entry, err := archive.Next()
		if err != nil {
			t.Fatal(err)
		}
		if entry.Name == "package/axe.min.js" {
			source, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			return string(source)
		}
	}
}
