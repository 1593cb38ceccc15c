package waitlist

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"waitlist.internal/libs/body"
)

// FuzzConsent: in a text that is taken, every link leads to a web page or a mailbox, also for
// readers that leave tabs and line breaks out.
func FuzzConsent(f *testing.F) {
	for _, s := range []string{
		"[a](https://a.example)", "[a](java\tscript:x)", "<javascript:x>", "![a](data:x)", "[a][b]\n\n[b]: javascript:x", "[a](<https://x y>)",
		"<a@b.example>", "[a](JAVASCRIPT&colon;x)",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := json.Marshal(map[string]string{"consent_text": s})
		if err != nil {
			t.Fatal(err)
		}
		o, err := body.Parse(raw)
		if err != nil {
			return
		}
		consentText(o, "consent_text")
		if o.Failed("consent_text") {
			return
		}
		if utf8.RuneCountInString(s) > maxConsentText {
			t.Fatalf("took %d characters", utf8.RuneCountInString(s))
		}
		for _, text := range []string{s, strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(s)} {
			for _, target := range linkTargets(text) {
				scheme, _, _ := strings.Cut(strings.ToLower(target), ":")
				if scheme != "https" && scheme != "http" && scheme != "mailto" {
					t.Fatalf("took %q with a link to %q", s, target)
				}
			}
		}
	})
}
