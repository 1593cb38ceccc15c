package signup_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// export is the whole file.
func (w *world) export(t *testing.T) string {
	t.Helper()
	var file strings.Builder
	if err := w.admin.Export(t.Context(), w.owner, w.list.ID, func(b []byte) error { file.Write(b); return nil }); err != nil {
		t.Fatal(err)
	}
	return file.String()
}

// pieces hands out a body in pieces of n bytes.
func pieces(raw []byte, n int) func() ([]byte, error) {
	return func() ([]byte, error) {
		if len(raw) == 0 {
			return nil, io.EOF
		}
		piece := raw[:min(n, len(raw))]
		raw = raw[len(piece):]
		return piece, nil
	}
}

func (w *world) imports(ctx context.Context, body string) (owners.Imported, error) {
	return w.admin.Import(ctx, w.owner, w.list.ID, pieces([]byte(body), 1000))
}

// TestExport checks the columns of the file and their order.
func TestExport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.exec(t, `UPDATE waitlist SET settings = $2 WHERE id = $1`, w.list.ID, `{"custom_questions": [
		{"id": "b", "label": "Size", "type": "text"}, {"id": "a", "label": "Size", "type": "checkbox"},
		{"id": "c", "label": "=x, \"y\"", "type": "text"}]}`)
	const head = "email,first_name,last_name,phone,position,referral_count,referral_token,referred_by,utm_source,utm_medium,utm_campaign," +
		"utm_term,utm_content," +
		"Size,Size (a),\"'=x, \"\"y\"\"\",email_opt_out,email_opt_out_at,consent_given_at,consent_text_version,privacy_policy_version," +
		"email_verified,created_at"
	if got := w.export(t); got != head+"\r\n" {
		t.Errorf("of an empty list: %q", got)
	}
	w.exec(t, `UPDATE waitlist SET settings = settings || '{"referral_guard": "flag"}' WHERE id = $1`, w.list.ID)
	if got := w.export(t); got != head+",flagged\r\n" {
		t.Errorf("while the guard is on: %q", got)
	}
	w.exec(t, `UPDATE waitlist SET settings = settings - 'referral_guard' WHERE id = $1`, w.list.ID)
	at := time.Date(2026, 3, 1, 12, 0, 0, 5_999_000, time.UTC)
	plain, full := w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false)
	plain.Email, plain.Phone, plain.FirstName, plain.LastName = "=me@example.com", "+15550100", "O'Hara", "-1"
	plain.UTMSource, plain.UTMContent = "a\nb", "@x"
	plain.CreatedAt, full.CreatedAt = at, at
	w.join(t, []*queue.Join{plain})
	full.ReferredBy, full.HasReferrer = plain.Token, true
	full.Email, full.Phone, full.FirstName = "b@example.com", "+1 555", `"A", B`
	full.Answers = []byte(`{"a": true, "b": "+5, \"6\"\r\n7", "gone": "not asked any more"}`)
	full.ConsentAt, full.ConsentVersion, full.PolicyVersion = at, "0123456789ab", "=1"
	w.join(t, []*queue.Join{full})
	w.exec(t, `UPDATE signup SET email_verified_at = $2, email_opt_out_at = $2 WHERE waitlist_id = $1 AND email = 'b@example.com'`,
		w.list.ID, at)
	w.exec(t, `INSERT INTO flagged (waitlist_id, number, reasons) VALUES ($1, 2, 'disposable_domain,velocity')`, w.list.ID)
	w.move(t, 1, 1)

	want := head + ",flagged\r\n" +
		"b@example.com,\"\"\"A\"\", B\",,'+1 555,1,0," + full.Token.String() + "," + plain.Token.String() + ",,,,,," +
		"\"'+5, \"\"6\"\"\r\n7\",true,,true,2026-03-01T12:00:00.005Z,2026-03-01T12:00:00.005Z,0123456789ab,'=1,true," +
		"2026-03-01T12:00:00.005Z,\"disposable_domain,velocity\"\r\n" +
		"'=me@example.com,O'Hara,'-1,+15550100,2,1," + plain.Token.String() + ",,\"a\nb\",,,,'@x,,,,false,,,,,false," +
		"2026-03-01T12:00:00.005Z,\r\n"
	if got := w.export(t); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestExportIsASnapshot: what happens while somebody downloads is not in the
