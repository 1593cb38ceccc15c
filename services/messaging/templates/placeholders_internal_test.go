package templates

import (
	"html"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRender(t *testing.T) {
	vars := Variables{
		"email": "a@example.com", "first_name": `<b>"Ann" & 'Lee'</b>`, "last_name": "{{email}}", "position": "12",
		"waitlist_name": "A\r\nBcc: victim@example.com\u2028\x00B", "referral_link": "https://x.example/w/1?ref=a&b=c",
	}
	for _, tc := range []struct{ in, text, html string }{
		{"", "", ""},
		{"plain } {} }} { <p>&amp;", "plain } {} }} { <p>&amp;", "plain } {} }} { <p>&amp;"},
		{"{{email}}", "a@example.com", "a@example.com"},
		{"-{{ \tposition }}-{{position}}", "-12-12", "-12-12"},
		{"{{first_name}}", vars["first_name"], "&lt;b&gt;&#34;Ann&#34; &amp; &#39;Lee&#39;&lt;/b&gt;"},
		// Values are not expanded as templates.
		{"{{last_name}}", "{{email}}", "{{email}}"},
		{"{{milestone}}|{{unsubscribe_url}}|", "||", "||"},
		{`<a href="{{referral_link}}">`, `<a href="https://x.example/w/1?ref=a&b=c">`, `<a href="https://x.example/w/1?ref=a&amp;b=c">`},
	} {
		subject, text, htm, ok := Template{Subject: tc.in, Text: tc.in, HTML: tc.in}.Render(vars)
		if !ok || subject != tc.text || text != tc.text || htm != tc.html {
			t.Errorf("%q: %q, %q, %q, %v", tc.in, subject, text, htm, ok)
		}
	}
	subject, text, _, ok := Template{Subject: "x {{waitlist_name}}", Text: "{{waitlist_name}}"}.Render(vars)
	if !ok || subject != "x A  Bcc: victim@example.com  B" || text != vars["waitlist_name"] {
		t.Errorf("%q, %q, %v", subject, text, ok)
	}
	if _, _, _, ok := (Template{Text: strings.Repeat("{{email}}", 50_000)}).Render(Variables{"email": strings.Repeat("x", 254)}); ok {
		t.Error("a mail of 12 MB")
	}
	for _, broken := range []string{"{{", "{{email", "{{email}", "a {{}} b", "{{ }}"} {
		if _, problem := cut(broken); problem == "" {
			t.Errorf("%q is taken", broken)
		}
	}
}

// FuzzTemplate checks that an accepted template is split without loss, that only known placeholders become
// values, and that no value escapes its place in HTML or in a subject.
func FuzzTemplate(f *testing.F) {
	for _, seed := range [][2]string{
		{"Hello {{first_name}}", "Ann"},
		{"{{ email }}{{position}}", "<script>"},
		{"{{", "x"},
		{"{{}}", "{{email}}"},
		{"{{{email}}}", "\r\nBcc: x"},
		{"a }} b {{x}} {{email}", "'\"&"},
		{"\xff{{\xff}}", "\xff\u2028"},
		{strings.Repeat("{{email}}", 100), strings.Repeat("&", 100)},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		if len(text)*len(value) > 1<<20 {
			return // the fuzzer's time is better spent
		}
		pieces, problem := cut(text)
		if problem != "" {
			if pieces != nil {
				t.Fatalf("%q: %s, and pieces", text, problem)
			}
			return
		}
		vars, whole, literals := Variables{}, "", ""
		for _, p := range pieces {
			if whole += p.source; p.variable == "" {
				literals += p.source
			} else {
				vars[p.variable] = value
			}
			if strings.Contains(p.source, "{{") != (p.variable != "") || p.source == "" {
				t.Fatalf("%q: piece %+v", text, p)
			}
		}
		if whole != text {
			t.Fatalf("%q came apart as %q", text, whole)
		}
		subject, plain, htm, ok := Template{Subject: text, Text: text, HTML: text}.Render(vars)
		if !ok {
			return
		}
		for _, c := range "<>\"'" {
			if strings.Count(htm, string(c)) != strings.Count(literals, string(c)) {
				t.Fatalf("%q with %q: HTML %q", text, value, htm)
			}
		}
		if utf8.ValidString(text) && utf8.ValidString(value) && strings.Count(plain, "&") < strings.Count(html.UnescapeString(htm), "&") &&
			!strings.Contains(literals, "&") {
			t.Fatalf("%q with %q: HTML %q says more than %q", text, value, htm, plain)
		}
		if strings.ContainsAny(subject, "\r\n\x00\u0085\u2028\u2029") {
			t.Fatalf("%q with %q: subject %q", text, value, subject)
		}
	})
}
