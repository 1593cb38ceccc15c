// Package body reads JSON request bodies by the rules of the REST contract.
//
// A body must be one JSON object in valid UTF-8; anything else is INVALID_BODY.
// Within the object, null counts as absent, 5.0 is an integer and "5" is not, the
// last of duplicate keys wins, lone surrogates become U+FFFD, and unknown keys are
// ignored. Values of the wrong type, strings that are too long and strings with
// U+0000 become field errors, which one VALIDATION_ERROR lists:
//
//	o, err := body.Parse(raw)
//	email := o.RequiredString("email", 254)
//	consent, _ := o.Bool("consent")
//	if err := o.Err(); err != nil { return err }
package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"waitlist.internal/libs/apierr"
)

// maxDepth bounds the nesting of objects and arrays. The deepest body in the
// contract has five levels.
const maxDepth = 64

// maxExact bounds integers written with a fraction or exponent: up to here a
// float64 holds every integer exactly.
const maxExact = 1 << 53

// maxDigits bounds the digits of a number with a fraction or exponent.
const maxDigits = 1000

// Required is the message about a field that is missing or empty.
const Required = "This field is required."

// Messages with several uses.
const (
	notInteger     = "This must be an integer."
	notArray       = "This must be an array."
	tooManyEntries = "This must have at most %d entries."
)

// MaxErrors ends Each: it reads no further object once there are that many errors.
const MaxErrors = 50

// Object is a JSON object that collects the errors about its fields. It refers to
// the bytes of the body. It is not safe for concurrent use.
type Object struct {
	prefix string
	raw    []byte
	// values is an index by name; nil unless raw has minIndexed to maxIndexed bytes.
	values map[string]json.RawMessage
	errs   *[]apierr.Field
}

// minIndexed and maxIndexed bound the length, in bytes, of objects that get an
// index. Any other object is scanned for each value: building an index takes longer
// than scanning a short object, as an import has by the thousand, and an index of
// millions of names would take many times the memory of the body. Without the index,
// a form of 483 bytes that asks for everything takes 11 µs in place of 4.
const (
	minIndexed = 256
	maxIndexed = 1 << 20
)

func newObject(prefix string, v []byte, errs *[]apierr.Field) *Object {
	o := &Object{prefix: prefix, raw: v, errs: errs}
	if len(v) >= minIndexed && len(v) <= maxIndexed {
		o.values = map[string]json.RawMessage{}
		for name, value := range members(v) {
			o.values[unquote(name)] = value
		}
	}
	return o
}

// find returns the last value of name, including null.
func (o *Object) find(name string) (v json.RawMessage, ok bool) {
	if o.values != nil {
		v, ok = o.values[name]
		return v, ok
	}
	for quoted, value := range members(o.raw) {
		if says(quoted, name) {
			v, ok = value, true
		}
	}
	return v, ok
}

// Parse reads raw as one JSON object. The error is INVALID_BODY.
func Parse(raw []byte) (*Object, error) {
	v := bytes.Trim(raw, " \t\r\n")
	if len(v) == 0 {
		return nil, invalid("The request body is empty.")
	}
	if !utf8.Valid(raw) {
		return nil, invalid("The request body is not valid UTF-8.")
	}
	if tooDeep(raw) {
		return nil, invalid("The request body is nested too deeply.")
	}
	if v[0] != '{' || !json.Valid(v) {
		return nil, invalid("The request body is not a JSON object.")
	}
	return newObject("", v, new([]apierr.Field)), nil
}

func invalid(message string) error { return apierr.New(apierr.InvalidBody, message) }

