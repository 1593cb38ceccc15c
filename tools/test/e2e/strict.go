package e2e

import (
	"fmt"
	"maps"
	"strings"

	"gopkg.in/yaml.v3"

	"waitlist.internal/proto/openapi"
)

// StrictDocument returns the OpenAPI document with every rule that the suite keeps.
// The document itself is what clients are generated from, and leaves out what their
// generators take badly or what a client must not rely on. Here
//
//   - what stands in an x-strict is merged into its place; null removes,
//   - objects in answers have no fields but those named,
//   - an error has one of its answer's x-waitlist-codes.
func StrictDocument() ([]byte, error) {
	var doc map[string]any
	if err := yaml.Unmarshal(openapi.Document(), &doc); err != nil {
		return nil, fmt.Errorf("parse the OpenAPI document: %w", err)
	}
	s := strictness{closed: map[string]bool{}}
	mergeStrict(doc)
	components, _ := doc["components"].(map[string]any)
	s.schemas, _ = components["schemas"].(map[string]any)
	s.responses(components["responses"])
	for _, path := range members(doc["paths"]) {
		for _, operation := range members(path) {
			if o, ok := operation.(map[string]any); ok {
				s.responses(o["responses"])
			}
		}
	}
	return yaml.Marshal(doc)
}

// members returns the values of n if it is an object.
func members(n any) map[string]any {
	m, _ := n.(map[string]any)
	return m
}

// mergeStrict merges every x-strict below n into the object that has it.
func mergeStrict(n any) {
	switch n := n.(type) {
	case map[string]any:
		if rules, ok := n["x-strict"]; ok {
			delete(n, "x-strict")
			merge(n, members(rules))
		}
		for _, child := range n {
			mergeStrict(child)
		}
	case []any:
		for _, child := range n {
			mergeStrict(child)
		}
	}
}

func merge(into, rules map[string]any) {
	for key, rule := range rules {
		inner, ok := into[key].(map[string]any)
		switch {
		case rule == nil:
			delete(into, key)
		case ok && members(rule) != nil:
			merge(inner, members(rule))
		default:
			into[key] = rule
		}
	}
}

type strictness struct {
	schemas map[string]any
	// closed has the named schemas that are done.
	closed map[string]bool
}

func (s *strictness) responses(n any) {
	for _, response := range members(n) {
		r := members(response)
		codes := r["x-waitlist-codes"]
		for _, media := range members(r["content"]) {
			m := members(media)
			s.closeObjects(m["schema"])
			if codes != nil {
				m["schema"] = map[string]any{"allOf": []any{
					m["schema"], map[string]any{"properties": map[string]any{"error_code": map[string]any{"enum": codes}}},
				}}
			}
		}
	}
}

// closeObjects lets the objects of an answer have no fields but those named. It does not
// look into oneOf and its like beside properties: they judge the same object.
func (s *strictness) closeObjects(n any) {
	schema := members(n)
	if schema == nil {
		return
	}
	if ref, ok := schema["$ref"].(string); ok {
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		if !s.closed[name] {
			s.closed[name] = true
			s.closeObjects(s.schemas[name])
		}
		return
	}
	properties := members(schema["properties"])
	if properties != nil && schema["additionalProperties"] == nil {
		schema["additionalProperties"] = false
	}
	for property := range maps.Values(properties) {
		s.closeObjects(property)
	}
	s.closeObjects(schema["items"])
	s.closeObjects(schema["additionalProperties"])
	if properties == nil {
		parts, _ := schema["oneOf"].([]any)
		for _, part := range parts {
			s.closeObjects(part)
		}
	}
}