// file, and positions have no gap.
func TestExportIsASnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	const n = 2000
	var joins []*queue.Join
	for range n {
		joins = append(joins, w.newJoin(queue.Token{}, false))
	}
	w.join(t, joins)
	var file bytes.Buffer
	sent := 0
	err := w.admin.Export(t.Context(), w.owner, w.list.ID, func(b []byte) error {
		file.Write(b)
		if sent++; sent == 1 {
			if _, _, err := w.svc.Move(t.Context(), w.list.ID, joins[n-1].Email, 1, audit.Entry{}); err != nil {
				t.Error(err)
			}
			if err := w.svc.Remove(t.Context(), w.list.ID, joins[n-2].Email, audit.Entry{}); err != nil {
				t.Error(err)
			}
			if _, err := w.imports(t.Context(), `{"signups": [{"email": "late@example.com"}]}`); err != nil {
				t.Error(err)
			}
			w.exec(t, `UPDATE waitlist SET settings = '{"custom_questions": [{"id": "a", "label": "Late", "type": "text"}]}' WHERE id = $1`,
				w.list.ID)
		}
		return nil
	})
	if err != nil || sent < 3 {
		t.Fatalf("%d pieces, %v", sent, err)
	}
	rows, err := csv.NewReader(&file).ReadAll()
	if err != nil || len(rows) != n+1 || slices.Contains(rows[0], "Late") {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, j := range joins {
		if rows[i+1][0] != j.Email || rows[i+1][4] != fmt.Sprint(i+1) {
			t.Fatalf("row %d: %v, want %s", i+1, rows[i+1], j.Email)
		}
	}
	if got := strings.Count(w.export(t), "\r\n"); got != n+1 {
		t.Errorf("afterwards %d lines", got)
	}
}

// TestExportEnds: whoever stops, goes away or fails leaves no connection, no
// transaction and no place behind.
func TestExportEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	// More than the buffers between Postgres and here hold.
	testenv.Fill(t, w.pool, `INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at, first_name)
		SELECT $1::uuid, n, n << 20, n || '@example.com', md5(n::text)::uuid, now(), repeat('x', 1000)
		    FROM generate_series(1, 30000::bigint) AS n`, w.list.ID)
	idle := func() {
		t.Helper()
		testenv.Eventually(t, "the snapshot is gone", func() bool {
			return w.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid `+
				`<> pg_backend_pid() AND $1 <> ''`) == 0
		})
		// The pool closes a broken one beside.
		testenv.Eventually(t, "no connection is in use", func() bool { return w.pool.Stat().AcquiredConns() == 0 })
	}
	failure := errors.New("cannot be written")
	for range 5 { // more than there are places
		if err := w.admin.Export(t.Context(), w.owner, w.list.ID, func([]byte) error { return failure }); !errors.Is(err, failure) {
			t.Errorf("who cannot write: %v", err)
		}
	}
	idle()

	ctx, cancel := context.WithCancel(t.Context())
	began, done := make(chan struct{}), make(chan error)
	go func() {
		var once sync.Once
		done <- w.admin.Export(ctx, w.owner, w.list.ID, func([]byte) error {
			once.Do(func() { close(began) })
			<-ctx.Done() // reads no more
			return nil
		})
	}()
	<-began
	if n := w.pool.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections are in use while downloading", n)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("who goes away: %v", err)
	}
	idle()

	// The backend dies midway.
	sent := 0
	err := w.admin.Export(t.Context(), w.owner, w.list.ID, func([]byte) error {
		if sent++; sent == 2 {
			w.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL `+
				`AND pid <> pg_backend_pid()`)
		}
		return nil
	})
	if err == nil {
		t.Error("half a file seems whole")
	}
	idle()
}

