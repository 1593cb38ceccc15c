package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// modules is the prefix of the import paths of the workspace's modules.
const modules = "waitlist.internal/"

// goPackage is what reached needs to know of a package, as `go list -json`
// prints it.
type goPackage struct {
	ImportPath, Dir                             string
	Module                                      struct{ Dir string }
	Imports, TestImports, XTestImports          []string
	GoFiles, TestGoFiles, XTestGoFiles          []string
	EmbedFiles, TestEmbedFiles, XTestEmbedFiles []string

	// names and testNames are the elements of the paths that string literals in
	// the package's code and tests spell. programs and testPrograms are the
	// literals that begin like an import path of the workspace.
	names, testNames       map[string]bool
	programs, testPrograms []string
}

// reachedSince lists the packages among those that patterns match which the
// change since revision reaches.
func reachedSince(ctx context.Context, revision string, patterns []string) ([]string, error) {
	top, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	root := strings.TrimSuffix(string(top), "\n")
	changed, err := changedSince(ctx, root, revision)
	if err != nil || len(changed) == 0 {
		return nil, err
	}
	packages, err := listPackages(ctx, root, "work")
	if err != nil {
		return nil, err
	}
	chosen, err := output(ctx, root, "go", append([]string{"list"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	among := strings.Fields(string(chosen))
	return slices.DeleteFunc(reached(packages, root, changed), func(path string) bool { return !slices.Contains(among, path) }), nil
}

// changedSince lists the files that differ between the working tree and its last
// common commit with revision, as paths below root. Untracked files count.
func changedSince(ctx context.Context, root, revision string) ([]string, error) {
	var files []string
	for _, args := range [][]string{
		// A rename is two files: one that goes and one that comes.
		{"diff", "--name-only", "--no-renames", "--merge-base", "-z", revision, "--"},
		{"ls-files", "--others", "--exclude-standard", "-z"},
	} {
		out, err := output(ctx, root, "git", args...)
		if err != nil {
			return nil, err
		}
		for name := range bytes.SplitSeq(out, []byte{0}) {
			if len(name) > 0 {
				files = append(files, string(name))
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// listPackages describes the packages that patterns match, string literals
// included.
func listPackages(ctx context.Context, root string, patterns ...string) ([]*goPackage, error) {
	out, err := output(ctx, root, "go", append([]string{"list", "-json"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var packages []*goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(goPackage)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list: %w", err)
		}
		if err := p.readLiterals(); err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}

func output(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", program, args[0], err)
	}
	return out, nil
}

func (p *goPackage) readLiterals() error {
	p.names, p.testNames = map[string]bool{}, map[string]bool{}
	for _, file := range p.GoFiles {
		if err := p.readFile(file, p.names, &p.programs); err != nil {
			return err
		}
	}
	for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		if err := p.readFile(file, p.testNames, &p.testPrograms); err != nil {
			return err
		}
	}
	return nil
}

func (p *goPackage) readFile(name string, names map[string]bool, programs *[]string) error {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if _, ok := n.(*ast.ImportSpec); ok {
			return false
		}
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil || strings.Contains(text, "://") {
			return true
		}
		// Tracers and meters have the name of their own package.
		if strings.HasPrefix(text, modules) && text != p.ImportPath {
			*programs = append(*programs, text)
		}
		for element := range strings.SplitSeq(text, "/") {
			names[element] = true
		}
		return true
	})
	return nil
}

// reached lists the packages with tests whose outcome the changed files, paths
// below root, can alter. It follows imports, embedded files and string literals:
// tests start programs by their import path and read charts and documents. A
// file of unknown use reaches every package.
func reached(packages []*goPackage, root string, changed []string) []string {
	g := &graph{root: root, packages: packages, byPath: map[string]*goPackage{}, code: map[*goPackage]bool{}, tests: map[*goPackage]bool{}}
	for _, p := range packages {
		g.byPath[p.ImportPath] = p
	}
	for _, file := range changed {
		g.add(file)
	}
	var out []string
	for _, p := range packages {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && (g.tests[p] || g.sees(p)) {
			out = append(out, p.ImportPath)
		}
	}
	slices.Sort(out)
	return out
}

// graph is the workspace and what of it has changed.
type graph struct {
	root     string
	packages []*goPackage
	byPath   map[string]*goPackage
	// code are packages whose change importers can see, tests those of which
	// only tests have changed.
	code, tests map[*goPackage]bool
}

// add records a changed file.
func (g *graph) add(file string) {
	dir, base := path.Dir(file), path.Base(file)
	var owner *goPackage // in the innermost folder above file
	found := false
	for _, p := range g.packages {
		folder, module := g.below(p.Dir), g.below(p.Module.Dir)
		switch inside, ok := strings.CutPrefix(file, folder+"/"); {
		case dir == module && (base == "go.mod" || base == "go.sum"):
			g.code[p], found = true, true
		case ok && (slices.Contains(p.TestEmbedFiles, inside) || slices.Contains(p.XTestEmbedFiles, inside)),
			dir == folder && strings.HasSuffix(base, "_test.go"):
			g.tests[p], found = true, true
		case ok && slices.Contains(p.EmbedFiles, inside):
			g.code[p], found = true, true
		case ok && (owner == nil || len(p.Dir) > len(owner.Dir)):
			owner = p
		}
	}
	prose := slices.Contains([]string{".md", ".png", ".svg"}, path.Ext(base)) && !strings.Contains(file, "/testdata/")
	if owner != nil && !found && !prose {
		g.code[owner], found = true, true
	}
	if found {
		return
	}
	// Prose and the folders beside the modules are known by name.
	first, _, _ := strings.Cut(file, "/")
	if g.beside(file) || prose {
		for _, p := range g.packages {
			switch {
			case p.names[first] || p.names[base]:
				g.code[p], found = true, true
			case p.testNames[first] || p.testNames[base]:
				g.tests[p], found = true, true
			}
		}
	}
	if found || prose {
		return
	}
	for _, p := range g.packages {
		g.code[p] = true
	}
}

// beside reports whether a file that is no code lies in a folder without
// modules, like k8s/postgres and unlike k8s/canary.
func (g *graph) beside(file string) bool {
	dir, base := path.Dir(file), path.Base(file)
	if dir == "." || path.Ext(base) == ".go" || base == "go.mod" || base == "go.sum" {
		return false
	}
	return !slices.ContainsFunc(g.packages, func(p *goPackage) bool {
		return strings.HasPrefix(file, g.below(p.Module.Dir)+"/") || strings.HasPrefix(g.below(p.Dir), dir+"/")
	})
}

// below is dir as a path below root.
func (g *graph) below(dir string) string {
	return strings.TrimPrefix(filepath.ToSlash(strings.TrimPrefix(dir, g.root)), "/")
}

// sees reports whether the tests of p run code that has changed.
func (g *graph) sees(p *goPackage) bool {
	seen := map[*goPackage]bool{}
	var changed func(p *goPackage) bool
	follow := func(imports, programs []string) bool {
		for _, path := range imports {
			if q := g.byPath[path]; q != nil && changed(q) {
				return true
			}
		}
		for _, prefix := range programs {
			for _, q := range g.packages {
				if strings.HasPrefix(q.ImportPath, prefix) && changed(q) {
					return true
				}
			}
		}
		return false
	}
	changed = func(p *goPackage) bool {
		if seen[p] {
			return false
		}
		seen[p] = true
		return g.code[p] || follow(p.Imports, p.programs)
	}
	return changed(p) || follow(slices.Concat(p.TestImports, p.XTestImports), slices.Concat(p.testPrograms, p.testFolders()))
}

// testFolders returns the import paths of the workspace's folders that the tests name:
// some tests read the source of other folders.
func (p *goPackage) testFolders() []string {
	var out []string
	for _, folder := range []string{"libs", "proto", "services"} {
		if p.testNames[folder] {
			out = append(out, modules+folder+"/")
		}
	}
	return out
}
