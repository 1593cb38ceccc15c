package emailaddr_test

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"waitlist.internal/libs/emailaddr"
)

func TestParse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	label := strings.Repeat("b", 63)
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "ada@example.com", "ada@example.com"},
		{"trimmed and lower-cased", " \tAda.Love@Example.COM\n", "ada.love@example.com"},
		{"every atom character", "!#$%&'*+-/=?^_`{|}~@example.com", "!#$%&'*+-/=?^_`{|}~@example.com"},
		{"digits", "0@1.example", "0@1.example"},
		{"name to A-label", "ada@BÜCHER.example", "ada@xn--bcher-kva.example"},
		{"A-label stays", "ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"},
		{"ideographic full stop", "ada@例え。テスト", "ada@xn--r8jz45g.xn--zckzah"},
		{"sharp s is no ss", "ada@straße.example", "ada@xn--strae-oqa.example"},
		{"hyphens in third and fourth place", "ada@r3---sn.example.com", "ada@r3---sn.example.com"},
		{"local part of 64", long + "@example.com", long + "@example.com"},
		{"label of 63", "a@" + label + ".com", "a@" + label + ".com"},
		{"254 characters", "a@" + strings.Repeat("b.", 124) + "comx", "a@" + strings.Repeat("b.", 124) + "comx"},

		{"empty", "", ""},
		{"blank", "  ", ""},
		{"no at", "example.com", ""},
		{"no local part", "@example.com", ""},
		{"no domain", "ada@", ""},
		{"two at", "ada@b@example.com", ""},
		{"local part of 65", long + "a@example.com", ""},
		{"label of 64", "a@" + label + "b.com", ""},
		{"255 characters", "a@" + strings.Repeat("b.", 124) + "comxy", ""},
		{"leading dot", ".ada@example.com", ""},
		{"trailing dot", "ada.@example.com", ""},
		{"double dot", "ada..love@example.com", ""},
		{"inner blank", "ada love@example.com", ""},
		{"comma", "a,b@example.com", ""},
		{"two addresses", "a@example.com,b@example.com", ""},
		{"line break", "ada\r\nbcc:x@example.com", ""},
		{"NUL", "ada\x00@example.com", ""},
		{"quoted", `"ada love"@example.com`, ""},
		{"comment", "ada(x)@example.com", ""},
		{"display name", "Ada <ada@example.com>", ""},
		{"angle brackets", "<ada@example.com>", ""},
		{"local part not ASCII", "adä@example.com", ""},
		{"Kelvin sign folds to k", "\u212a@example.com", ""},
		{"one label", "ada@localhost", ""},
		{"IPv4", "ada@192.0.2.1", ""},
		{"IPv4 literal", "ada@[192.0.2.1]", ""},
		{"IPv6 literal", "ada@[IPv6:2001:db8::1]", ""},
		{"numeric last label", "ada@example.123", ""},
		{"domain's trailing dot", "ada@example.com.", ""},
		{"domain's leading dot", "ada@.example.com", ""},
		{"empty label", "ada@example..com", ""},
		{"label starts with hyphen", "ada@-example.com", ""},
		{"label ends with hyphen", "ada@example-.com", ""},
		{"underscore", "ada@exa_mple.com", ""},
		{"port", "ada@example.com:25", ""},
		{"percent", "ada@exam%70le.com", ""},
		{"broken A-label", "ada@xn--a.example", ""},
		{"A-label that decodes to ASCII", "ada@xn--example-.com", ""},
		{"zero width joiner", "ada@exa\u200dmple.com", ""},
		{"invalid UTF-8", "ada@ex\xffample.com", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := emailaddr.Parse(tt.in)
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Fatalf("Parse(%q) = %q, %v, want %q", tt.in, got, err, tt.want)
			}
		})
	}
}

func TestPersonal(t *testing.T) {
	t.Parallel()
	f, err := os.Open("free_providers.txt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	last, n := "", 0
	for s := bufio.NewScanner(f); s.Scan(); n++ {
		domain := s.Text()
		if domain <= last {
			t.Fatalf("%q does not follow %q", domain, last)
		}
		if last = domain; !emailaddr.Personal(domain) {
			t.Fatalf("%q is listed and not found", domain)
		}
		if emailaddr.Personal(domain+"x") || emailaddr.Personal("!"+domain) {
			t.Fatalf("a neighbour of %q is found", domain)
		}
	}
	if n < 5000 {
		t.Fatalf("%d domains", n)
	}
	for _, domain := range []string{"gmail.com", "outlook.com", "icloud.com", "proton.me", "gmx.de", "tutanota.com", "qq.com"} {
		if !emailaddr.Personal(domain) {
			t.Errorf("%s is not personal", domain)
		}
	}
	for _, domain := range []string{"", "\n", "com", "mail.gmail.com", "google.com", "example.org", "gmail.com\n", "~", "zzzz.zz"} {
		if emailaddr.Personal(domain) {
			t.Errorf("%q is personal", domain)
		}
	}
}

func TestDisposable(t *testing.T) {
	t.Parallel()
	for domain, want := range map[string]bool{
		"mailinator.com": true, "yopmail.com": true, "inbox.mailinator.com": true, "a.b.guerrillamail.com": true,
		"gmail.com": false, "gmx.de": false, "example.com": false, "mailinator.com.example.org": false, "com": false, "": false,
	} {
		if got := emailaddr.Disposable(domain); got != want {
			t.Errorf("%q: %t, want %t", domain, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"ada@example.com", "Ada@BÜCHER.example", "a@例え。テスト", "x@[127.0.0.1]", "a@xn--bcher-kva.de"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		addr, err := emailaddr.Parse(s)
		if err != nil {
			return
		}
		again, err := emailaddr.Parse(addr)
		if err != nil || again != addr {
			t.Fatalf("Parse(%q) = %q, parsed again %q, %v", s, addr, again, err)
		}
		if len(addr) > emailaddr.MaxLength || strings.ContainsAny(addr, " \r\n\t\x00<>\"(),:;\\[]") || strings.Count(addr, "@") != 1 {
			t.Fatalf("Parse(%q) = %q", s, addr)
		}
		emailaddr.Personal(emailaddr.Domain(addr))
		emailaddr.Disposable(emailaddr.Domain(addr))
	})
}