// TestTransferOrder checks the order in which faults are reported.
func TestTransferOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	member := func(role access.Role, tier access.Tier, status access.Status) access.Actor {
		return access.Actor{AccountID: "0193d4a2-5c1e-7a41-8000-000000000002", EmailVerified: true, Grants: []access.Grant{{
			OwnerID: w.list.OwnerID, Role: role, Entitlement: access.Entitlement{Tier: tier, Status: status, Trial: true, Version: 1},
		}}}
	}
	for _, tt := range []struct {
		name            string
		actor           access.Actor
		id              string
		export, imports apierr.Code
	}{
		{"no waitlist", w.owner, "0193d4a2-5c1e-7a41-8000-000000000001", apierr.NotFound, apierr.NotFound},
		{"no id", w.owner, "x", apierr.NotFound, apierr.NotFound},
		{"stranger", access.Actor{AccountID: "s"}, w.list.ID, apierr.Forbidden, apierr.Forbidden},
		{"trial is over", member(access.Owner, access.Pro, access.Inactive), w.list.ID, apierr.TrialExpired, apierr.TrialExpired},
		{"below pro", member(access.Admin, access.Advanced, access.Active), w.list.ID, apierr.TierRequired, apierr.TierRequired},
		{"viewer", member(access.Viewer, access.Pro, access.Active), w.list.ID, "", apierr.Forbidden},
		{"admin", member(access.Admin, access.Pro, access.Active), w.list.ID, "", apierr.InvalidBody},
		{"basic", member(access.Owner, access.Basic, access.Active), w.list.ID, "", apierr.InvalidBody},
		{"no plan", member(access.Owner, "", access.Active), w.list.ID, apierr.TierRequired, apierr.InvalidBody},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sent int
			err := w.admin.Export(t.Context(), tt.actor, tt.id, func([]byte) error { sent++; return nil })
			if tt.export == "" && (err != nil || sent == 0) || tt.export != "" && (!apierr.Is(err, tt.export) || sent > 0) {
				t.Errorf("export: %v, %d pieces", err, sent)
			}
			if _, err := w.admin.Import(t.Context(), tt.actor, tt.id, pieces([]byte("{"), 1)); !apierr.Is(err, tt.imports) {
				t.Errorf("import: %v", err)
			}
		})
	}
	body := []byte(`{"signups": []}`)
	if _, err := w.admin.Import(t.Context(), member(access.Owner, "", access.Active), w.list.ID, pieces(body, 1)); !apierr.Is(err,
		apierr.TierRequired) {
		t.Errorf("good body without a plan: %v", err)
	}
	if res, err := w.admin.Import(t.Context(), member(access.Owner, access.Basic, access.Active), w.list.ID, pieces(body, 1)); err != nil ||
		res.Imported+res.Skipped != 0 || res.Errors != nil {
		t.Errorf("nobody: %+v, %v", res, err)
	}
}

// TestImportRefuses: a body that is wrong in any place stores nothing.
func TestImportRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	many := func(n int, row string) string { return `{"signups": [` + strings.Repeat(row+",", n-1) + row + `]}` }
	var fifty []string
	for i := range 50 {
		fifty = append(fifty, fmt.Sprintf("signups[%d]", i))
	}
	long := strings.Repeat("ä", 101)
	for _, tt := range []struct {
		name, body string
		fields     []string // nil: INVALID_BODY
	}{
		{"empty", ``, nil},
		{"no JSON", `{"signups": [}`, nil},
		{"array", `[{"email": "a@example.com"}]`, nil},
		{"trailing data", `{"signups": []} {}`, nil},
		{"half", `{"signups": [{"email": "a@example.com"}`, nil},
		{"not UTF-8", "{\"signups\": [{\"email\": \"a@example.com\", \"first_name\": \"\xff\"}]}", nil},
		{"deep", `{"signups": [` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `]}`, nil},
		{"over the limit", `{"signups": []` + strings.Repeat(" ", 32<<20-14) + `}`, nil},
		{"missing", `{}`, []string{"signups"}},
		{"null", `{"signups": null}`, []string{"signups"}},
		{"object", `{"signups": {"email": "a@example.com"}}`, []string{"signups"}},
		{"string", `{"signups": "a@example.com"}`, []string{"signups"}},
		{"too many", many(100_001, `{}`), []string{"signups"}},
		{"too many of anything", many(10_000_000, `1`), []string{"signups"}},
		{"no objects", `{"signups": [{"email": "a@example.com"}, "b@example.com", null, [], 5]}`, []string{
			"signups[1]", "signups[2]",
			"signups[3]", "signups[4]",
		}},
		{"wrong types", `{"signups": [{"email": 5, "first_name": true, "last_name": {}, "phone": []}]}`, []string{
			"signups[0].email",
			"signups[0].first_name", "signups[0].last_name", "signups[0].phone",
		}},
		{
			"too long", `{"signups": [{"email": "a@example.com"}, {"first_name": "` + long + `", "phone": "` + long[:66] + `"}]}`,
			[]string{"signups[1].first_name", "signups[1].phone"},
		},
		{"U+0000", `{"signups": [{"email": "a@example.com", "last_name": "a\u0000"}]}`, []string{"signups[0].last_name"}},
		{"wrong from the first to the last", many(100_000, `7`), fifty},
		{"last of equal names", `{"signups": [{"email": "a@example.com"}], "signups": 7}`, []string{"signups"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := w.admin.Import(t.Context(), w.owner, w.list.ID, pieces([]byte(tt.body), 64<<10))
			switch {
			case tt.fields == nil && !apierr.Is(err, apierr.InvalidBody):
				t.Errorf("%.200v", err)
			case tt.fields != nil && (!apierr.Is(err, apierr.ValidationError) || !slices.Equal(fields(err), tt.fields)):
				t.Errorf("%.200v, fields %q", err, fields(err))
			}
		})
	}
	failure := errors.New("the client has gone")
	first := true
	if _, err := w.admin.Import(t.Context(), w.owner, w.list.ID, func() ([]byte, error) {
		if first = !first; !first {
			return []byte(`{"signups": []}`), nil
		}
		return nil, failure
	}); !errors.Is(err, failure) {
		t.Errorf("whole, but broken off: %v", err)
	}
	w.check(t)
}

