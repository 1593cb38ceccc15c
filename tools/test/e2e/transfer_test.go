package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

func testTransfer(t *testing.T, d *deployment) {
	t.Run("export", func(t *testing.T) { testExport(t, d) })
	t.Run("export of many", func(t *testing.T) { testExportOfMany(t, d) })
	t.Run("export's cells", func(t *testing.T) { testExportCells(t, d) })
	t.Run("import", func(t *testing.T) { testImport(t, d) })
	t.Run("import's mistakes", func(t *testing.T) { testImportMistakes(t, d) })
	t.Run("import's addresses", func(t *testing.T) { testImportAddresses(t, d) })
	t.Run("import's limits", func(t *testing.T) { testImportLimits(t, d) })
	t.Run("import beside others", func(t *testing.T) { testImportBeside(t, d) })
	t.Run("tier", func(t *testing.T) {
		// Every active tier may export and import; a trial counts as Pro.
		o := d.owner(t)
		id := o.waitlist(t, nil)
		d.setTier(t, o, "basic", "active")
		o.imports(t, id, []any{Obj{"email": address("x")}}).WantJSON("imported", 1)
		if rows := o.export(t, id); len(rows) != 1 {
			t.Errorf("%d rows", len(rows))
		}
	})
}

// columns returns the export's columns before and after those of the questions.
func columns() (before, behind []string) {
	before = []string{
		"email", "first_name", "last_name", "phone", "position", "referral_count", "referral_token", "referred_by",
		"utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content",
	}
	behind = []string{
		"email_opt_out", "email_opt_out_at", "consent_given_at", "consent_text_version", "privacy_policy_version", "email_verified",
		"created_at",
	}
	return before, behind
}

// parse parses a file strictly and returns the header and the rows.
func parse(t testing.TB, file []byte) (header []string, rows [][]string) {
	t.Helper()
	if !bytes.HasSuffix(file, []byte("\r\n")) {
		t.Fatalf("the file does not end with CRLF: %q", clip(file[max(0, len(file)-100):]))
	}
	records, err := csv.NewReader(bytes.NewReader(file)).ReadAll()
	if err != nil {
		t.Fatalf("%v: %s", err, clip(file))
	}
	return records[0], records[1:]
}

// export downloads the list and returns each row by column name. Of columns with the same name the last one counts.
func (o *owner) export(t testing.TB, id string) []map[string]string {
	t.Helper()
	header, rows := parse(t, o.Do(t, Get("/waitlists/"+id+"/export").As(o.token)).Want(http.StatusOK).Body)
	var out []map[string]string
	for i, row := range rows {
		m := map[string]string{}
		for j, name := range header {
			m[name] = row[j]
		}
		if m["position"] != strconv.Itoa(i+1) {
			t.Errorf("row %d has position %s", i+1, m["position"])
		}
		out = append(out, m)
	}
	return out
}

// imports imports rows, all of which must be valid.
func (o *owner) imports(t testing.TB, id string, rows []any) *Response {
	t.Helper()
	return o.Do(t, importRequest(id, rows).As(o.token)).Want(http.StatusOK)
}

// importRequest returns an import. Imports of many rows skip the contract check, which would take longer than the import.
func importRequest(id string, rows []any) Request {
	r := Post("/waitlists/"+id+"/import", Obj{"signups": rows})
	if len(rows) > 1000 {
		return r.Invalid()
	}
	return r
}

// strangers returns n rows with fresh addresses that sort in their order.
func strangers(n int) (rows []any, emails []string) {
	run := address("")
	for i := range n {
		emails = append(emails, fmt.Sprintf("r%06d%s", i, run))
		rows = append(rows, Obj{"email": emails[i]})
	}
	return rows, emails
}

