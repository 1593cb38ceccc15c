// Package reference turns the OpenAPI document into what a page shows: operations by
// tag, schemas as nested fields, and each error code with the operations that return
// it. It knows the part of OpenAPI 3.1 that the contract uses.
package reference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"gopkg.in/yaml.v3"
)

// Reference is the contract, in the order of the document.
type Reference struct {
	Title       string
	Description template.HTML
	Groups      []*Group
	Schemas     []*Field
	Codes       []*Code
	// YAML and JSON are the document itself, with the address of this installation.
	YAML, JSON []byte
}

// Group has the operations of one tag.
type Group struct {
	Name, Description string
	Operations        []*Operation
}

// Operation is a method of a path.
type Operation struct {
	ID, Method, Path, Summary string
	Description               template.HTML
	// Credentials names what a caller may show; empty: nothing is needed.
	Credentials []string
	// Access says what is needed besides, as in "role: owner".
	Access     []string
	Parameters []*Parameter
	// Body is nil where the operation takes none.
	Body *Body
	// Answers are the successes; Refusals the errors.
	Answers, Refusals []*Answer
	// Curl is a command that calls it.
	Curl string
}

// Parameter is a value in the path, the query or a header, as In says.
type Parameter struct {
	Field
	In, Example string
}

// Body is what a request carries.
type Body struct {
	Field   *Field
	Example string
}

// Answer is what an operation may answer.
type Answer struct {
	Status, Description, Example string
	// Codes are the error codes that it may carry.
	Codes []string
	// Kind is the media type of Field; empty: there is no body.
	Kind  string
	Field *Field
}

// Code is an error code.
type Code struct {
	Name        string
	Description template.HTML
	Statuses    []string
	Operations  []*Operation
}

// Field is a schema, or a value of one.
type Field struct {
	Name string
	// Type is for people, as "array of string"; Ref is the name of the schema that has
	// the fields, if it has a name.
	Type, Ref   string
	Required    bool
	Description template.HTML
	// Notes are the bounds, as in "at most 80 characters".
	Notes  []string
	Fields []*Field
}

