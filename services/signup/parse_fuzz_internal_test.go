package signup

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
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

// FuzzImport: a row that is taken has a stored form of its address and texts that Postgres takes.
func FuzzImport(f *testing.F) {
	for _, s := range []string{
		`{"signups":[{"email":"a@b.example","first_name":" A "},{"email":"x"},{}]}`, `{"signups":[null]}`, `{"signups":5}`,
		`{"signups":[{"email":"A@B.example","phone":"\u0000"}]}`, `{"signups":[]}x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		rows, bad, err := readImport(raw)
		if len(bad) > maxImportErrors || len(rows) > maxImportRows {
			t.Fatalf("%d rows, %d errors", len(rows), len(bad))
		}
		if err != nil {
			return
		}
		for _, r := range rows {
			if again, err := emailaddr.Parse(r.Email); err != nil || again != r.Email {
				t.Fatalf("took %q", r.Email)
			}
			for _, s := range []string{r.FirstName, r.LastName, r.Phone} {
				if !utf8.ValidString(s) || strings.ContainsRune(s, 0) || utf8.RuneCountInString(s) > maxPersonName {
					t.Fatalf("took %q", s)
				}
			}
		}
	})
}