func testExport(t *testing.T, d *deployment) {
	o := d.owner(t)
	const consent = "I agree to the [terms](https://example.com/terms)."
	questions := []any{
		Obj{"id": "why", "label": "Why?", "type": "text"},
		Obj{"id": "gone", "label": "Gone", "type": "text"},
		Obj{"id": "size", "label": "Same", "type": "dropdown", "options": []any{"S", "L"}},
		Obj{"id": "terms", "label": "Same", "type": "checkbox"},
	}
	id := o.waitlist(t, Obj{
		"phone_field": "optional", "hide_position": true, "position_offset": 500, "require_consent": true, "consent_text": consent,
		"require_email_verification": true, "custom_questions": questions,
	})
	before, behind := columns()
	labels := []string{"Why?", "Gone", "Same", "Same (terms)"}
	path := "/waitlists/" + id + "/export"
	t.Run("empty list", func(t *testing.T) {
		r := o.Do(t, Get(path).As(o.token)).Want(http.StatusOK)
		if want := strings.Join(slices.Concat(before, labels, behind), ",") + "\r\n"; string(r.Body) != want {
			t.Errorf("%q, want %q", r.Body, want)
		}
	})
	ada, bob := address("ada"), address("bob")
	first := o.join(t, id, ada, Obj{"consent": true, "custom_answers": Obj{"terms": false, "size": "S"}})
	second := o.join(t, id, bob, Obj{
		"first_name": "Bob", "last_name": "Ross", "phone": "+4930123456", "referred_by_token": first.Str("referral_token"), "consent": true,
		"utm_source": "news", "utm_medium": "mail", "utm_campaign": "launch", "utm_term": "list", "utm_content": "top",
		"custom_answers": Obj{"why": "So", "gone": "Lost", "terms": true, "size": "L"},
	})
	o.Do(t, Get(statusPath(id, bob)+"/verify?token="+url.QueryEscape(d.server.AwaitMails(t, bob, 1)[0].Token()))).Want(http.StatusOK)
	o.Do(t, Post("/public/waitlists/"+id+"/unsubscribe", Obj{"email": bob, "token": d.unsubscribeToken(t, id, bob)})).Want(http.StatusOK)
	// A removed question takes its answers with it.
	o.set(t, id, Obj{"custom_questions": slices.Delete(questions, 1, 2)})
	labels = []string{"Why?", "Same", "Same (terms)"}
	var list page
	o.Do(t, Get("/waitlists/"+id+"/signups").As(o.token)).Want(http.StatusOK).Decode(&list)

	r := o.Do(t, Get(path).As(o.token)).Want(http.StatusOK)
	if got := r.Header.Get("Content-Type"); got != "text/csv; charset=utf-8" {
		t.Errorf("Content-Type %q", got)
	}
	if got := r.Header.Get("Content-Disposition"); !strings.HasPrefix(got, "attachment; filename=") || !strings.Contains(got, ".csv") {
		t.Errorf("Content-Disposition %q", got)
	}
	header, rows := parse(t, r.Body)
	if want := slices.Concat(before, labels, behind); !slices.Equal(header, want) {
		t.Fatalf("columns %q, want %q", header, want)
	}
	sum := sha256.Sum256([]byte(consent))
	version := hex.EncodeToString(sum[:])[:12]
	want := [][]string{
		{
			ada, "", "", "", "1", "1", first.Str("referral_token"), "", "", "", "", "", "", "", "S", "false",
			"false", "", first.Str("created_at"), version, "", "false", first.Str("created_at"),
		},
		{
			bob, "Bob", "Ross", "+4930123456", "2", "0", second.Str("referral_token"), first.Str("referral_token"),
			"news", "mail", "launch", "list", "top", "So", "L", "true",
			"true", list.Signups[1].EmailOptOutAt, second.Str("created_at"), version, "", "true", second.Str("created_at"),
		},
	}
	consentAt := slices.Index(header, "consent_given_at")
	for i := range want {
		// The consent is about as old as the signup.
		given, err := time.Parse("2006-01-02T15:04:05.000Z", rows[i][consentAt])
		created, _ := time.Parse("2006-01-02T15:04:05.000Z", want[i][consentAt])
		if err != nil || created.Sub(given).Abs() > time.Minute {
			t.Errorf("consent_given_at %q, signed up at %s: %v", rows[i][consentAt], created, err)
		}
		rows[i][consentAt] = want[i][consentAt]
		if !slices.Equal(rows[i], want[i]) {
			t.Errorf("row %q,\nwant %q", rows[i], want[i])
		}
	}
	t.Run("credentials", func(t *testing.T) {
		file := string(r.Body)
		for name, with := range map[string]Request{
			"key": Get(path).Key(o.key), "token in the query": Get(path).query("token", o.token),
			"blank header": Get(path+"?token="+o.token).With("Authorization", ""),
		} {
			if got := o.Do(t, with).Want(http.StatusOK); string(got.Body) != file {
				t.Errorf("%s: the file differs", name)
			}
		}
		for _, bad := range []string{"", "x", o.key, o.refresh, o.token + "x"} {
			o.Do(t, Get(path).query("token", bad)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		}
		// The header takes precedence, and only the export reads the query.
		o.Do(t, Get(path).query("token", o.token).As("x")).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		o.Do(t, Get("/waitlists/"+id+"/stats").query("token", o.token)).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
	})
	t.Run("HEAD", func(t *testing.T) {
		for _, r := range []Request{
			NewRequest(http.MethodHead, path, nil).As(o.token), NewRequest(http.MethodHead, path, nil).query("token", o.token),
		} {
			res := o.Do(t, r).Want(http.StatusOK)
			if got := res.Header.Get("Content-Type"); got != "text/csv; charset=utf-8" {
				t.Errorf("Content-Type %q", got)
			}
		}
		o.Do(t, NewRequest(http.MethodHead, path, nil)).Want(http.StatusUnauthorized)
	})
	t.Run("after a move and a removal", func(t *testing.T) {
		eve := address("eve")
		o.join(t, id, eve, Obj{"consent": true})
		o.move(t, id, eve, 1).Want(http.StatusOK)
		o.remove(t, id, ada)
		var got []string
		for _, row := range o.export(t, id) {
			got = append(got, row["email"])
		}
		if !slices.Equal(got, []string{eve, bob}) {
			t.Errorf("%v", got)
		}
	})
	t.Run("without questions", func(t *testing.T) {
		o.set(t, id, Obj{"custom_questions": []any{}})
		if header, _ := parse(t, o.Do(t, Get(path).As(o.token)).Body); !slices.Equal(header, slices.Concat(before, behind)) {
			t.Errorf("%q", header)
		}
	})
}

// testExportCells checks that no cell runs as a formula in a spreadsheet or breaks a CSV parser.
func testExportCells(t *testing.T, d *deployment) {
	o := d.owner(t)
	texts := []string{
		"=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "=", "+", "-", "@", "\t", "x=1", " =1", "'=1", "'", "a,b", "a;b", `say "hi"`,
		`"`, `""`, "two\nlines",
		"two\r\nlines", "=two\r\nlines", "\"=1\"", "Zoë 🚀", "null", "true", "007", "1e5", `=HYPERLINK("http://example.com","x")`,
		"\u00a0=1", "＝1", "＋1", "－1", "＠SUM(A1)", "a;=1", "a\t=1", `\`, "a\\,b", "#REF!",
	}
	safe := func(s string) string {
		if first, _ := utf8.DecodeRuneInString(s); strings.ContainsRune("=+-@\t\r＝＋－＠", first) {
			return "'" + s
		}
		return s
	}
	labels := []string{"=cmd|' /C calc'!A0", `with "quotes", a comma`, "two\nlines", "-1", "Why?"}
	id := o.waitlist(t, Obj{"phone_field": "optional", "custom_questions": repeated(len(labels), func(i int) any {
		return Obj{"id": fmt.Sprint("q", i), "label": labels[i], "type": "text"}
	})})
	var people []string
	for i, s := range texts {
		people = append(people, address(fmt.Sprint("p", i)))
		o.join(t, id, people[i], Obj{
			"first_name": "n" + s, "last_name": s, "utm_source": s, "utm_medium": s, "utm_campaign": s, "utm_term": s, "utm_content": s,
			"custom_answers": Obj{"q4": s, "q0": s},
		})
	}
	rows := o.export(t, id)
	if len(rows) != len(texts) {
		t.Fatalf("%d rows, want %d", len(rows), len(texts))
	}
	// Stored values may be trimmed; the list has them as stored.
	list := o.page(t, id, 100, "").Signups
	for i, s := range texts {
		row, stored := rows[i], list[i]
		answers := Obj{}
		if err := json.Unmarshal(stored.CustomAnswers, &answers); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"email": stored.Email, "last_name": stored.LastName, "Why?": answers["q4"], safe(labels[0]): answers["q0"]}
		maps.Copy(want, stored.UTM)
		for column, v := range want {
			// An empty text needs no apostrophe, and CSV parsers read \r\n as \n.
			text, _ := v.(string)
			if text != "" {
				text = safe(text)
			}
			if text = strings.ReplaceAll(text, "\r\n", "\n"); row[column] != text {
				t.Errorf("%q: %s is %q, want %q", s, column, row[column], text)
			}
		}
	}
	header, _ := parse(t, o.Do(t, Get("/waitlists/"+id+"/export").As(o.token)).Body)
	if got := header[13:18]; !slices.Equal(got, []string{"'" + labels[0], labels[1], "two lines", "'-1", "Why?"}) {
		t.Errorf("labels %q", got)
	}
	t.Run("phones and addresses", func(t *testing.T) {
		id := o.waitlist(t, Obj{"phone_field": "optional"})
		cases := []struct{ email, phone, cellEmail, cellPhone string }{
			{"a", "+4930123456", "a", "+4930123456"},
			{"b", "+49 30 123456", "b", "'+49 30 123456"},
			{"c", "+", "c", "'+"},
			{"d", "-49", "d", "'-49"},
			{"e", "030/123456", "e", "030/123456"},
			{"f", "=1", "f", "'=1"},
			{"g", "+1=1", "g", "'+1=1"},
			{"=h", "+49\n30", "'=h", "'+49\n30"},
			{"+i", "+٣", "'+i", "'+٣"},
			{"-j", "@1", "'-j", "'@1"},
		}
		for _, c := range cases {
			o.join(t, id, c.email+"@example.com", Obj{"phone": c.phone})
		}
		rows := o.export(t, id)
		for i, c := range cases {
			if got := rows[i]["email"]; got != c.cellEmail+"@example.com" {
				t.Errorf("%s: %q", c.email, got)
			}
			if got := rows[i]["phone"]; got != c.cellPhone {
				t.Errorf("phone %q: %q, want %q", c.phone, got, c.cellPhone)
			}
		}
	})
}

// testExportOfMany checks that an export shows the queue at one moment whatever happens meanwhile, and that slow or vanished
// clients hold no resources.
func testExportOfMany(t *testing.T, d *deployment) {
	o := d.owner(t)
	o.HTTP.Timeout = 2 * time.Minute
	id := o.waitlist(t, nil)
	rows, emails := strangers(60_000)
	o.imports(t, id, rows).WantJSON("imported", len(rows))
	path := "/waitlists/" + id + "/export"
	t.Run("while the list changes", func(t *testing.T) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				email := emails[len(emails)-1-i%1000]
				if r, err := o.Send(t.Context(), Patch(signupPath(id, email)+"/position", Obj{"position": 1 + i*97%len(emails)}).
					As(o.token)); err != nil || r.Status != http.StatusOK {
					t.Errorf("%v %v", r, err)
					return
				}
			}
		})
		for range 3 {
			seen := map[string]bool{}
			for _, row := range o.export(t, id) {
				seen[row["email"]] = true
			}
			if len(seen) != len(emails) {
				t.Errorf("the file has %d people, want %d", len(seen), len(emails))
			}
		}
		close(stop)
		wg.Wait()
	})
	t.Run("clients that stop reading", func(t *testing.T) {
		var open []io.Closer
		refused := false
		for range 64 {
			res := o.begin(t, path)
			if res.StatusCode == http.StatusTooManyRequests {
				if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || n < 1 {
					t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
				}
				_ = res.Body.Close()
				refused = true
				break
			}
			if res.StatusCode != http.StatusOK {
				t.Fatalf("status %d", res.StatusCode)
			}
			open = append(open, res.Body)
		}
		if !refused {
			t.Errorf("%d exports ran at once", len(open))
		}
		t.Logf("%d exports ran at once", len(open))
		// Other requests continue meanwhile.
		for range 20 {
			if r := o.join(t, id, address("x")); r.Took > 5*time.Second {
				t.Errorf("%s took %s", r.Request, r.Took)
			}
			o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).Want(http.StatusOK)
		}
		for _, c := range open {
			_ = c.Close()
		}
		Await(t, time.Minute, "an export after the others' clients have gone", func() bool {
			return o.Do(t, Get(path).As(o.token)).Status == http.StatusOK
		})
	})
	t.Run("first byte", func(t *testing.T) {
		// The bench measures the contract's bound; this checks the order of magnitude.
		start := time.Now()
		res := o.begin(t, path)
		defer res.Body.Close()
		if _, err := io.ReadFull(res.Body, make([]byte, 100)); err != nil || time.Since(start) > 5*time.Second {
			t.Errorf("the first byte took %s: %v", time.Since(start), err)
		}
	})
}

// begin sends a GET and returns when the headers of the answer have arrived. The caller closes the body.
func (o *owner) begin(t testing.TB, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.Base+basePath+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+o.token)
	res, err := o.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func testImport(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{"require_email_verification": true, "phone_field": "optional"})
	ada, bob, eve, joe := address("ada"), address("bob"), address("eve"), address("joe")
	adas := o.join(t, id, ada, Obj{"first_name": "Ada"}).Str("referral_token")
	d.server.AwaitMails(t, ada, 1)
	r := o.imports(t, id, []any{
		Obj{"email": " " + strings.ToUpper(bob) + " ", "first_name": " Bob ", "last_name": "Ross", "phone": " +4930123456 ", "unknown": 1},
		Obj{"email": strings.ToUpper(ada), "first_name": "Other"},
		Obj{"email": "nobody", "first_name": "x"},
		Obj{"email": eve},
		Obj{"email": bob, "first_name": "Again"},
		Obj{"first_name": "without"},
		Obj{"email": nil},
		Obj{"email": ""},
		Obj{"email": joe, "first_name": nil, "last_name": "", "phone": nil},
	})
	r.WantJSON("imported", 3).WantJSON("skipped", 2)
	if got := importErrors(r); canonical(got) != canonical([]string{"3 nobody", "6 ", "7 ", "8 "}) {
		t.Errorf("errors %q", got)
	}
	t.Run("as signups", func(t *testing.T) {
		if got := o.emails(t, id); !slices.Equal(got, []string{ada, bob, eve, joe}) {
			t.Fatalf("list %v", got)
		}
		list := o.page(t, id, 100, "").Signups
		if s := list[0]; s.FirstName != "Ada" {
			t.Errorf("an existing signup was changed: %+v", s)
		}
		if s := list[1]; s.FirstName != "Bob" || s.LastName != "Ross" || s.Phone != "+4930123456" || s.ReferralCount != 0 ||
			s.ReferredBy != "" || s.EmailVerified || s.EmailOptOut || s.DeviceType != "" || len(s.ReferralToken) != 32 {
			t.Errorf("%+v", s)
		}
		if age := o.status(t, id, eve).Time("created_at"); time.Since(age).Abs() > time.Minute {
			t.Errorf("created at %s", age)
		}
		for i, email := range []string{ada, bob, eve, joe} {
			o.status(t, id, email).WantJSON("position", i+1).WantJSON("total_signups", 4)
		}
		o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("signup_count", 4)
		o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("total_signups", 4).WantJSON("referral_signups", 0)
		o.Do(t, signup(id, eve, Obj{"first_name": "x"})).Want(http.StatusOK).WantJSON("first_name", "")
		o.join(t, id, address("friend"), Obj{"referred_by_token": list[3].ReferralToken}).WantJSON("position", 5)
		o.status(t, id, joe).WantJSON("position", 3).WantJSON("referral_count", 1)
		o.join(t, id, address("friend"), Obj{"referred_by_token": adas}).WantJSON("position", 6)
		o.move(t, id, eve, 1).Want(http.StatusOK)
		d.deleteMyData(t, o.Client, id, eve)
		o.remove(t, id, joe)
		o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("total_signups", 5).WantJSON("referral_signups", 2)
	})
	t.Run("again", func(t *testing.T) {
		rows := []any{Obj{"email": ada}, Obj{"email": bob}}
		o.imports(t, id, rows).WantJSON("imported", 0).WantJSON("skipped", 2).WantJSON("errors", []any{})
		// A removed person joins again, at the end.
		o.imports(t, id, append(rows, Obj{"email": eve})).WantJSON("imported", 1).WantJSON("skipped", 2)
		o.status(t, id, eve).WantJSON("position", 5)
	})
	t.Run("nothing", func(t *testing.T) {
		o.Do(t, importRequest(id, []any{}).Key(o.key)).Want(http.StatusOK).WantJSON("imported", 0).WantJSON("skipped", 0).
			WantJSON("errors", []any{})
	})
	t.Run("rules of the form do not apply", func(t *testing.T) {
		id := o.waitlist(t, Obj{
			"name_field": "required", "phone_field": "required", "require_consent": true, "exclude_personal_emails": true,
			"allowed_email_domains": []any{"acme.com"}, "custom_questions": []any{question("q", Obj{"required": true})}, "status": "closed",
		})
		o.imports(t, id, []any{Obj{"email": "ada@gmail.com"}, Obj{"email": "ada@example.org"}}).WantJSON("imported", 2)
		o.Do(t, signup(id, "ada@gmail.com")).WantError(http.StatusForbidden, "WAITLIST_CLOSED")
		if rows := o.export(t, id); rows[0]["consent_given_at"] != "" || rows[0]["email"] != "ada@gmail.com" {
			t.Errorf("%v", rows)
		}
	})
	t.Run("imported people get no mail", func(t *testing.T) {
		// A later signup gets its mail; by then the others would have got theirs.
		d.server.AwaitMails(t, o.join(t, id, address("late")).Str("email"), 1)
		for _, email := range []string{bob, eve, joe} {
			if mails, err := d.server.Mails(email); err != nil || len(mails) > 0 {
				t.Errorf("%d mails to an imported address, %v", len(mails), err)
			}
		}
	})
}

// importErrors returns the entries as "row email", and requires a reason for each.
func importErrors(r *Response) []string {
	var b struct {
		Errors []struct {
			Row   int    `json:"row"`
			Email string `json:"email"`
			Error string `json:"error"`
		} `json:"errors"`
	}
	r.Decode(&b)
	out := []string{}
	for _, e := range b.Errors {
		out = append(out, fmt.Sprintf("%d %s", e.Row, e.Email))
	}
	return out
}

// testImportMistakes checks that mistakes that reject the whole import change nothing.
func testImportMistakes(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	good := Obj{"email": address("good")}
	for _, tc := range []struct {
		name   string
		body   Obj
		fields []string
	}{
		{"missing", Obj{}, []string{"signups"}},
		{"null", Obj{"signups": nil}, []string{"signups"}},
		{"object", Obj{"signups": good}, []string{"signups"}},
		{"string", Obj{"signups": "x"}, []string{"signups"}},
		{"number", Obj{"signups": 5}, []string{"signups"}},
		{
			"rows that are not objects",
			Obj{"signups": []any{good, 5, nil, "x", []any{}, true}},
			[]string{"signups[1]", "signups[2]", "signups[3]", "signups[4]", "signups[5]"},
		},
		{"wrong types", Obj{"signups": []any{good, Obj{"email": 5, "first_name": true, "last_name": []any{}, "phone": 1.5}}}, []string{
			"signups[1].email", "signups[1].first_name", "signups[1].last_name", "signups[1].phone",
		}},
		{"long", Obj{"signups": []any{
			Obj{
				"email": address("x"), "first_name": strings.Repeat(emoji, 101), "last_name": strings.Repeat("x", 101),
				"phone": strings.Repeat("1", 33),
			}, good,
		}}, []string{"signups[0].first_name", "signups[0].last_name", "signups[0].phone"}},
		{"U+0000", Obj{"signups": []any{Obj{"email": address("x"), "first_name": "a\x00", "last_name": "\x00", "phone": "1\x00"}}}, []string{
			"signups[0].first_name", "signups[0].last_name", "signups[0].phone",
		}},
		{"beside a bad address", Obj{"signups": []any{Obj{"email": "nobody"}, Obj{"email": "nobody", "phone": 5}}}, []string{"signups[1].phone"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o.Do(t, Post("/waitlists/"+id+"/import", tc.body).As(o.token).Invalid()).Invalid(tc.fields...)
		})
	}
	t.Run("many mistakes", func(t *testing.T) {
		r := o.Do(t, importRequest(id, repeated(1000, func(int) any { return 5 })).As(o.token).Invalid()).
			WantError(http.StatusBadRequest, "VALIDATION_ERROR")
		if n := len(r.Fields()); n < 1 || n > 50 {
			t.Errorf("%d entries, want at most 50", n)
		}
	})
	if got := o.emails(t, id); len(got) != 0 {
		t.Errorf("stored anyway: %v", got)
	}
	o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("signup_count", 0)
	t.Run("maximum lengths", func(t *testing.T) {
		o.imports(t, id, []any{Obj{
			"email": long(254), "first_name": strings.Repeat(emoji, 100),
			"last_name": strings.Repeat("x", 100), "phone": strings.Repeat("1", 32),
		}}).
			WantJSON("imported", 1)
	})
	t.Run("lone surrogates and duplicate keys", func(t *testing.T) {
		email := address("last")
		r := importRequest(id, nil).Raw([]byte(`{"signups":5,"signups":[{"email":5,"first_name":"a\ud800b","email":"` + email + `"}]}`))
		o.Do(t, r.As(o.token).With("Content-Type", "application/json")).Want(http.StatusOK).WantJSON("imported", 1)
		o.status(t, id, email).WantJSON("first_name", "a\ufffdb")
	})
}

func testImportAddresses(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	bad := badAddresses()
	rows := repeated(len(bad), func(i int) any { return Obj{"email": bad[i]} })
	r := o.imports(t, id, rows).WantJSON("imported", 0).WantJSON("skipped", 0)
	want := []string{}
	for i, email := range bad {
		want = append(want, fmt.Sprintf("%d %s", i+1, email))
	}
	if got := importErrors(r); canonical(got) != canonical(want) {
		t.Errorf("errors %q,\nwant %q", got, want)
	}
	o.imports(t, id, []any{Obj{"email": "ada@Bücher.example"}, Obj{"email": "ADA@xn--bcher-kva.example"}, Obj{"email": "a/b'c@example.com"}}).
		WantJSON("imported", 2).WantJSON("skipped", 1)
	if got := o.emails(t, id); !slices.Equal(got, []string{"ada@xn--bcher-kva.example", "a/b'c@example.com"}) {
		t.Errorf("list %v", got)
	}
	t.Run("more than fifty", func(t *testing.T) {
		// Valid and invalid rows alternate; every tenth row is a duplicate.
		var rows []any
		first := address("first")
		for i := range 200 {
			switch {
			case i%2 == 1:
				rows = append(rows, Obj{"email": fmt.Sprint("bad", i)})
			case i%20 == 0:
				rows = append(rows, Obj{"email": first})
			default:
				rows = append(rows, Obj{"email": address("good")})
			}
		}
		r := o.imports(t, id, rows).WantJSON("imported", 91).WantJSON("skipped", 9)
		got := importErrors(r)
		if len(got) != 50 || got[0] != "2 bad1" || got[49] != "100 bad99" {
			t.Errorf("%d errors, from %q to %q", len(got), got[0], got[len(got)-1])
		}
		if n := len(o.emails(t, id)); n != 93 {
			t.Errorf("%d on the list", n)
		}
	})
}

func testImportLimits(t *testing.T, d *deployment) {
	o := d.owner(t)
	o.HTTP.Timeout = 2 * time.Minute
	id := o.waitlist(t, nil)
	request := importRequest(id, nil).As(o.token).Invalid()
	t.Run("bodies", func(t *testing.T) {
		template := `{"signups":[{"email":"` + address("x") + `"}]%s}`
		testBodiesUpTo(t, o.Client, request, template, http.StatusOK, 32<<20)
	})
	t.Run("100,000 rows", func(t *testing.T) {
		id := o.waitlist(t, nil)
		rows, emails := strangers(100_000)
		o.Do(t, importRequest(id, append(rows, Obj{"email": address("x")})).As(o.token)).Invalid("signups")
		o.Do(t, Get("/waitlists/"+id).As(o.token)).WantJSON("signup_count", 0)
		o.imports(t, id, rows).WantJSON("imported", 100_000).WantJSON("skipped", 0)
		o.imports(t, id, rows).WantJSON("imported", 0).WantJSON("skipped", 100_000)
		o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("total_signups", 100_000)
		o.Do(t, Get("/public/waitlists/"+id+"/count")).WantJSON("count", 100_000)
		got := o.export(t, id)
		for i, email := range emails {
			if got[i]["email"] != email {
				t.Fatalf("position %d has %s, want %s", i+1, got[i]["email"], email)
			}
		}
		o.status(t, id, emails[54_321]).WantJSON("position", 54_322)
		o.join(t, id, address("late")).WantJSON("position", 100_001)
	})
	t.Run("too many at once", func(t *testing.T) {
		// Bodies that never end, small ones first: only the part received so far may keep others out.
		var open []*io.PipeWriter
		var wg sync.WaitGroup
		refused := make(chan *http.Response, 1)
		ctx, cancel := context.WithCancel(t.Context())
		upload := func(size int) {
			body, w := io.Pipe()
			open = append(open, w)
			wg.Go(func() {
				defer func() { _ = body.Close() }()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.Base+basePath+"/waitlists/"+id+"/import", body)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+o.token)
				if res, err := o.HTTP.Do(req); err == nil {
					_ = res.Body.Close()
					select {
					case refused <- res:
					default:
					}
				}
			})
			wg.Go(func() { // ends when the pipe is closed
				tick := time.NewTicker(100 * time.Millisecond)
				defer tick.Stop()
				_, err := io.WriteString(w, `{"signups":[`+strings.Repeat(" ", size))
				for err == nil {
					<-tick.C
					_, err = io.WriteString(w, " ")
				}
			})
		}
		for range 16 {
			upload(0)
		}
		o.Do(t, importRequest(id, []any{}).As(o.token)).Want(http.StatusOK)
		// More imports than two replicas accept at a time.
		for range 16 {
			upload(24 << 20)
		}
		select {
		case res := <-refused:
			if n, err := strconv.Atoi(res.Header.Get("Retry-After")); res.StatusCode != http.StatusTooManyRequests || err != nil || n < 1 {
				t.Errorf("status %d, Retry-After %q", res.StatusCode, res.Header.Get("Retry-After"))
			}
		case <-time.After(time.Minute):
			t.Error("no large import was rejected")
		}
		cancel()
		for _, w := range open {
			_ = w.CloseWithError(errors.New("gone"))
		}
		wg.Wait()
		Await(t, time.Minute, "an import after the others' clients have gone", func() bool {
			return o.Do(t, importRequest(id, []any{}).As(o.token)).Status == http.StatusOK
		})
	})
}

// testImportBeside checks that concurrent imports, signups and removals leave an exact list.
func testImportBeside(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	rows, emails := strangers(6000)
	var mu sync.Mutex
	imported, skipped := int64(0), int64(0)
	joined := map[string]bool{}
	var wg sync.WaitGroup
	for range 2 { // send the same file twice
		wg.Go(func() {
			r, err := o.Send(t.Context(), importRequest(id, rows).As(o.token))
			if err != nil || r.Status != http.StatusOK {
				t.Errorf("%v %v", r, err)
				return
			}
			r.t = t
			mu.Lock()
			defer mu.Unlock()
			imported, skipped = imported+r.Int("imported"), skipped+r.Int("skipped")
		})
	}
	for range 4 {
		wg.Go(func() {
			for range 30 {
				email := address("x")
				if r, err := o.Send(t.Context(), signup(id, email)); err != nil || r.Status != http.StatusCreated {
					t.Errorf("%v %v", r, err)
					return
				}
				mu.Lock()
				joined[email] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if imported != 6000 || skipped != 6000 {
		t.Errorf("%d imported, %d skipped", imported, skipped)
	}
	var inOrder []string
	for _, row := range o.export(t, id) {
		if !joined[row["email"]] {
			inOrder = append(inOrder, row["email"])
		}
		delete(joined, row["email"])
	}
	slices.Sort(inOrder)
	if !slices.Equal(inOrder, emails) || len(joined) > 0 {
		t.Errorf("the file has %d imported people and lacks %d signups", len(inOrder), len(joined))
	}
	o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("total_signups", 6120)
}

// testTransferInterrupted takes the database away, and kills the program, during imports and exports.
func (s *suite) testTransferInterrupted(t *testing.T) {
	whole := t // a restarted program lives as long as this test
	db, err := url.Parse(database(t))
	if err != nil {
		t.Fatal(err)
	}
	direct := db.String()
	postgres := NewProxy(t, db.Host)
	db.Host = postgres.Addr
	env := map[string]string{"POSTGRES_URL": db.String()}
	d := s.deploy(t, env)
	d.db = direct
	o := d.owner(t)
	rows, emails := strangers(40_000)
	// interrupted imports all rows, runs happen once a part is stored, and then imports all rows again.
	interrupted := func(t *testing.T, id string, happen, mend func()) {
		t.Helper()
		var wg sync.WaitGroup
		wg.Go(func() {
			r, err := o.Send(t.Context(), importRequest(id, rows).As(o.token))
			if r == nil {
				return // the connection ended with the program
			}
			if err != nil || (r.Status != http.StatusInternalServerError && r.Status != http.StatusOK) {
				t.Errorf("%v %v", r, err)
			}
		})
		Await(t, time.Minute, "a part of the rows", func() bool { return d.count(t, id) > 0 })
		happen()
		wg.Wait()
		t.Logf("%d rows when it ended", d.count(t, id))
		mend()
		var r *Response
		Await(t, time.Minute, "the import again", func() bool {
			var err error
			r, err = o.Send(t.Context(), importRequest(id, rows).As(o.token))
			return err == nil && r.Status == http.StatusOK
		})
		r.t = t
		if n := r.Int("imported") + r.Int("skipped"); n != int64(len(rows)) {
			t.Errorf("%d of %d rows accounted for", n, len(rows))
		}
		for i, row := range o.export(t, id) {
			if row["email"] != emails[i] {
				t.Fatalf("position %d has %s, want %s", i+1, row["email"], emails[i])
			}
		}
		if n := d.count(t, id); n != len(rows) {
			t.Errorf("%d on the list, want %d", n, len(rows))
		}
		o.Do(t, Get("/waitlists/"+id+"/stats").As(o.token)).WantJSON("total_signups", len(rows))
	}
	ready := func() {
		Await(t, time.Minute, "ready again", func() bool {
			status, err := d.server.ready(t.Context())
			return err == nil && status == http.StatusOK
		})
	}
	id := o.waitlist(t, nil)
	t.Run("import, database cut", func(t *testing.T) {
		interrupted(t, id, postgres.Cut, func() { postgres.Pass(); ready() })
	})
	t.Run("export, database cut", func(t *testing.T) {
		// Read slowly, so that something is left to read when the database goes away.
		res := o.begin(t, "/waitlists/"+id+"/export")
		defer res.Body.Close()
		got := 0
		buf := make([]byte, 32<<10)
		for err == nil {
			var n int
			if n, err = res.Body.Read(buf); got == 0 {
				postgres.Cut()
			}
			got += n
		}
		whole := len(rows) * 100
		if errors.Is(err, io.EOF) && got < whole {
			t.Errorf("a truncated file of %d bytes ended without an error", got)
		}
		t.Logf("%d bytes, %v", got, err)
		postgres.Pass()
		ready()
		if n := len(o.export(t, id)); n != len(rows) {
			t.Errorf("%d rows afterwards", n)
		}
	})
	t.Run("import, program killed", func(t *testing.T) {
		interrupted(t, o.waitlist(t, nil), d.server.Kill, func() { d.restart(whole) })
	})
	t.Run("waitlist deleted midway", func(t *testing.T) {
		id := o.waitlist(t, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			r, err := o.Send(t.Context(), importRequest(id, rows).As(o.token))
			if err != nil || (r.Status != http.StatusNotFound && r.Status != http.StatusOK) {
				t.Errorf("%v %v", r, err)
			}
		})
		Await(t, time.Minute, "a part of the rows", func() bool { return d.count(t, id) > 0 })
		o.Do(t, Delete("/waitlists/"+id).As(o.token)).Want(http.StatusNoContent)
		o.Do(t, Get("/waitlists/"+id+"/export").As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
		wg.Wait()
	})
}