// Parse reads a document. base is the address at which this installation answers.
func Parse(document []byte, base string) (_ *Reference, err error) {
	var file yaml.Node
	if err := yaml.Unmarshal(document, &file); err != nil {
		return nil, fmt.Errorf("parse the OpenAPI document: %w", err)
	}
	if len(file.Content) == 0 {
		return nil, errors.New("the OpenAPI document is empty")
	}
	p := &parser{root: file.Content[0], codes: map[string]*Code{}}
	r := &Reference{
		Title:       text(get(get(p.root, "info"), "title")),
		Description: p.markdown(get(get(p.root, "info"), "description")),
	}
	for _, schema := range pairs(get(get(p.root, "components"), "schemas")) {
		f := p.field(schema.value, 0)
		f.Name = schema.key
		r.Schemas = append(r.Schemas, f)
		if schema.key == "ErrorCode" {
			for _, meaning := range pairs(get(schema.value, "x-enumDescriptions")) {
				c := &Code{Name: meaning.key, Description: p.markdown(meaning.value)}
				r.Codes, p.codes[c.Name] = append(r.Codes, c), c
			}
		}
	}
	groups := map[string]*Group{}
	for _, tag := range items(get(p.root, "tags")) {
		g := &Group{Name: text(get(tag, "name")), Description: text(get(tag, "description"))}
		r.Groups, groups[g.Name] = append(r.Groups, g), g
	}
	for _, path := range pairs(get(p.root, "paths")) {
		for _, method := range pairs(path.value) {
			if method.key == "parameters" {
				continue
			}
			o := p.operation(strings.ToUpper(method.key), path.key, path.value, method.value, base)
			g := groups[text(first(get(method.value, "tags")))]
			if g == nil {
				return nil, fmt.Errorf("%s %s has no known tag", o.Method, o.Path)
			}
			g.Operations = append(g.Operations, o)
		}
	}
	servers := get(p.root, "servers")
	if servers == nil {
		return nil, errors.New("the OpenAPI document names no servers")
	}
	if err := servers.Encode([]map[string]string{{"url": base}}); err != nil {
		return nil, fmt.Errorf("name the server: %w", err)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(p.root); err != nil {
		return nil, fmt.Errorf("write the document: %w", err)
	}
	r.YAML = b.Bytes()
	if r.JSON, err = json.Marshal(p.plain(p.root)); err != nil {
		p.fail(fmt.Errorf("write the document as JSON: %w", err))
	}
	return r, p.err
}

// parser keeps the first error, so that its methods can read the document to the end.
type parser struct {
	root  *yaml.Node
	codes map[string]*Code
	err   error
}

func (p *parser) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *parser) operation(method, path string, shared, n *yaml.Node, base string) *Operation {
	o := &Operation{
		ID: text(get(n, "operationId")), Method: method, Path: path, Summary: text(get(n, "summary")),
		Description: p.markdown(get(n, "description")),
	}
	security := get(n, "security")
	if security == nil {
		security = get(p.root, "security")
	}
	for _, s := range items(security) {
		for _, scheme := range pairs(s) {
			o.Credentials = append(o.Credentials, scheme.key)
		}
	}
	for _, a := range pairs(get(n, "x-waitlist-access")) {
		o.Access = append(o.Access, a.key+": "+p.sample(a.value))
	}
	for _, list := range []*yaml.Node{get(shared, "parameters"), get(n, "parameters")} {
		for _, item := range items(list) {
			item, _ = p.resolve(item)
			f := p.field(get(item, "schema"), 0)
			f.Name, f.Required = text(get(item, "name")), text(get(item, "required")) == "true"
			if d := get(item, "description"); d != nil {
				f.Description = p.markdown(d)
			}
			o.Parameters = append(o.Parameters, &Parameter{Field: *f, In: text(get(item, "in")), Example: text(get(item, "example"))})
		}
	}
	if body, _ := p.resolve(get(n, "requestBody")); body != nil {
		media := get(get(body, "content"), "application/json")
		o.Body = &Body{Field: p.field(get(media, "schema"), 0), Example: p.example(media)}
		o.Body.Field.Required = text(get(body, "required")) == "true"
	}
	for _, response := range pairs(get(n, "responses")) {
		p.answer(o, response.key, response.value)
	}
	o.Curl = curl(o, base)
	return o
}

func (p *parser) answer(o *Operation, status string, n *yaml.Node) {
	n, _ = p.resolve(n)
	a := &Answer{Status: status, Description: text(get(n, "description"))}
	for _, media := range pairs(get(n, "content")) {
		a.Kind = media.key
		if status < "4" {
			a.Field = p.field(get(media.value, "schema"), 0)
			if get(media.value, "examples") != nil {
				a.Example = p.example(media.value)
			}
		}
	}
	for _, code := range items(get(n, "x-waitlist-codes")) {
		a.Codes = append(a.Codes, text(code))
		c := p.codes[text(code)]
		if c == nil {
			p.fail(fmt.Errorf("%s answers with the unknown code %s", o.ID, text(code)))
			continue
		}
		if !slices.Contains(c.Statuses, status) {
			c.Statuses = append(c.Statuses, status)
			slices.Sort(c.Statuses)
		}
		if !slices.Contains(c.Operations, o) {
			c.Operations = append(c.Operations, o)
		}
	}
	if status < "4" {
		o.Answers = append(o.Answers, a)
	} else {
		o.Refusals = append(o.Refusals, a)
	}
}

// deepest bounds how far schemas without a name nest. The contract has four levels.
const deepest = 12

