package owners

import (
	"strings"
	"testing"
	"unicode/utf8"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/services/signup/queue"
)

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
				if !utf8.ValidString(s) || strings.ContainsRune(s, 0) || utf8.RuneCountInString(s) > queue.MaxName {
					t.Fatalf("took %q", s)
				}
			}
		}
	})
}
