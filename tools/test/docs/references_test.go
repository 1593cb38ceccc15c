// Package docs_test checks that what the documentation and the comments refer to exists.
package docs_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

const root = "../../.."

var (
	// roots are the folders of the top level that hold files of the project.
	roots = `(?:\.ci|charts|docs|k8s|libs|proto|services|tools)`
	// A path in the tree, as prose names it. Placeholders and globs end it.
	named = regexp.MustCompile(`^` + roots + `/[\w./@-]*$`)
	// A file or a decision, as comments and scripts name them.
	file     = regexp.MustCompile(`(?:^|[\s"'(` + "`" + `])(` + roots + `/[\w/.-]+\.(?:go|md|png|proto|py|sh|sql|ts|yaml))\b`)
	decision = regexp.MustCompile(`\bADR (\d+)\b`)
	target   = regexp.MustCompile(`^(?:\w+=\S* )*make ([a-z][a-z0-9-]*)`)
	rule     = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):(?:[^=]|$)`)
	variable = regexp.MustCompile(`^([A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9])(?:=.*)?$`)
	test     = regexp.MustCompile(`^((?:Test|Fuzz|Benchmark)[A-Z]\w*)(?:/.*)?$`)
	undashed = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	// Generated files, the past, and tests whose data are a made-up tree.
	exempt = regexp.MustCompile(`^(proto/gen/|CHANGELOG\.md$|charts/waitlist/tests/|tools/test/run/reach_test\.go$)|/testdata/|\.sum$`)
)

// tree is what git tracks.
type tree struct {
	files   map[string][]byte
	folders map[string]bool
	targets map[string]bool
	adrs    map[string]bool
	// words is every file but the prose, in which variables and tests are looked up.
	words map[string]bool
}

func read(t *testing.T) tree {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	tr := tree{
		files: map[string][]byte{}, folders: map[string]bool{}, targets: map[string]bool{}, adrs: map[string]bool{},
		words: map[string]bool{},
	}
	word := regexp.MustCompile(`\w+`)
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		tr.files[name] = content
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			tr.folders[dir] = true
		}
		if path.Ext(name) != ".md" && !own(name) {
			for _, w := range word.FindAll(content, -1) {
				tr.words[string(w)] = true
			}
		}
	}
	for _, m := range rule.FindAllSubmatch(tr.files["Makefile"], -1) {
		tr.targets[string(m[1])] = true
	}
	adrs, err := fs.Glob(os.DirFS(root), "docs/adr/[0-9]*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range adrs {
		tr.adrs[strings.TrimLeft(path.Base(name)[:4], "0")] = true
	}
	return tr
}

// own says whether a file is one of this package, whose made-up names must not count.
func own(name string) bool { return path.Dir(name) == "tools/test/docs" }

func (tr tree) has(name string) bool {
	name = strings.TrimSuffix(name, "/")
	return tr.files[name] != nil || tr.folders[name]
}

// anchors returns the fragments of a document's headings, as forges make them.
func anchors(content []byte) map[string]bool {
	found := map[string]bool{}
	_ = ast.Walk(parse(content), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if h, ok := n.(*ast.Heading); ok && entering {
			slug := strings.ReplaceAll(undashed.ReplaceAllString(strings.ToLower(plain(h, content)), ""), " ", "-")
			for i := 1; found[slug]; i++ {
				slug = fmt.Sprintf("%s-%d", strings.TrimSuffix(slug, fmt.Sprintf("-%d", i-1)), i)
			}
			found[slug] = true
		}
		return ast.WalkContinue, nil
	})
	return found
}

func parse(content []byte) ast.Node {
	return goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(content))
}

// plain returns a node's text without its marks.
func plain(n ast.Node, content []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Value(content))
			if t.SoftLineBreak() {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// dangling returns what the document name links to or names in backquotes and does not exist.
func (tr tree) dangling(name string, content []byte) []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, name+": "+fmt.Sprintf(format, args...)) }
	_ = ast.Walk(parse(content), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Link:
			tr.link(name, string(n.Destination), fault)
		case *ast.Image:
			tr.link(name, string(n.Destination), fault)
		case *ast.CodeSpan:
			tr.code(plain(n, content), fault)
		}
		return ast.WalkContinue, nil
	})
	return faults
}

func (tr tree) link(from, to string, fault func(string, ...any)) {
	u, err := url.Parse(to)
	if err != nil {
		fault("the link %q: %v", to, err)
		return
	}
	if u.IsAbs() {
		return
	}
	at := from
	if u.Path != "" {
		at = path.Join(path.Dir(from), u.Path)
	}
	switch {
	case !tr.has(at):
		fault("the link to %s leads nowhere", to)
	case u.Fragment != "" && !anchors(tr.files[at])[u.Fragment]:
		fault("the link to %s names no heading", to)
	}
}

func (tr tree) code(span string, fault func(string, ...any)) {
	switch {
	case named.MatchString(span):
		if !tr.has(span) {
			fault("there is no %s", span)
		}
	case target.MatchString(span):
		if name := target.FindStringSubmatch(span)[1]; !tr.targets[name] {
			fault("there is no target %s", name)
		}
	case variable.MatchString(span):
		if name := variable.FindStringSubmatch(span)[1]; !tr.words[name] {
			fault("nothing has the name %s", name)
		}
	case test.MatchString(span):
		if name := test.FindStringSubmatch(span)[1]; !tr.words[name] {
			fault("there is no test %s", name)
		}
	}
}

// TestReferences finds links, paths, targets of make, variables, tests, documents and
// decisions that the project names but does not have.
func TestReferences(t *testing.T) {
	t.Parallel()
	tr := read(t)
	var faults []string
	for name, content := range tr.files {
		if own(name) || exempt.MatchString(name) || bytes.ContainsRune(content[:min(len(content), 8000)], 0) {
			continue
		}
		if path.Ext(name) == ".md" {
			faults = append(faults, tr.dangling(name, content)...)
		}
		for _, m := range file.FindAllSubmatch(content, -1) {
			if !tr.has(string(m[1])) {
				faults = append(faults, fmt.Sprintf("%s: there is no %s", name, m[1]))
			}
		}
		for _, m := range decision.FindAllSubmatch(content, -1) {
			if !tr.adrs[string(m[1])] {
				faults = append(faults, fmt.Sprintf("%s: there is no %s", name, m[0]))
			}
		}
	}
	slices.Sort(faults)
	for _, fault := range faults {
		t.Error(fault)
	}
}

// TestDangling sees each kind of fault.
func TestDangling(t *testing.T) {
	t.Parallel()
	tr := read(t)
	content := "# A page\n\nSee [there](../README.md), [here](#a-page), [gone](gone.md), [lost](#lost), [lost](../README.md#lost).\n" +
		"`services/gone/` `services/signup/` `make gone` `make test` `GONE_VARIABLE` `MODEL_STEPS=3` `TestGone/x` `TestMain`\n"
	tr.files["docs/page.md"] = []byte(content)
	got := tr.dangling("docs/page.md", []byte(content))
	want := []string{
		"docs/page.md: the link to gone.md leads nowhere",
		"docs/page.md: the link to #lost names no heading",
		"docs/page.md: the link to ../README.md#lost names no heading",
		"docs/page.md: there is no services/gone/",
		"docs/page.md: there is no target gone",
		"docs/page.md: nothing has the name GONE_VARIABLE",
		"docs/page.md: there is no test TestGone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q,\nwant %q", got, want)
	}
}