// TestImport: rows go to the end of the queue in their order, others are told
// apart, and only the analytics hear of it.
func TestImport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.exec(t, `UPDATE waitlist SET settings = '{"status": "closed", "name_field": "required", "allowed_email_domains": ["example.org"]}' `+
		`WHERE id = $1`, w.list.ID)
	first := w.newJoin(queue.Token{}, false)
	first.Email = "here@example.com"
	w.join(t, []*queue.Join{first})
	res, err := w.imports(t.Context(), `{"other": 1, "signups": [
		{"email": " A@Example.COM ", "first_name": " Ada ", "last_name": "Lovelace", "phone": "+15550100", "position": 1},
		{"email": "here@example.com"},
		{"email": "a@example.com", "first_name": "Second"},
		{"first_name": "nobody"},
		{"email": null},
		{"email": "  "},
		{"email": "no address"},
		{"email": "b@m\u00fcller.example", "first_name": "\ud800", "last_name": null},
		{"email": "`+strings.Repeat("x", 1000)+`"}
	]}`)
	if err != nil || res.Imported != 2 || res.Skipped != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	want := []owners.ImportError{
		{Row: 4, Message: "The email address is missing."},
		{Row: 5, Message: "The email address is missing."},
		{Row: 6, Email: "  ", Message: "The email address is missing."},
		{Row: 7, Email: "no address", Message: "The email address is not valid."},
		{Row: 9, Email: strings.Repeat("x", 320), Message: "The email address is not valid."},
	}
	if !slices.Equal(res.Errors, want) {
		t.Errorf("errors %+v", res.Errors)
	}
	rows, err := csv.NewReader(strings.NewReader(w.export(t))).ReadAll()
	if err != nil || len(rows) != 4 {
		t.Fatalf("%q, %v", rows, err)
	}
	for i, want := range [][]string{
		{"here@example.com", "", "", "", "1"}, {"a@example.com", "Ada", "Lovelace", "+15550100", "2"}, {
			"b@xn--mller-kva.example", "\ufffd",
			"", "", "3",
		},
	} {
		if !slices.Equal(rows[i+1][:5], want) {
			t.Errorf("row %d: %q, want %q", i, rows[i+1], want)
		}
	}

	var bad strings.Builder
	for i := range 60 {
		fmt.Fprintf(&bad, `,{"email": "%d"}`, i)
	}
	res, err = w.imports(t.Context(), `{"signups": [{"email": "c@example.com"}`+bad.String()+`,{"email": "c@example.com"}]}`)
	if err != nil || res.Imported != 1 || res.Skipped != 1 || len(res.Errors) != 50 || res.Errors[49].Row != 51 {
		t.Errorf("%+v, %v", res, err)
	}
	for i, e := range []string{"a@example.com", "b@xn--mller-kva.example", "c@example.com"} {
		w.queue = append(w.queue, member{number: int64(i + 2), email: e})
		w.total++
	}
	w.check(t)
}