// field describes a schema. It refers to named schemas and does not repeat them.
func (p *parser) field(n *yaml.Node, depth int) *Field {
	f := &Field{Description: p.markdown(get(n, "description"))}
	if depth > deepest {
		p.fail(errors.New("a schema nests too deep"))
		return f
	}
	if ref := get(n, "$ref"); ref != nil {
		_, f.Ref = p.resolve(n)
		f.Type = f.Ref
		return f
	}
	f.Notes = p.notes(n)
	f.Type = strings.Join(p.types(n), " or ")
	required := map[string]bool{}
	for _, name := range items(get(n, "required")) {
		required[text(name)] = true
	}
	for _, property := range pairs(get(n, "properties")) {
		child := p.field(property.value, depth+1)
		child.Name, child.Required = property.key, required[property.key]
		f.Fields = append(f.Fields, child)
	}
	for _, key := range []string{"oneOf", "allOf"} {
		var types []string
		for _, part := range items(get(n, key)) {
			child := p.field(part, depth+1)
			types = append(types, child.Type)
			f.Fields, f.Notes = append(f.Fields, child.Fields...), append(f.Notes, child.Notes...)
			if child.Ref != "" {
				f.Ref = child.Ref
			}
		}
		if types != nil {
			f.Type = strings.Join(types, map[string]string{"oneOf": " or ", "allOf": " and "}[key])
		}
	}
	for key, prefix := range map[string]string{"items": "array of ", "additionalProperties": "map to "} {
		if inner := get(n, key); inner != nil && inner.Kind == yaml.MappingNode {
			child := p.field(inner, depth+1)
			f.Type, f.Ref = prefix+child.Type, child.Ref
			f.Fields = append(f.Fields, child.Fields...)
			f.Notes = append(f.Notes, child.Notes...)
		}
	}
	return f
}

// types returns the types that a schema allows: without any, "value" for a list of values, else "object".
func (p *parser) types(n *yaml.Node) []string {
	t := get(n, "type")
	switch {
	case t == nil && (get(n, "enum") != nil || get(n, "const") != nil):
		return []string{"value"}
	case t == nil:
		return []string{"object"}
	case t.Kind == yaml.SequenceNode:
		var out []string
		for _, one := range t.Content {
			out = append(out, one.Value)
		}
		return out
	}
	return []string{t.Value}
}

// notes says how a schema bounds its values.
func (p *parser) notes(n *yaml.Node) []string {
	var out []string
	if e := get(n, "enum"); e != nil {
		var values []string
		for _, v := range e.Content {
			values = append(values, v.Value)
		}
		out = append(out, "one of "+strings.Join(values, ", "))
	}
	for _, note := range []struct{ key, text string }{
		{"const", "always %s"},
		{"minLength", "at least %s characters"},
		{"maxLength", "at most %s characters"},
		{"minimum", "at least %s"},
		{"maximum", "at most %s"},
		{"minItems", "at least %s items"},
		{"maxItems", "at most %s items"},
		{"pattern", "matches %s"},
		{"default", "by default %s"},
		{"x-waitlist-tier", "needs the tier %s"},
	} {
		if v := get(n, note.key); v != nil {
			out = append(out, fmt.Sprintf(note.text, p.sample(v)))
		}
	}
	if text(get(n, "uniqueItems")) == "true" {
		out = append(out, "without repetitions")
	}
	return out
}

// example returns the first example of a body, else one made of its schema.
func (p *parser) example(media *yaml.Node) string {
	var value any
	if examples := pairs(get(media, "examples")); len(examples) > 0 {
		value = p.plain(get(examples[0].value, "value"))
	} else {
		value = p.made(get(media, "schema"), 0)
	}
	out, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		p.fail(err)
	}
	return string(out)
}