// tooDeep counts brackets outside strings and ignores all other syntax.
func tooDeep(raw []byte) bool {
	depth, inString := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// Raw returns the JSON text of name; ok is false if it is absent or null.
func (o *Object) Raw(name string) (v json.RawMessage, ok bool) {
	if v, ok = o.find(name); !ok || isNull(v) {
		return nil, false
	}
	return v, true
}

// Has reports whether name is present, including null.
func (o *Object) Has(name string) bool {
	_, ok := o.find(name)
	return ok
}

// IsNull reports whether name is present and null.
func (o *Object) IsNull(name string) bool {
	v, ok := o.find(name)
	return ok && isNull(v)
}

// Keys returns the names in the object, sorted.
func (o *Object) Keys() []string {
	var names []string
	for quoted := range members(o.raw) {
		names = append(names, unquote(quoted))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Path returns the path of name from the root of the body, as errors show it.
func (o *Object) Path(name string) string { return o.prefix + name }

// String returns a string of at most maxLen code points (0: no bound).
func (o *Object) String(name string, maxLen int) (value string, present bool) {
	v, ok := o.Raw(name)
	if !ok {
		return "", false
	}
	return o.str(name, v, maxLen)
}

func (o *Object) str(name string, v json.RawMessage, maxLen int) (string, bool) {
	if v[0] != '"' {
		o.Fail(name, "This must be a string.")
		return "", false
	}
	s := unquote(v)
	if strings.IndexByte(s, 0) >= 0 {
		o.Fail(name, "This must not contain the character U+0000.")
		return "", false
	}
	// A string has at most as many code points as bytes.
	if maxLen > 0 && len(s) > maxLen && utf8.RuneCountInString(s) > maxLen {
		o.Fail(name, fmt.Sprintf("This must have at most %d characters.", maxLen))
		return "", false
	}
	return s, true
}

// RequiredString is String that also rejects an absent, null or empty value.
func (o *Object) RequiredString(name string, maxLen int) string {
	v, ok := o.Raw(name)
	if !ok {
		o.Fail(name, Required)
		return ""
	}
	s, ok := o.str(name, v, maxLen)
	if ok && s == "" {
		o.Fail(name, Required)
	}
	return s
}

// Bool returns a boolean.
func (o *Object) Bool(name string) (value, present bool) {
	v, ok := o.Raw(name)
	if !ok {
		return false, false
	}
	switch string(v) {
	case "true":
		return true, true
	case "false":
		return false, true
	default:
		o.Fail(name, "This must be true or false.")
		return false, false
	}
}

// Int returns an integer. A number with a fraction or exponent counts if its
// value is an integer from -2^53 to 2^53.
func (o *Object) Int(name string) (value int64, present bool) {
	v, ok := o.Raw(name)
	if !ok {
		return 0, false
	}
	n, ok := ParseInt(v)
	if !ok {
		o.Fail(name, notInteger)
	}
	return n, ok
}

// IntIn is Int with inclusive bounds.
func (o *Object) IntIn(name string, lowest, highest int64) (value int64, present bool) {
	n, ok := o.Int(name)
	if ok && (n < lowest || n > highest) {
		o.Fail(name, fmt.Sprintf("This must be an integer from %d to %d.", lowest, highest))
		return 0, false
	}
	return n, ok
}

// ParseInt parses one JSON number by the rules of Object.Int.
func ParseInt(v json.RawMessage) (int64, bool) {
	if len(v) == 0 || (v[0] != '-' && (v[0] < '0' || v[0] > '9')) {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true
	}
	// Parse fractions and exponents exactly, but skip huge ones, which would take
	// long.
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e")
	_, err := strconv.ParseInt(exponent, 10, 10)
	if len(mantissa) > maxDigits || (exponent != "" && err != nil) || !bytes.ContainsAny(v, ".eE") {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(string(v))
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	n := r.Num().Int64()
	return n, -maxExact <= n && n <= maxExact
}

// Object returns a nested object, whose errors o collects.
func (o *Object) Object(name string) (*Object, bool) {
	v, ok := o.Raw(name)
	if !ok {
		return nil, false
	}
	return o.object(name, v)
}

func (o *Object) object(name string, v json.RawMessage) (*Object, bool) {
	if v[0] != '{' {
		o.Fail(name, "This must be an object.")
		return nil, false
	}
	return newObject(o.prefix+name+".", v, o.errs), true
}

// Array returns the JSON text of each element of an array.
func (o *Object) Array(name string) ([]json.RawMessage, bool) {
	v, ok := o.Raw(name)
	if !ok {
		return nil, false
	}
	if v[0] != '[' {
		o.Fail(name, notArray)
		return nil, false
	}
	return slices.AppendSeq([]json.RawMessage{}, elements(v)), true
}

func (o *Object) array(name string, maxItems int) ([]json.RawMessage, bool) {
	items, ok := o.Array(name)
	if ok && maxItems > 0 && len(items) > maxItems {
		o.Fail(name, fmt.Sprintf(tooManyEntries, maxItems))
		return nil, false
	}
	return items, ok
}

// Objects returns an array of at most maxItems objects (0: no bound). Errors
// name the element by its index, from 0: signups[3].
func (o *Object) Objects(name string, maxItems int) ([]*Object, bool) {
	items, ok := o.array(name, maxItems)
	if !ok {
		return nil, false
	}
	out := make([]*Object, 0, len(items))
	for i, v := range items {
		e, isObject := o.object(element(name, i), v)
		if ok = ok && isObject; ok {
			out = append(out, e)
		}
	}
	if !ok {
		return nil, false
	}
	return out, true
}

// Each calls f with each object of an array of at most maxItems (0: no bound), so
// that a long array need not be in memory twice. Errors name the element as in
// Objects; Each stops once there are MaxErrors of them.
func (o *Object) Each(name string, maxItems int, f func(e *Object)) (present bool) {
	v, ok := o.Raw(name)
	if !ok {
		return false
	}
	if v[0] != '[' {
		o.Fail(name, notArray)
		return false
	}
	n := 0
	for range elements(v) {
		if n++; maxItems > 0 && n > maxItems {
			o.Fail(name, fmt.Sprintf(tooManyEntries, maxItems))
			return false
		}
	}
	n = 0
	for v := range elements(v) {
		if len(*o.errs) >= MaxErrors {
			break
		}
		if e, ok := o.object(element(name, n), v); ok {
			f(e)
		}
		n++
	}
	return true
}

// Strings returns an array of at most maxItems strings of at most maxLen code
// points each (0: no bound).
func (o *Object) Strings(name string, maxItems, maxLen int) ([]string, bool) {
	items, ok := o.array(name, maxItems)
	if !ok {
		return nil, false
	}
	out := make([]string, 0, len(items))
	for i, v := range items {
		s, isString := o.str(element(name, i), v, maxLen)
		ok = ok && isString
		out = append(out, s)
	}
	if !ok {
		return nil, false
	}
	return out, true
}

// Ints returns an array of at most maxItems integers (0: no bound).
func (o *Object) Ints(name string, maxItems int) ([]int64, bool) {
	items, ok := o.array(name, maxItems)
	if !ok {
		return nil, false
	}
	out := make([]int64, 0, len(items))
	for i, v := range items {
		n, isInt := ParseInt(v)
		if !isInt {
			o.Fail(element(name, i), notInteger)
		}
		ok = ok && isInt
		out = append(out, n)
	}
	if !ok {
		return nil, false
	}
	return out, true
}

func element(name string, i int) string { return name + "[" + strconv.Itoa(i) + "]" }

// Fail adds an error about name. The message is a sentence that stands beside the
// field: "This field is required."
func (o *Object) Fail(name, message string) {
	*o.errs = append(*o.errs, apierr.Field{Field: o.prefix + name, Message: message})
}

// Failed reports whether name, or anything within it, has an error.
func (o *Object) Failed(name string) bool {
	path := o.prefix + name
	return slices.ContainsFunc(*o.errs, func(f apierr.Field) bool {
		rest, ok := strings.CutPrefix(f.Field, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Err returns a VALIDATION_ERROR with all errors in the body, in the order of
// their discovery, or nil if there are none.
func (o *Object) Err() error {
	if len(*o.errs) == 0 {
		return nil
	}
	return apierr.Validation(slices.Clone(*o.errs)...)
}

func isNull(v json.RawMessage) bool { return len(v) == 4 && v[0] == 'n' }
