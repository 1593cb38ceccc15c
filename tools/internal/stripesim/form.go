package stripesim

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// form is the parameters of a request, by the name that they were sent with:
// items[0][price].
type form map[string]string

// newForm reads parameters of the query and of the body. Lists that were sent
// without an index, expand[]=a, get one in the order in which they came.
func newForm(all ...url.Values) form {
	f := form{}
	for _, values := range all {
		for name, list := range values {
			base, isList := strings.CutSuffix(name, "[]")
			for i, v := range list {
				if isList {
					f[fmt.Sprintf("%s[%d]", base, i)] = v
				} else {
					f[name] = v
				}
			}
		}
	}
	return f
}

// check refuses names that a call does not know, as the provider does.
func (f form) check(known string) error {
	names := append(strings.Fields(known), "expand")
	for _, name := range slices.Sorted(maps.Keys(f)) {
		top, _, _ := strings.Cut(name, "[")
		if !slices.Contains(names, top) {
			return &apiError{
				Status: 400, Type: invalidRequest, Code: "parameter_unknown", Param: name,
				Message: "Received unknown parameter: " + name,
			}
		}
	}
	return nil
}

// has says whether a parameter was sent, be it empty.
func (f form) has(name string) bool {
	_, ok := f[name]
	return ok
}

// required returns a parameter that a call cannot do without.
func (f form) required(name string) (string, error) {
	if f[name] == "" {
		return "", &apiError{
			Status: 400, Type: invalidRequest, Code: "parameter_missing", Param: name,
			Message: "Missing required param: " + name + ".",
		}
	}
	return f[name], nil
}

// integer returns a whole number, or def where there is none.
func (f form) integer(name string, def int64) (int64, error) {
	v := f[name]
	if v == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, &apiError{
			Status: 400, Type: invalidRequest, Code: "parameter_invalid_integer", Param: name,
			Message: "Invalid integer: " + v,
		}
	}
	return n, nil
}

// boolean returns true or false, or def where nothing was sent.
func (f form) boolean(name string, def bool) (bool, error) {
	switch f[name] {
	case "":
		return def, nil
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, invalid(name, "Invalid boolean: %s", f[name])
}

// oneOf returns one of some words, or the first where nothing was sent.
func (f form) oneOf(name string, words ...string) (string, error) {
	v := f[name]
	if v == "" {
		return words[0], nil
	}
	if !slices.Contains(words, v) {
		return "", invalid(name, "Invalid %s: must be one of %s", name, strings.Join(words, ", "))
	}
	return v, nil
}

// all returns a list of plain values.
func (f form) all(name string) []string {
	var out []string
	for i := 0; f.has(fmt.Sprintf("%s[%d]", name, i)); i++ {
		out = append(out, f[fmt.Sprintf("%s[%d]", name, i)])
	}
	return out
}

// fields returns what was sent under name[…], by the name in the brackets.
func (f form) fields(name string) map[string]string {
	out := map[string]string{}
	for k, v := range f {
		if rest, ok := strings.CutPrefix(k, name+"["); ok {
			if inner, ok := strings.CutSuffix(rest, "]"); ok && !strings.ContainsAny(inner, "[]") {
				out[inner] = v
			}
		}
	}
	return out
}

// items returns the number of objects that were sent under name[0], name[1] ….
func (f form) items(name string) int {
	for n := 0; ; n++ {
		prefix := fmt.Sprintf("%s[%d]", name, n)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(f)), func(k string) bool { return strings.HasPrefix(k, prefix) }) {
			return n
		}
	}
}

// metadata merges what was sent into m as the provider does: names that are sent
// empty go, the others stay; an empty metadata removes all.
func (f form) metadata(name string, m map[string]string) (map[string]string, error) {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	if f.has(name) && f[name] == "" {
		clear(out)
	}
	for k, v := range f.fields(name) {
		switch {
		case v == "":
			delete(out, k)
		case len(k) > 40 || len(v) > 500:
			return nil, invalid(name, "Metadata keys can have up to 40 characters, values up to 500.")
		default:
			out[k] = v
		}
	}
	if len(out) > 50 {
		return nil, invalid(name, "You can have up to 50 metadata keys.")
	}
	return out, nil
}
