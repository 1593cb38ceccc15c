package owners

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/waitlist"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// records reads RFC 4180 as it is written there: fields are separated by commas,
// records end with CRLF, a quoted field holds anything, with its quotes doubled.
// ok is false where that is not what there is.
func records(csv []byte) (out [][]string, ok bool) {
	for len(csv) > 0 {
		var record []string
		for {
			var field []byte
			if csv[0] == '"' {
				for csv = csv[1:]; ; {
					at := bytes.IndexByte(csv, '"')
					if at < 0 {
						return nil, false
					}
					field = append(field, csv[:at]...)
					csv = csv[at+1:]
					if len(csv) == 0 || csv[0] != '"' {
						break
					}
					field, csv = append(field, '"'), csv[1:]
				}
			} else {
				// Some programs take the last two for separators, too.
				at := bytes.IndexAny(csv, "\",\r\n;\t")
				if at < 0 {
					return nil, false
				}
				field, csv = csv[:at], csv[at:]
			}
			record = append(record, string(field))
			if bytes.HasPrefix(csv, []byte("\r\n")) {
				csv = csv[2:]
				break
			}
			if len(csv) < 2 || csv[0] != ',' {
				return nil, false
			}
			csv = csv[1:]
		}
		out = append(out, record)
	}
	return out, true
}

// Every column has a name of its own, on one line: readers take a row for a map.
func TestCSVHeader(t *testing.T) {
	c := csvFile{}
	c.header(&waitlist.Waitlist{Settings: waitlist.Settings{CustomQuestions: []waitlist.Question{
		{ID: "q1", Label: "email"},
		{ID: "q2", Label: "Where\r\nfrom?\nSay"},
		{ID: "q3", Label: "Team"},
		{ID: "q4", Label: "Team"},
		{ID: "q5", Label: "Team (q4)"},
		{ID: "q6", Label: "created_at"},
		{ID: "q7", Label: "=1"},
		{ID: "q8", Label: "'=1"},
	}}}, false)
	got, ok := records(c.buf)
	if !ok || len(got) != 1 {
		t.Fatalf("%q", c.buf)
	}
	want := []string{"email (q1)", "Where from? Say", "Team", "Team (q4)", "Team (q4) (q5)", "created_at (q6)", "'=1", "'=1 (q8)"}
	if labels := got[0][13 : 13+len(want)]; !slices.Equal(labels, want) {
		t.Errorf("%q, want %q", labels, want)
	}
}

// FuzzCSV: whatever stands in the cells, a reader of RFC 4180 finds it there
// again, and no spreadsheet a formula.
func FuzzCSV(f *testing.F) {
	for _, s := range []string{
		"", "Ada", "=1+1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "'=1", `"`, `a"b,c`, "a\r\nb", ",", "é, ü",
		"=\"x\"", "+15550100", "+", "++1", "＝1+1", "＋1", "－1", "＠x", "＃x", "\xef\xbc", "a;=1", "a\t=1",
	} {
		f.Add([]byte(s), []byte(s+"x"))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		for _, v := range [][]byte{a, b} {
			if bytes.IndexByte(v, 0) >= 0 {
				return // no text in Postgres
			}
		}
		var file []byte
		c := csvFile{send: func(piece []byte) error { file = append(file, piece...); return nil }}
		questions := []waitlist.Question{{ID: "p", Label: string(a)}, {ID: "q", Label: string(b)}}
		c.header(&waitlist.Waitlist{Settings: waitlist.Settings{CustomQuestions: questions}}, true)
		for range 2 {
			r := ExportRow{
				Email: a, FirstName: b, LastName: a, Phone: b, UTM: [5][]byte{a, b, a, b, a}, Answers: [][]byte{b, nil},
				ConsentVersion: a, PolicyVersion: b, Flagged: []byte("velocity,too_fast"), CreatedAt: time.UnixMilli(1),
			}
			if err := c.row(&r); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.flush(); err != nil {
			t.Fatal(err)
		}
		got, ok := records(file)
		if !ok || len(got) != 3 {
			t.Fatalf("not what RFC 4180 says: %q", file)
		}
		text := func(v []byte) string {
			if first, _ := utf8.DecodeRune(v); len(v) > 0 && strings.ContainsRune("=+-@\t\r＝＋－＠", first) {
				return "'" + string(v)
			}
			return string(v)
		}
		phone := text(b)
		if len(b) > 1 && b[0] == '+' && bytes.Trim(b[1:], "0123456789") == nil {
			phone = string(b)
		}
		x, y := text(a), text(b)
		head := []string{
			"email", "first_name", "last_name", "phone", "position", "referral_count", "referral_token", "referred_by",
			"utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content", "\n", "\n", "email_opt_out", "email_opt_out_at",
			"consent_given_at", "consent_text_version", "privacy_policy_version", "email_verified", "created_at", "flagged",
		}
		for i, v := range [][]byte{a, b} {
			name := strings.NewReplacer("\r\n", " ", "\r", " ", "\n", " ").Replace(string(v))
			name = text([]byte(name))
			for slices.Contains(head, name) {
				name += " (" + "pq"[i:i+1] + ")"
			}
			head[13+i] = name
		}
		want := []string{
			x, y, x, phone, "1", "0", "00000000000000000000000000000000", "", x, y, x, y, x, y, "",
			"false", "", "", x, y, "false", "1970-01-01T00:00:00.001Z", "velocity,too_fast",
		}
		for i, want := range [][]string{head, want, want} {
			if i == 2 {
				want[4] = "2"
			}
			if !slices.Equal(got[i], want) {
				t.Fatalf("record %d: %q, want %q", i, got[i], want)
			}
		}
	})
}

// TestGate: a few at a time, fewer of one owner, and a place that becomes free
// goes to who waits.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate("exports", 3, 2, time.Second)
		enter := func(owner string) func() {
			t.Helper()
			leave, err := g.enter(t.Context(), owner)
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		full := func(owner string, after time.Duration) {
			t.Helper()
			start := time.Now()
			_, err := g.enter(t.Context(), owner)
			if e := apierr.From(err); e == nil || e.Code != apierr.RateLimited || e.RetryAfter < time.Second || time.Since(start) != after {
				t.Errorf("%v after %s", err, time.Since(start))
			}
		}
		a1, _ := enter("a"), enter("a")
		full("a", time.Second)
		b := enter("b")
		full("b", time.Second)
		full("c", time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := g.enter(ctx, "c"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who goes away: %v", err)
		}

		got := make(chan func())
		go func() { got <- enter("c") }()
		synctest.Wait()
		a1()
		c := <-got
		full("b", time.Second)
		b()
		c()
		enter("a")()

		// Places go to those who came first, past those whose owners have theirs.
		leaveA, leaveB := enter("a"), enter("b")
		order := make(chan string, 4)
		for _, owner := range []string{"a", "c", "a", "d"} {
			go func() {
				leave, err := g.enter(t.Context(), owner)
				if err != nil {
					t.Error(err)
					return
				}
				order <- owner
				leave()
			}()
			synctest.Wait()
		}
		leaveB()
		synctest.Wait()
		leaveA()
		synctest.Wait()
		close(order)
		for _, want := range []string{"c", "d", "a", "a"} {
			if got := <-order; got != want {
				t.Errorf("a place went to %q, want %q", got, want)
			}
		}
		if g.in != 1 || len(g.byOne) != 1 || g.byOne["a"] != 1 || len(g.queue) != 0 {
			t.Errorf("%d are in, %v, %d wait", g.in, g.byOne, len(g.queue))
		}
	})
}
