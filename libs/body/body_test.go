package body_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseRefusesWhatIsNoObject(t *testing.T) {
	for name, raw := range map[string]string{
		"empty":            "",
		"blank":            " \n\t",
		"null":             "null",
		"array":            `[{"a":1}]`,
		"string":           `"a"`,
		"number":           "5",
		"true":             "true",
		"unclosed":         `{"a":1`,
		"trailing value":   `{"a":1}{}`,
		"trailing text":    `{"a":1} x`,
		"trailing comma":   `{"a":1,}`,
		"single quotes":    `{'a':1}`,
		"comment":          `{"a":1/*b*/}`,
		"NaN":              `{"a":NaN}`,
		"leading zero":     `{"a":01}`,
		"control char":     "{\"a\":\"\x01\"}",
		"bad escape":       `{"a":"\x"}`,
		"byte order mark":  "\ufeff{}",
		"no-break space":   "\u00a0{}",
		"vertical tab":     "\v{}",
		"invalid UTF-8":    "{\"a\":\"\xff\"}",
		"truncated UTF-8":  "{\"a\":\"\xc3\"}",
		"raw surrogate":    "{\"a\":\"\xed\xa0\x80\"}",
		"overlong UTF-8":   "{\"a\":\"\xc0\x80\"}",
		"deep array":       `{"a":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + "}",
		"very deep object": strings.Repeat(`{"a":`, 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := body.Parse([]byte(raw)); !apierr.Is(err, apierr.InvalidBody) {
				t.Fatalf("Parse = %v, want INVALID_BODY", err)
			}
		})
	}
}

func TestParseTakes(t *testing.T) {
	for _, raw := range []string{"{}", " {} \n", `{"a":null}`, `{"":1}`, `{"a":"[[[[\"{{"}`} {
		if _, err := body.Parse([]byte(raw)); err != nil {
			t.Errorf("Parse(%s) = %v", raw, err)
		}
	}
}

func parse(t *testing.T, raw string) *body.Object {
	t.Helper()
	o, err := body.Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func fields(err error) []string {
	var out []string
	if e, ok := errors.AsType[*apierr.Error](err); ok {
		for _, f := range e.Fields {
			out = append(out, f.Field)
		}
	}
	return out
}

func TestStrings(t *testing.T) {
	for name, c := range map[string]struct {
		raw, want string
		present   bool
		fails     bool
	}{
		"plain":               {`"abc"`, "abc", true, false},
		"empty":               {`""`, "", true, false},
		"null":                {`null`, "", false, false},
		"number":              {`5`, "", false, true},
		"object":              {`{}`, "", false, true},
		"lone surrogate":      {`"\ud800"`, "\ufffd", true, false},
		"pair":                {`"\ud83d\ude00"`, "😀", true, false},
		"U+0000":              {`"a\u0000"`, "", false, true},
		"at the bound":        {`"äöüß€"`, "äöüß€", true, false},
		"over the bound":      {`"äöüß€!"`, "", false, true},
		"astral at the bound": {`"😀😀😀😀😀"`, "😀😀😀😀😀", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := parse(t, `{"f":`+c.raw+`}`)
			got, present := o.String("f", 5)
			if got != c.want || present != c.present || (o.Err() != nil) != c.fails {
				t.Fatalf("String = %q, %v, %v", got, present, o.Err())
			}
		})
	}
}

func TestRequiredString(t *testing.T) {
	for _, raw := range []string{`{}`, `{"f":null}`, `{"f":""}`, `{"f":1}`} {
		o := parse(t, raw)
		if o.RequiredString("f", 0); !slices.Equal(fields(o.Err()), []string{"f"}) {
			t.Errorf("%s: %v", raw, o.Err())
		}
	}
	if o := parse(t, `{"f":"x"}`); o.RequiredString("f", 0) != "x" || o.Err() != nil {
		t.Error(o.Err())
	}
}

func TestInts(t *testing.T) {
	for raw, want := range map[string]int64{
		"5": 5, "5.0": 5, "-3": -3, "-0": 0, "1e2": 100, "1.5e1": 15, "150E-1": 15, "0.2e+1": 2, "9007199254740993": 9007199254740993,
		"9223372036854775807": 1<<63 - 1, "9007199254740992.0": 1 << 53,
	} {
		o := parse(t, `{"f":`+raw+`}`)
		if got, ok := o.Int("f"); !ok || got != want {
			t.Errorf("Int(%s) = %d, %v", raw, got, o.Err())
		}
	}
	for _, raw := range []string{
		`"5"`, "true", "5.5", "1e400", "1e-1", "9223372036854775808", "9007199254740994.0", "9007199254740993.0",
		"1.0000000000000000001", "1e1000000000", "[]", "{}",
	} {
		o := parse(t, `{"f":`+raw+`}`)
		if got, ok := o.Int("f"); ok || !slices.Equal(fields(o.Err()), []string{"f"}) {
			t.Errorf("Int(%s) = %d, want an error", raw, got)
		}
	}
}

func TestErrorsNamePaths(t *testing.T) {
	o := parse(t, `{"settings":{"n":"x","sub":{"b":1},"list":["a",5],"ints":[1,"2"]},"rows":[{"e":1},7,{"e":"ok"}],"many":[1,2,3],"no":5}`)
	s, _ := o.Object("settings")
	s.Int("n")
	sub, _ := s.Object("sub")
	sub.Bool("b")
	s.Strings("list", 0, 0)
	s.Ints("ints", 0)
	if _, ok := o.Objects("rows", 0); ok {
		t.Error("rows with a number passed")
	}
	o.Strings("many", 2, 0)
	o.Array("no")
	o.Object("no")
	want := []string{"settings.n", "settings.sub.b", "settings.list[1]", "settings.ints[1]", "rows[1]", "many", "no", "no"}
	if got := fields(o.Err()); !slices.Equal(got, want) {
		t.Fatalf("fields = %q, want %q", got, want)
	}
	if !o.Failed("settings") || !s.Failed("list") || !s.Failed("n") || o.Failed("setting") {
		t.Error("Failed is wrong")
	}
	e := apierr.From(o.Err())
	if e.Code != apierr.ValidationError || e.Kind != apierr.Invalid || e.Message == "" {
		t.Errorf("Err = %+v", e)
	}
}

// TestMessagesAreSentences provokes every message of the package.
func TestMessagesAreSentences(t *testing.T) {
	o := parse(t, `{"number":1,"text":"a\u0000","list":[1,2],"empty":""}`)
	o.String("number", 0)
	o.String("text", 0)
	o.Strings("list", 1, 0)
	o.RequiredString("absent", 0)
	o.RequiredString("empty", 0)
	o.Bool("number")
	o.Int("list")
	o.Ints("list", 1)
	o.IntIn("number", 2, 3)
	o.Object("number")
	o.Array("number")
	o.Each("number", 0, nil)
	o.Each("list", 1, nil)
	long := parse(t, `{"name":"abc"}`)
	long.String("name", 2)
	e := apierr.From(o.Err())
	fields := append(e.Fields, apierr.From(long.Err()).Fields...)
	if len(fields) != 14 {
		t.Errorf("%d errors: %+v", len(fields), fields)
	}
	sentence := regexp.MustCompile(`^This [^.]+\.$`)
	for _, f := range fields {
		if !sentence.MatchString(f.Message) {
			t.Errorf("%s: %q", f.Field, f.Message)
		}
	}
	if e.Message != `Check the field "number". This must be a string.` {
		t.Errorf("message %q", e.Message)
	}
}

func TestDuplicatesUnknownAndAbsent(t *testing.T) {
	o := parse(t, `{"a":1,"a":2,"n":null,"x":{}}`)
	if got, _ := o.Int("a"); got != 2 {
		t.Errorf("duplicate key: %d, want the last", got)
	}
	if !o.Has("n") || !o.IsNull("n") || o.IsNull("a") || o.Has("b") || o.IsNull("b") {
		t.Error("Has or IsNull is wrong")
	}
	if _, ok := o.Raw("n"); ok {
		t.Error("null is present")
	}
	if got := o.Keys(); !slices.Equal(got, []string{"a", "n", "x"}) {
		t.Errorf("Keys = %q", got)
	}
	if o.Err() != nil {
		t.Error(o.Err())
	}
}

// FuzzParse compares Parse with encoding/json and utf8.Valid.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":"\ud800","b":[1,{"c":null}],"d":5.0}`, `null`, `{"a":1}x`, "{\"a\":\"\xff\"}", `{"a":{"b":"c"}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var parts map[string]json.RawMessage
		ok := utf8.Valid(raw) && json.Unmarshal(raw, &parts) == nil && parts != nil
		o, err := body.Parse(raw)
		if err != nil {
			if ok && !strings.Contains(err.Error(), "deep") {
				t.Fatalf("refused %q: %v", raw, err)
			}
			return
		}
		if !ok {
			t.Fatalf("took %q", raw)
		}
		var want map[string]any
		if json.Unmarshal(raw, &want) != nil {
			return // a number that overflows float64
		}
		for _, k := range o.Keys() {
			s, isString := o.String(k, 10)
			if v, really := want[k].(string); isString && (!really || s != v || strings.ContainsRune(s, 0) || utf8.RuneCountInString(s) > 10) {
				t.Fatalf("String(%q) = %q of %q", k, s, raw)
			}
			if n, isInt := o.Int(k); isInt {
				if v, really := want[k].(float64); !really || float64(n) != v {
					t.Fatalf("Int(%q) = %d of %q", k, n, raw)
				}
			}
			if b, isBool := o.Bool(k); isBool && want[k] != b {
				t.Fatalf("Bool(%q) of %q", k, raw)
			}
			o.Strings(k, 3, 3)
			o.Objects(k, 3)
			o.Ints(k, 3)
		}
		compare(t, o, want)
	})
}

// compare compares the structure of o with that from encoding/json.
func compare(t *testing.T, o *body.Object, want map[string]any) {
	t.Helper()
	if keys := slices.Sorted(maps.Keys(want)); !slices.Equal(o.Keys(), keys) {
		t.Fatalf("keys %q, want %q", o.Keys(), keys)
	}
	for k, v := range want {
		switch v := v.(type) {
		case string:
			if s, ok := o.String(k, 0); s != v && (ok || !strings.ContainsRune(v, 0)) {
				t.Fatalf("String(%q) = %q, want %q", k, s, v)
			}
		case map[string]any:
			sub, ok := o.Object(k)
			if !ok {
				t.Fatalf("%q is no object", k)
			}
			compare(t, sub, v)
		case []any:
			items, ok := o.Array(k)
			if !ok || len(items) != len(v) {
				t.Fatalf("%q has %d elements, want %d", k, len(items), len(v))
			}
			var objects []map[string]any
			for i, raw := range items {
				var item any
				if err := json.Unmarshal(raw, &item); err != nil || !reflect.DeepEqual(item, v[i]) {
					t.Fatalf("%q has %s at %d, want %v", k, raw, i, v[i])
				}
				if sub, ok := item.(map[string]any); ok {
					objects = append(objects, sub)
				}
			}
			o.Each(k, 0, func(e *body.Object) {
				compare(t, e, objects[0])
				objects = objects[1:]
			})
		}
	}
}

// TestLong checks that objects too short or too long for an index read like any
// other, and that a long one needs little more memory than its bytes.
func TestLong(t *testing.T) {
	for _, n := range []int{1, 100, 200_000} {
		o := parse(t, `{"a":1,"n":0,"a":[{"b":2}],`+strings.Repeat(`"x":5,`, n)+`"n":null,"\u007a":"last"}`)
		got := 0
		if !o.Each("a", 0, func(e *body.Object) { n, _ := e.Int("b"); got = int(n) }) || got != 2 {
			t.Errorf("%d: a: %d", n, got)
		}
		if s, ok := o.String("z", 0); s != "last" || !ok || !o.IsNull("n") || !o.Has("x") || o.Has("y") {
			t.Errorf("%d: wrong values", n)
		}
		if keys := o.Keys(); !slices.Equal(keys, []string{"a", "n", "x", "z"}) {
			t.Errorf("%d: keys %q", n, keys)
		}
	}

	var names strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&names, `"%d":1,`, i)
	}
	raw := []byte(`{` + names.String() + `"signups":[]}`)
	allocated := testing.AllocsPerRun(1, func() {
		if o, err := body.Parse(raw); err != nil || !o.Each("signups", 0, func(*body.Object) {}) {
			t.Error(err)
		}
	})
	if allocated > 100 {
		t.Errorf("%.0f allocations", allocated)
	}
}

func TestEach(t *testing.T) {
	o := parse(t, `{"rows":[{"n":1}, 7 ,{"n":"x"},null,{"n":4}],"no":{},"null":null}`)
	var got []int64
	if !o.Each("rows", 5, func(e *body.Object) {
		n, _ := e.Int("n")
		got = append(got, n)
	}) {
		t.Error("rows are not there")
	}
	if !slices.Equal(got, []int64{1, 0, 4}) {
		t.Errorf("numbers %d", got)
	}
	for _, name := range []string{"no", "null", "missing"} {
		if o.Each(name, 0, func(*body.Object) { t.Error("called for", name) }) {
			t.Errorf("%s is there", name)
		}
	}
	if o.Each("rows", 4, func(*body.Object) { t.Error("called for too many") }) {
		t.Error("five rows are four")
	}
	want := []string{"rows[1]", "rows[2].n", "rows[3]", "no", "rows"}
	if got := fields(o.Err()); !slices.Equal(got, want) {
		t.Errorf("fields = %q, want %q", got, want)
	}
	o = parse(t, `{"rows":[`+strings.Repeat("{},1,", 1000)+`{}]}`)
	calls := 0
	o.Each("rows", 0, func(*body.Object) { calls++ })
	if n := len(fields(o.Err())); n != body.MaxErrors || calls != body.MaxErrors {
		t.Errorf("%d errors after %d calls", n, calls)
	}
}

func BenchmarkSignup(b *testing.B) {
	raw := []byte(`{"email":"someone@example.com","first_name":"Ada","last_name":"Lovelace",` +
		`"referred_by_token":"0123456789abcdef0123456789abcdef","utm_source":"x"}`)
	b.ReportAllocs()
	for b.Loop() {
		o, err := body.Parse(raw)
		if err != nil {
			b.Fatal(err)
		}
		o.RequiredString("email", 254)
		o.String("first_name", 100)
		o.String("last_name", 100)
		o.String("referred_by_token", 64)
		o.String("utm_source", 255)
	}
}