// events returns those of the outbox, in order.
func (w *world) events(t *testing.T) (out []*eventv1.Event) {
	t.Helper()
	rows, err := w.pool.Query(t.Context(), `SELECT payloads FROM outbox WHERE key = $1 ORDER BY id`, w.list.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var payloads [][]byte
		if err := rows.Scan(&payloads); err != nil {
			t.Fatal(err)
		}
		for _, p := range payloads {
			ev := new(eventv1.Event)
			if err := proto.Unmarshal(p, ev); err != nil {
				t.Fatal(err)
			}
			out = append(out, ev)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// file is an import of p<from> to p<to - 1>.
func file(from, to int) string {
	rows := make([]map[string]string, 0, to-from)
	for i := from; i < to; i++ {
		rows = append(rows, map[string]string{"email": fmt.Sprintf("p%d@example.com", i)})
	}
	raw, err := json.Marshal(map[string]any{"signups": rows})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// TestImportLarge: several chunks are one import: in order, each once, told of
// once, and sent again it changes nothing.
func TestImportLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for range 3 {
		w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false)}) // p1 to p3
	}
	const n = 4500
	check := func(body string, imported, skipped int64) {
		t.Helper()
		res, err := w.imports(t.Context(), body)
		if err != nil || res.Imported != imported || res.Skipped != skipped || len(res.Errors) > 0 {
			t.Fatalf("%+v, %v; want %d imported, %d skipped", res, err, imported, skipped)
		}
		for ; imported > 0; imported-- {
			w.total++
			w.queue = append(w.queue, member{number: w.total, email: fmt.Sprintf("p%d@example.com", w.total)})
		}
		w.check(t)
	}
	check(file(2, n), n-4, 2)
	check(file(2, n), 0, n-2)
	check(file(1, n+500), 500, n-1)
	next := int64(4)
	for _, ev := range w.events(t)[3:] {
		p := ev.GetSignupsImported()
		if p == nil {
			t.Fatalf("event %v", ev)
		}
		if p.GetWaitlistId() != w.list.ID || p.GetOwnerId() != w.list.OwnerID || p.GetFirstNumber() != next || p.GetLastNumber() < next {
			t.Errorf("event %v, want numbers from %d", p, next)
		}
		var at time.Time
		err := w.pool.QueryRow(t.Context(), `SELECT DISTINCT created_at FROM signup WHERE waitlist_id = $1 AND number BETWEEN $2 AND $3`,
			w.list.ID, p.GetFirstNumber(), p.GetLastNumber()).Scan(&at)
		if err != nil || !at.Equal(ev.GetOccurredAt().AsTime()) {
			t.Errorf("event of %s about signups of %s, %v", ev.GetOccurredAt().AsTime(), at, err)
		}
		next = p.GetLastNumber() + 1
	}
	if next != n+500 {
		t.Errorf("events up to number %d", next)
	}
}

