// Command settingsdoc fills the tables of docs/settings.md from the Config
// structs that the programs read their environment into.
//
// A table stands between the lines <!-- settings DIR --> and <!-- end -->; DIR
// is the package that declares the struct. A row comes from one field:
//
//   - env names the variable and envDefault its default;
//   - run says what `make run` uses in place of the default;
//   - deployed says what a deployment sets, for instance "required";
//   - the field's comment is the meaning.
//
// A setting without a comment is an error. The first table, that of the standalone process,
// leaves out what a later one has: its services read it, too.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

//go:generate go run . ../../../docs/settings.md ../../..

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: settingsdoc FILE ROOT")
		os.Exit(2)
	}
	if err := update(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "settingsdoc:", err)
		os.Exit(1)
	}
}

// update writes file anew with the settings of the packages below root.
func update(file, root string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	filled, err := fill(string(old), func(dir string) ([]setting, error) { return read(filepath.Join(root, dir)) })
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(filled), 0o644)
}

// fill replaces what stands between the markers of page.
func fill(page string, read func(dir string) ([]setting, error)) (string, error) {
	var errs []error
	marked := regexp.MustCompile(`(?s)(<!-- settings (\S+) -->\n).*?(<!-- end -->)`)
	var tables [][]setting
	later := map[string]bool{}
	for i, m := range marked.FindAllStringSubmatch(page, -1) {
		settings, err := read(m[2])
		if err != nil {
			errs = append(errs, fmt.Errorf("settings of %s: %w", m[2], err))
		}
		for _, s := range settings {
			later[s.name] = later[s.name] || i > 0
		}
		tables = append(tables, settings)
	}
	if len(tables) > 0 {
		tables[0] = slices.DeleteFunc(tables[0], func(s setting) bool { return later[s.name] })
	}
	page = marked.ReplaceAllStringFunc(page, func(block string) string {
		m := marked.FindStringSubmatch(block)
		rows := table(tables[0])
		tables = tables[1:]
		return m[1] + rows + m[3]
	})
	return page, errors.Join(errs...)
}

// setting is one variable.
type setting struct{ name, value, deployed, meaning string }

// table returns settings as a Markdown table.
func table(settings []setting) string {
	var b strings.Builder
	b.WriteString("| Variable | Default | Deployed | Meaning |\n|---|---|---|---|\n")
	for _, s := range settings {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.name, s.value, s.deployed, s.meaning)
	}
	return b.String()
}

// read returns the settings that the struct Config of the package in dir has of
// its own, in their order. Embedded structs have a table of their own.
func read(dir string) ([]setting, error) {
	files := token.NewFileSet()
	var settings []setting
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && path != dir {
			return errors.Join(err, fs.SkipDir)
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "Config" {
				return true
			}
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				return false
			}
			for _, field := range body.Fields.List {
				s, ok := parse(field)
				if !ok {
					continue
				}
				if s.meaning == "" {
					err = errors.Join(err, fmt.Errorf("%s has no comment", s.name))
				}
				settings = append(settings, s)
			}
			return false
		})
		return err
	})
	if err == nil && len(settings) == 0 {
		err = errors.New("no struct Config with settings")
	}
	return settings, err
}

// parse reads one field. It returns false if no variable sets the field.
func parse(field *ast.Field) (setting, bool) {
	if field.Tag == nil {
		return setting{}, false
	}
	tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`"))
	name, _, _ := strings.Cut(tag.Get("env"), ",")
	if name == "" || name == "-" {
		return setting{}, false
	}
	s := setting{name: name, value: tag.Get("run"), deployed: tag.Get("deployed")}
	if s.value == "" {
		s.value = "–"
		if def := tag.Get("envDefault"); def != "" {
			s.value = "`" + def + "`"
		}
	}
	s.meaning = strings.ReplaceAll(strings.Join(strings.Fields(field.Doc.Text()), " "), "|", `\|`)
	return s, true
}
