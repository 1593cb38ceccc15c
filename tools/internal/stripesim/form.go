package stripesim

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// form holds a request's parameters under the names that were sent, such as items[0][price].
type form map[string]string

// newForm reads the parameters of the query and the body. Lists sent without an index (expand[]=a) are numbered in the order
// in which they arrived.
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

// check rejects parameters that a call does not know, as the provider does.
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

// has reports whether a parameter was sent, even if empty.
func (f form) has(name string) bool {
	_, ok := f[name]
	return ok
}

// required returns a parameter, or an error if it is missing.
func (f form) required(name string) (string, error) {
	if f[name] == "" {
		return "", &apiError{
			Status: 400, Type: invalidRequest, Code: "parameter_missing", Param: name,
			Message: "Missing required param: " + name + ".",
		}
	}
	return f[name], nil
}

// integer returns a whole number, or def if the parameter is missing.
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

// boolean returns true or false, or def if the parameter is missing.
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

// oneOf returns the parameter if it is one of words, and the first word if it is missing.
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

// fields returns the parameters sent as name[…], keyed by the name in brackets.
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

// items returns the number of objects sent as name[0], name[1] ….
func (f form) items(name string) int {
	for n := 0; ; n++ {
		prefix := fmt.Sprintf("%s[%d]", name, n)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(f)), func(k string) bool { return strings.HasPrefix(k, prefix) }) {
			return n
		}
	}
}

// metadata merges the metadata that was sent into m, as the provider does: an empty value removes its name, an empty
// metadata removes all names, and names that were not sent stay.
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
