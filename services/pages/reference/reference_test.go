package reference

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"waitlist.internal/proto/openapi"
)

func parse(t *testing.T) *Reference {
	t.Helper()
	r, err := Parse(openapi.Document(), "https://example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestComplete compares the reference with the document.
func TestComplete(t *testing.T) {
	t.Parallel()
	var document struct {
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]any }
	}
	if err := yaml.Unmarshal(openapi.Document(), &document); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for path, methods := range document.Paths {
		for method := range methods {
			if method != "parameters" {
				want[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	r := parse(t)
	schemas := map[string]bool{}
	for _, s := range r.Schemas {
		schemas[s.Name] = true
	}
	if len(schemas) != len(document.Components.Schemas) {
		t.Errorf("%d schemas, want %d", len(schemas), len(document.Components.Schemas))
	}
	var refs func(f *Field)
	refs = func(f *Field) {
		if f.Ref != "" && !schemas[f.Ref] {
			t.Errorf("a field refers to %s", f.Ref)
		}
		for _, child := range f.Fields {
			refs(child)
		}
	}
	for _, s := range r.Schemas {
		refs(s)
	}
	for _, g := range r.Groups {
		if len(g.Operations) == 0 {
			t.Errorf("the tag %s has no operation", g.Name)
		}
		for _, o := range g.Operations {
			if !want[o.Method+" "+o.Path] {
				t.Errorf("unknown or twice: %s %s", o.Method, o.Path)
			}
			delete(want, o.Method+" "+o.Path)
			if len(o.Answers) == 0 || len(o.Refusals) == 0 || o.ID == "" || o.Summary == "" || strings.Contains(o.Curl, "{waitlist_id}") {
				t.Errorf("%s is not complete: %+v", o.ID, o)
			}
			for _, a := range slices.Concat(o.Answers, o.Refusals) {
				if a.Status >= "4" && len(a.Codes) == 0 {
					t.Errorf("%s %s has no error code", o.ID, a.Status)
				}
				if a.Field != nil {
					refs(a.Field)
				}
			}
			if o.Body != nil {
				refs(o.Body.Field)
				body := map[string]any{}
				if err := json.Unmarshal([]byte(o.Body.Example), &body); err != nil {
					t.Errorf("%s: the example %s is no object: %v", o.ID, o.Body.Example, err)
				}
			}
		}
	}
	for missing := range want {
		t.Errorf("%s is missing", missing)
	}
}

// TestCodes checks that each code says what to do and where it comes from.
func TestCodes(t *testing.T) {
	t.Parallel()
	r := parse(t)
	if len(r.Codes) < 17 {
		t.Errorf("%d codes", len(r.Codes))
	}
	for _, c := range r.Codes {
		if len(c.Description) < 40 || len(c.Operations) == 0 || len(c.Statuses) == 0 {
			t.Errorf("%s: %q, %v, %d operations", c.Name, c.Description, c.Statuses, len(c.Operations))
		}
		if c.Name == "DOMAIN_RESTRICTED" && !slices.Equal(c.Statuses, []string{"400", "403"}) {
			t.Errorf("%s comes with %v", c.Name, c.Statuses)
		}
	}
}

// TestDocument checks that both forms of the document say the same, and the address.
func TestDocument(t *testing.T) {
	t.Parallel()
	r := parse(t)
	var first, second, original map[string]any
	if err := yaml.Unmarshal(r.YAML, &first); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.JSON, &second); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(openapi.Document(), &original); err != nil {
		t.Fatal(err)
	}
	if got := second["servers"]; !reflect.DeepEqual(got, []any{map[string]any{"url": "https://example.com/v1"}}) {
		t.Errorf("servers %v", got)
	}
	original["servers"] = second["servers"]
	for name, got := range map[string]any{"YAML": first, "JSON": second} {
		a, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(original)
		if err != nil {
			t.Fatal(err)
		}
		if string(a) != string(b) {
			t.Errorf("the %s differs from the document", name)
		}
	}
}

// TestRefuses hands over documents that a page could not show.
func TestRefuses(t *testing.T) {
	t.Parallel()
	const whole = `
servers: [{url: /}]
tags: [{name: a}]
paths: {/x: {get: {operationId: x, tags: [a], responses: {'200': {$ref: '#/components/responses/Ok'}}}}}
components:
  responses: {Ok: {description: Fine, content: {application/json: {schema: {type: object}}}}}
`
	if _, err := Parse([]byte(whole), "/v1"); err != nil {
		t.Fatal(err)
	}
	loop := "{type: object, properties: {a: &a {type: array, items: *a}}}"
	for name, document := range map[string]string{
		"empty":         "",
		"no YAML":       "\t",
		"no servers":    strings.Replace(whole, "servers: [{url: /}]", "", 1),
		"unknown tag":   strings.Replace(whole, "tags: [a]", "tags: [b]", 1),
		"lost $ref":     strings.Replace(whole, "responses/Ok", "responses/None", 1),
		"unknown code":  strings.Replace(whole, "'200'", "'400'", 1) + "  schemas: {}",
		"endless alias": strings.Replace(whole, "schema: {type: object}", "schema: "+loop, 1),
	} {
		if name == "unknown code" {
			document = strings.Replace(document, "description: Fine", "description: Fine, x-waitlist-codes: [WHAT]", 1)
		}
		if _, err := Parse([]byte(document), "/v1"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