// made returns an example value of a schema: the required parts, as short as possible.
func (p *parser) made(n *yaml.Node, depth int) any {
	n, _ = p.resolve(n)
	for _, key := range []string{"const", "default", "example"} {
		if v := get(n, key); v != nil {
			return p.plain(v)
		}
	}
	for _, key := range []string{"enum", "examples"} {
		if v := first(get(n, key)); v != nil {
			return p.plain(v)
		}
	}
	if part := first(get(n, "oneOf")); part != nil {
		return p.made(part, depth+1)
	}
	switch p.types(n)[0] {
	case "object":
		out := map[string]any{}
		for _, name := range items(get(n, "required")) {
			if depth < deepest {
				out[text(name)] = p.made(get(get(n, "properties"), text(name)), depth+1)
			}
		}
		return out
	case "array":
		if inner := get(n, "items"); inner != nil && depth < deepest {
			return []any{p.made(inner, depth+1)}
		}
		return []any{}
	case "integer", "number":
		return 1
	case "boolean":
		return true
	case "null":
		return nil
	}
	return ""
}

// sample writes a value as JSON does, strings without quotes.
func (p *parser) sample(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return n.Value
	}
	out, err := json.Marshal(p.plain(n))
	if err != nil {
		p.fail(err)
	}
	return string(out)
}

func (p *parser) plain(n *yaml.Node) any {
	var v any
	if err := n.Decode(&v); err != nil {
		p.fail(fmt.Errorf("line %d: %w", n.Line, err))
	}
	return v
}

// resolve follows a $ref and returns its last part. Everything else it returns as it is.
func (p *parser) resolve(n *yaml.Node) (*yaml.Node, string) {
	ref := text(get(n, "$ref"))
	if ref == "" {
		return n, ""
	}
	target, name := p.root, ""
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		target, name = get(target, part), part
	}
	if target == nil || get(target, "$ref") != nil {
		p.fail(fmt.Errorf("line %d: %s leads nowhere", n.Line, ref))
		return nil, name
	}
	return target, name
}

// markdown renders a description. Raw HTML in it is left out.
func (p *parser) markdown(n *yaml.Node) template.HTML {
	if n == nil {
		return ""
	}
	var b bytes.Buffer
	if err := goldmark.Convert([]byte(n.Value), &b); err != nil {
		p.fail(err)
	}
	return template.HTML(b.String()) //nolint:gosec // of our own document, and goldmark escapes
}

// curl returns a command that calls an operation with its examples.
func curl(o *Operation, base string) string {
	path, query := o.Path, ""
	for _, parameter := range o.Parameters {
		switch {
		case parameter.In == "path":
			path = strings.ReplaceAll(path, "{"+parameter.Name+"}", parameter.Example)
		case parameter.In == "query" && parameter.Required:
			query = "?" + parameter.Name + "=…"
		}
	}
	var b strings.Builder
	b.WriteString("curl")
	if o.Method != "GET" && (o.Method != "POST" || o.Body == nil) {
		b.WriteString(" -X " + o.Method)
	}
	fmt.Fprintf(&b, " '%s%s%s'", base, path, query)
	if len(o.Credentials) > 0 {
		b.WriteString(` \` + "\n" + `  -H "x-api-key: $KEY"`)
	}
	if o.Body != nil {
		var compact bytes.Buffer
		if json.Compact(&compact, []byte(o.Body.Example)) == nil {
			fmt.Fprintf(&b, " \\\n  -d '%s'", strings.ReplaceAll(compact.String(), "'", `'\''`))
		}
	}
	return b.String()
}

// get returns the value of a key, or nil. It takes nil for an empty mapping.
func get(n *yaml.Node, key string) *yaml.Node {
	for _, p := range pairs(n) {
		if p.key == key {
			return p.value
		}
	}
	return nil
}

type pair struct {
	key   string
	value *yaml.Node
}

func pairs(n *yaml.Node) []pair {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	out := make([]pair, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		out = append(out, pair{n.Content[i].Value, n.Content[i+1]})
	}
	return out
}

func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

func first(n *yaml.Node) *yaml.Node {
	if all := items(n); len(all) > 0 {
		return all[0]
	}
	return nil
}

// text returns a scalar, or "" for nil.
func text(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return n.Value
}
