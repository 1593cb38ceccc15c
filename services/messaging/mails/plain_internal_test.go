package mails

import (
	"strings"
	"testing"
)

func TestPlainText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ html, want string }{
		{"", ""},
		{`<p><img src="x.png"></p>`, ""},
		{"Hello", "Hello"},
		{"<p>Hello,\n  <b>you</b>!</p>\n<p>1 &lt; 2, a < b</p>Gr&uuml;&szlig;e<br>Team", "Hello, you!\n\n1 < 2, a < b\n\nGrüße\nTeam"},
		{"<br><br>a<br><br><br><br>b", "a\n\nb"},
		{`Read <a href="https://example.com/?a=1&amp;b=2">our <i>news</i></a>.`, "Read our news (https://example.com/?a=1&b=2)."},
		{`<a href="https://example.com">https://example.com</a> <a href="#top">up</a> <a>x</a>`, "https://example.com up x"},
		{`<a href="mailto:a@example.com">a@example.com</a>, <a href="mailto:b@example.com">us</a>`, "a@example.com, us (b@example.com)"},
		{`<ul><li>One</li><li>Two</ul>end`, "- One\n- Two\n\nend"},
		{`<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>`, "a b\nc"},
		{`<a href="https://example.com/"><img src="x.png" alt="A cat"></a>`, "A cat (https://example.com/)"},
		{
			`<!doctype html><html><head><title>T</title><style>p { color: red }</style></head>` +
				`<body><!--[if mso]><p>old</p><![endif]--><script>"</p>x"</script><p>Hello</p></body></html>`, "Hello",
		},
		{"<p>Hello<style>p", "Hello"},
		{"a<br/>b<div>c</div>d<p>e</p><div>f", "a\nb\nc\nd\n\ne\n\nf"},
		{`<a href=" https://example.com ">a</a> b</a>`, "a (https://example.com) b"},
		{"a<textarea>b</textarea>", "a"},
	} {
		if got := PlainText(tc.html); got != tc.want {
			t.Errorf("%q becomes %q, want %q", tc.html, got, tc.want)
		}
	}
}

// The text has no empty lines at its ends and no two of them in a row.
func FuzzPlainText(f *testing.F) {
	for _, s := range []string{"<a href=x:>", strings.Repeat("<div>", 2000), "<p>a</p", "</a><a href='x:y'></a>", "<li><br>\u00a0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := PlainText(s)
		if strings.Contains(got, "\n\n\n") || strings.HasPrefix(got, "\n") || (got != "" && strings.TrimSpace(got) == "") {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}