// TestImportBeside: two imports of the same file, and signups, at the same time:
// everybody is on the list once, and counted once.
func TestImportBeside(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	const n = 6000
	var wg sync.WaitGroup
	var imported, skipped, joined atomic.Int64
	for range 2 {
		wg.Go(func() {
			got, err := w.admin.ImportRows(t.Context(), w.list, importRows(n), audit.Entry{})
			if err != nil {
				t.Error(err)
			}
			imported.Add(got)
			skipped.Add(n - got)
		})
	}
	for i := range 4 {
		wg.Go(func() {
			for j := i; j < n; j += n / 50 {
				a := w.request(t.Context(), fmt.Sprintf("p%d@example.com", j))
				if a.err != nil {
					t.Error(a.err)
				} else if a.receipt.Created {
					joined.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if imported.Load()+joined.Load() != n || imported.Load()+skipped.Load() != 2*n {
		t.Errorf("imported %d, skipped %d, joined %d", imported.Load(), skipped.Load(), joined.Load())
	}
	for _, sql := range []string{
		`SELECT count(*) FROM signup WHERE waitlist_id = $1`,
		`SELECT live FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1`,
		`SELECT total FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1`,
		`SELECT last_number FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1`,
		`SELECT sum(live) FROM queue_bucket WHERE waitlist_id = $1`,
		`SELECT queue_rank($1, max(queue_key)) FROM signup WHERE waitlist_id = $1`,
	} {
		if got := w.count(t, sql); got != n {
			t.Errorf("%s: %d, want %d", sql, got, n)
		}
	}
}

func importRows(n int) []queue.ImportRow {
	rows := make([]queue.ImportRow, n)
	for i := range rows {
		rows[i] = queue.ImportRow{Email: fmt.Sprintf("p%d@example.com", i), Token: queue.NewToken()}
	}
	return rows
}

// interrupted is a store that lets something happen around each chunk of an
// import.
type interrupted struct {
	*postgres.Signups
	before func(chunk int)
	after  func(chunk int, n int64) (int64, error)
	chunk  int
}

func (s *interrupted) Import(
	ctx context.Context, w *waitlist.Waitlist, rows []queue.ImportRow, known *owners.Known, by audit.Entry,
) (int64, error) {
	s.chunk++
	if s.before != nil {
		s.before(s.chunk)
	}
	n, err := s.Signups.Import(ctx, w, rows, known, by)
	if err == nil && s.after != nil {
		return s.after(s.chunk, n)
	}
	return n, err
}

func (w *world) over(store owners.AdminStore) *owners.Admin {
	return owners.NewAdmin(w.owners, w.svc, store, nil, time.Now, slog.New(slog.DiscardHandler))
}

// TestImportInterrupted: a lost answer to COMMIT counts nobody twice or not at
// all, who goes away stops it between two chunks, and so does a deletion.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	const n = 5000
	t.Run("unknown outcome", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false)}) // p1
		admin := w.over(&interrupted{Signups: w.store, after: func(chunk int, n int64) (int64, error) {
			if chunk%2 == 1 {
				return 0, &join.RetryError{Err: io.ErrUnexpectedEOF}
			}
			return n, nil
		}})
		if got, err := admin.ImportRows(t.Context(), w.list, importRows(n), audit.Entry{}); err != nil || got != n-1 {
			t.Errorf("%d, %v", got, err)
		}
		if got := w.count(t, `SELECT count(*) FROM signup WHERE waitlist_id = $1`); got != n {
			t.Errorf("%d rows", got)
		}
	})
	t.Run("joined after it was looked up", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		admin := w.over(&interrupted{Signups: w.store, before: func(chunk int) {
			if chunk == 2 {
				if a := w.request(t.Context(), "p2500@example.com"); a.err != nil || !a.receipt.Created {
					t.Errorf("%+v", a)
				}
			}
		}})
		// The same addresses again, in chunks behind their own.
		rows := slices.Concat(importRows(n), importRows(n))
		if got, err := admin.ImportRows(t.Context(), w.list, rows, audit.Entry{}); err != nil || got != n-1 {
			t.Errorf("%d, %v", got, err)
		}
		if got := w.count(t, `SELECT max(number) FROM signup WHERE waitlist_id = $1`); got != n {
			t.Errorf("numbers up to %d", got)
		}
	})
	t.Run("client has gone", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		admin := w.over(&interrupted{Signups: w.store, before: func(int) { cancel() }})
		got, err := admin.ImportRows(ctx, w.list, importRows(n), audit.Entry{})
		if !errors.Is(err, context.Canceled) || got == 0 || got >= n {
			t.Errorf("%d, %v", got, err)
		}
		if rows := w.count(t, `SELECT count(*) FROM signup WHERE waitlist_id = $1`); int64(rows) != got {
			t.Errorf("%d rows, %d were imported", rows, got)
		}
		rest, err := w.admin.ImportRows(t.Context(), w.list, importRows(n), audit.Entry{})
		if err != nil || got+rest != n {
			t.Errorf("sent again: %d more, %v", rest, err)
		}
	})
	t.Run("waitlist was deleted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		admin := w.over(&interrupted{Signups: w.store, before: func(chunk int) {
			if chunk == 2 {
				w.exec(t, `UPDATE waitlist SET deleted_at = now() WHERE id = $1`, w.list.ID)
			}
		}})
		if _, err := admin.ImportRows(t.Context(), w.list, importRows(n), audit.Entry{}); !apierr.Is(err, apierr.NotFound) {
			t.Error(err)
		}
	})
	t.Run("always failing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		w.exec(t, `ALTER TABLE signup ADD CHECK (email <> 'p4500@example.com')`)
		if got, err := w.admin.ImportRows(t.Context(), w.list, importRows(n), audit.Entry{}); err == nil || got == 0 {
			t.Errorf("%d, %v", got, err)
		}
		testenv.Eventually(t, "no connection is in use", func() bool { return w.pool.Stat().AcquiredConns() == 0 })
	})
}
