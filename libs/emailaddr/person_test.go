package emailaddr_test

import (
	"testing"

	"waitlist.internal/libs/emailaddr"
)

func TestPerson(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"ada@gmail.com":                "ada@gmail.com",
		"a.d.a+news@gmail.com":         "ada@gmail.com",
		"a.da+x+y@googlemail.com":      "ada@gmail.com",
		"ada+x@outlook.com":            "ada@outlook.com",
		"a.da@outlook.com":             "a.da@outlook.com",
		"ada+x@hotmail.com":            "ada@hotmail.com",
		"ada+x@me.com":                 "ada@icloud.com",
		"ada+x@fastmail.com":           "ada@fastmail.com",
		"a.da+x@pm.me":                 "ada@proton.me",
		"+x@gmail.com":                 "+x@gmail.com",
		"a.da+x@example.com":           "a.da+x@example.com",
		"a.da+x@gmail.com.example.org": "a.da+x@gmail.com.example.org",
	} {
		if got := emailaddr.Person(addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
		if got := emailaddr.Person(want); got != want {
			t.Errorf("%s is not stable: %s", want, got)
		}
	}
}
