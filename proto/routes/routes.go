// Package routes names the service behind each path prefix of the public
// interface. routes.yaml is the one place where the prefixes stand.
package routes

import (
	_ "embed"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

//go:embed routes.yaml
var file []byte

// Prefix is one line of the table: Service answers Prefix itself and every
// path below it, except that the prefix / does not cover /v1.
type Prefix struct {
	Prefix  string `yaml:"prefix"`
	Service string `yaml:"service"`
}

// Table returns the prefixes in the order of the file.
func Table() ([]Prefix, error) {
	var doc struct {
		Prefixes []Prefix `yaml:"prefixes"`
	}
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, fmt.Errorf("parse routes.yaml: %w", err)
	}
	return doc.Prefixes, nil
}

// Service returns the service that answers path, or "" where none does.
func Service(table []Prefix, path string) string {
	for _, p := range table {
		if covers(p.Prefix, path) && (p.Prefix != "/" || !covers("/v1", path)) {
			return p.Service
		}
	}
	return ""
}

func covers(prefix, path string) bool {
	return path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/")
}
