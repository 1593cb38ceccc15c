package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// importRows is the number of rows of one import, the maximum.
	importRows = 100_000
	// largestImport is the largest body of an import, in bytes.
	largestImport = 32 << 20
	// firstByteGoal is the goal for the time to the first byte of a download.
	firstByteGoal = 200 * time.Millisecond
	// downloads is how many downloads are started.
	downloads = 21
)

// stagedTables are the tables of B10's reference: a plain import stages the rows and inserts the new ones in one
// transaction. The table is a copy of the service's with all of its indexes.
const stagedTables = `
CREATE SCHEMA staged;
CREATE TABLE staged.signup (LIKE signup.signup INCLUDING ALL);
CREATE TABLE staged.input (n bigint, email text, first_name text, last_name text, phone text);
`

// exportedColumns are the columns of an export without the position.
const exportedColumns = `email, first_name, last_name, phone, referral_count, token, referrer_token, utm_source, utm_medium,
	utm_campaign, utm_term, utm_content, email_opt_out_at, consent_given_at, consent_text_version,
	privacy_policy_version, email_verified_at, created_at`

// suite is the whole suite in one process, with an owner.
type suite struct {
	*server
	idToken string
	http    *http.Client
}

// openSuite starts the whole suite on its own database, registers an owner and returns a connection to the database.
func (b *bench) openSuite(ctx context.Context, database string, environ ...string) (s *suite, conn *pgx.Conn, err error) {
	program, err := b.build(ctx, packages()[standaloneProgram])
	if err != nil {
		return nil, nil, err
	}
	if conn, err = b.database(ctx, database); err != nil {
		return nil, nil, err
	}
	srv, err := b.lab.start(ctx, program, b.postgres.URL(database), database, environ...)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	s = &suite{server: srv, http: &http.Client{Transport: &http.Transport{}}}
	if err := s.register(ctx); err != nil {
		return nil, nil, errors.Join(err, s.close(ctx, conn))
	}
	return s, conn, nil
}

// close stops what openSuite started.
func (s *suite) close(ctx context.Context, conn *pgx.Conn) error {
	s.http.CloseIdleConnections()
	return errors.Join(s.stop(), conn.Close(context.WithoutCancel(ctx)))
}

// transfers measures B9 and B10 at the client, through the owners' edge and signup.
func (b *bench) transfers(ctx context.Context) (err error) {
	const database = "transfers"
	s, conn, err := b.openSuite(ctx, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx, conn)) }()
	lists := map[int]*list{} // by size
	for _, size := range []int{b.exports / 50, b.exports / 5, b.exports} {
		if lists[size], err = s.newList(ctx); err != nil {
			return err
		}
		if !b.wants("B9") && size != b.exports/5 {
			continue
		}
		took, err := fill(ctx, conn, lists[size], size)
		if err != nil {
			return err
		}
		b.say("filled a waitlist with %d signups in %.0f s", size, took.Seconds())
	}
	if b.wants("B9") {
		if err := b.downloads(ctx, conn, s, lists); err != nil {
			return err
		}
	}
	if b.wants("B10") {
		return b.uploads(ctx, conn, s, lists[b.exports/5])
	}
	return nil
}

// register registers the owner, whose trial has every feature.
func (s *suite) register(ctx context.Context) error {
	const who = `{"email":"owner@example.com","password":"correct horse battery staple"}`
	if err := s.post(ctx, "/v1/auth/register", []byte(who), nil); err != nil {
		return err
	}
	var login struct {
		IDToken string `json:"id_token"`
	}
	err := s.post(ctx, "/v1/auth/login", []byte(who), &login)
	s.idToken = login.IDToken
	return err
}

func (s *suite) newList(ctx context.Context) (*list, error) {
	var w struct {
		ID string `json:"waitlist_id"`
	}
	err := s.post(ctx, "/v1/waitlists", []byte(`{"name":"Launch"}`), &w)
	return &list{id: w.ID}, err
}

// do sends a request as the owner. Error statuses are errors.
func (s *suite) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("create the request: %w", err)
	}
	if s.idToken != "" {
		req.Header.Set("Authorization", "Bearer "+s.idToken)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if res.StatusCode >= http.StatusBadRequest {
		defer res.Body.Close()
		raw, _ := io.ReadAll(res.Body)
		return nil, fmt.Errorf("%s %s was answered %d: %s", method, path, res.StatusCode, raw)
	}
	return res, nil
}

func (s *suite) post(ctx context.Context, path string, body []byte, to any) error {
	return s.answer(ctx, http.MethodPost, path, body, to)
}

func (s *suite) get(ctx context.Context, path string, to any) error {
	return s.answer(ctx, http.MethodGet, path, nil, to)
}

// answer reads a JSON answer into to, unless that is nil.
func (s *suite) answer(ctx context.Context, method, path string, body []byte, to any) error {
	res, err := s.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err == nil && to != nil {
		err = json.Unmarshal(raw, to)
	}
	if err != nil {
		return fmt.Errorf("read the answer to %s: %w", path, err)
	}
	return nil
}

// lines counts the lines written to it.
type lines int

func (l *lines) Write(b []byte) (int, error) {
	*l += lines(bytes.Count(b, []byte{'\n'}))
	return len(b), nil
}

// download exports a waitlist with n signups.
func (s *suite) download(ctx context.Context, l *list, n int) error {
	res, err := s.do(ctx, http.MethodGet, "/v1/waitlists/"+l.id+"/export", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var got lines
	if _, err := io.CopyBuffer(&got, res.Body, make([]byte, 256<<10)); err != nil {
		return fmt.Errorf("read the export: %w", err)
	}
	if int(got) != n+1 {
		return fmt.Errorf("the export of %d signups has %d lines", n, got)
	}
	return nil
}

// firstByte starts a download and cancels it after the first byte.
func (s *suite) firstByte(ctx context.Context, l *list) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := time.Now()
	res, err := s.do(ctx, http.MethodGet, "/v1/waitlists/"+l.id+"/export", nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, 1))
	if err != nil {
		return 0, fmt.Errorf("read the first byte: %w", err)
	}
	return time.Since(start), nil
}

// downloads measures B9.
func (b *bench) downloads(ctx context.Context, conn *pgx.Conn, s *suite, lists map[int]*list) error {
	small, size, large := b.exports/50, b.exports/5, b.exports
	settle := func(context.Context) error { return nil }
	pairs, err := b.turns(ctx, "B9", settle, func(ctx context.Context, _ time.Duration) (sample, error) {
		start := time.Now()
		err := s.download(ctx, lists[size], size)
		return sample{perSecond: float64(size) / clock(start)}, err
	}, func(ctx context.Context, _ time.Duration) (sample, error) {
		start := time.Now()
		var got lines
		_, err := conn.PgConn().
			CopyTo(ctx, &got,
				"COPY (SELECT "+exportedColumns+" FROM signup.signup WHERE waitlist_id = '"+lists[size].id+
					"' ORDER BY queue_key) TO STDOUT (FORMAT csv)")
		if err == nil && int(got) != size {
			err = fmt.Errorf("COPY returned %d lines", got)
		}
		return sample{perSecond: float64(size) / clock(start)}, err
	}, 0)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B9", goal: "≥ 0.5 ×", ratio: ratio, met: ratio >= .5,
		what: fmt.Sprintf("Rows a second of an export of %d signups, against COPY of the same columns in the same order.", size),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})

	peaks := map[int]int{}
	for _, n := range []int{small, large} {
		if err := s.resetPeak(); err != nil {
			return err
		}
		if err := s.download(ctx, lists[n], n); err != nil {
			return err
		}
		if peaks[n], err = s.peak(); err != nil {
			return err
		}
	}
	ratio = float64(peaks[large]) / float64(peaks[small])
	b.add(row{
		id: "B9 memory", goal: "≤ 1.2 ×", ratio: ratio, met: ratio <= 1.2,
		what: fmt.Sprintf("Peak memory of the whole suite in one process during an export of %d signups against %d.", large, small),
		ours: fmt.Sprintf("%d MiB", peaks[large]>>20), theirs: fmt.Sprintf("%d MiB", peaks[small]>>20),
	})

	first := make([]time.Duration, downloads)
	for i := range first {
		if first[i], err = s.firstByte(ctx, lists[large]); err != nil {
			return err
		}
	}
	slices.Sort(first)
	worst := first[len(first)-1]
	b.add(row{
		id: "B9 first byte", goal: "< 1 ×", ratio: float64(worst) / float64(firstByteGoal), met: worst < firstByteGoal,
		what: fmt.Sprintf("Time to the first byte of the slowest of %d downloads of %d signups, against the goal.", downloads, large),
		ours: fmt.Sprintf("%.1f ms (median %.1f)", milliseconds(worst), milliseconds(first[len(first)/2])), theirs: firstByteGoal.String(),
	})
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// upload returns the body of an import of new rows, each padded with pad characters.
func upload(turn, pad int) []byte {
	var body bytes.Buffer
	body.WriteString(`{"signups":[`)
	for i := range importRows {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"email":"i%d-%d@example.com","first_name":"Ann","last_name":"Example","phone":"+15550100","note":"%*s"}`,
			turn, i, pad, "")
	}
	body.WriteString(`]}`)
	return body.Bytes()
}

func (s *suite) upload(ctx context.Context, l *list, body []byte) error {
	var got struct{ Imported, Skipped int }
	if err := s.post(ctx, "/v1/waitlists/"+l.id+"/import", body, &got); err != nil {
		return err
	}
	if got.Imported != importRows || got.Skipped != 0 {
		return fmt.Errorf("%d rows were imported, %d skipped", got.Imported, got.Skipped)
	}
	return nil
}

// uploads measures B10 on a waitlist, and how long signups on that list take meanwhile.
func (b *bench) uploads(ctx context.Context, conn *pgx.Conn, s *suite, l *list) error {
	if _, err := conn.Exec(ctx, stagedTables); err != nil {
		return fmt.Errorf("create the reference's tables: %w", err)
	}
	if _, err := conn.Exec(ctx, `INSERT INTO staged.signup SELECT * FROM signup.signup WHERE waitlist_id = $1`, l.id); err != nil {
		return fmt.Errorf("fill the reference's table: %w", err)
	}
	for _, sql := range []string{"VACUUM ANALYZE staged.signup", "CHECKPOINT"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("settle the tables: %w", err)
		}
	}
	turn := 0
	settle := func(ctx context.Context) error {
		turn++
		if err := published(ctx, conn); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "CHECKPOINT")
		return err
	}
	pairs, err := b.turns(ctx, "B10", settle, func(ctx context.Context, _ time.Duration) (sample, error) {
		turn++
		body := upload(turn, 0)
		start := time.Now()
		err := s.upload(ctx, l, body)
		return sample{perSecond: importRows / clock(start)}, err
	}, func(ctx context.Context, _ time.Duration) (sample, error) {
		turn++
		start := time.Now()
		err := staged(ctx, conn, l.id, turn)
		return sample{perSecond: importRows / clock(start)}, err
	}, 0)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B10", goal: "≥ 0.8 ×", ratio: ratio, met: ratio >= .8,
		what: fmt.Sprintf("Rows a second of an import of %d rows into a list of %d or more, against staging them by COPY and "+
			"INSERT … ON CONFLICT.", importRows, b.exports/5),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})

	// Import while people sign up on the same list.
	gen := &generator{addr: s.addr}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var beside sample
	var failed error
	var others sync.WaitGroup
	others.Go(func() { beside, failed = gen.besides(waiting, l) })
	turn++
	err = s.upload(ctx, l, upload(turn, 0))
	stop()
	others.Wait()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	turn++
	if err := s.resetPeak(); err != nil {
		return err
	}
	before, err := s.peak()
	if err != nil {
		return err
	}
	body := upload(turn, (largestImport-len(upload(turn, 0)))/importRows)
	if err := s.upload(ctx, l, body); err != nil {
		return err
	}
	peak, err := s.peak()
	if err != nil {
		return err
	}
	b.notes = append(b.notes, fmt.Sprintf("Signups on a list into which %d rows are being imported, one after the other on one connection, "+
		"take %.0f ms (median) to %.0f ms (p99).",
		importRows, beside.quantile(.5), beside.quantile(.99)),
		fmt.Sprintf("An import of %d rows in %.1f MiB raises the memory of the whole suite in one process from %d to at most %d MiB.",
			importRows, float64(len(body))/(1<<20), before>>20, peak>>20))
	return nil
}

// besides signs people up one after the other until ctx ends.
func (g *generator) besides(ctx context.Context, l *list) (sample, error) {
	c, err := dial(ctx, g.addr)
	if err != nil {
		return sample{}, err
	}
	defer c.close()
	g.next.Store(9_000_000_000) // above the numbers of fill
	request := signupRequest(l.id)
	var s sample
	for ctx.Err() == nil {
		start := time.Now()
		_ = c.conn.SetDeadline(start.Add(answerTimeout))
		status, body, err := c.do(request.with(g.next.Add(1)))
		if err != nil {
			return sample{}, err
		}
		if status != http.StatusCreated {
			return sample{}, fmt.Errorf("signup was answered %d: %s", status, body)
		}
		s.latencies = append(s.latencies, int(time.Since(start).Microseconds()))
	}
	slices.Sort(s.latencies)
	return s, nil
}

// staged imports rows as a plain implementation does.
func staged(ctx context.Context, conn *pgx.Conn, waitlistID string, turn int) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "TRUNCATE staged.input"); err != nil {
			return err
		}
		i := 0
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"staged", "input"}, []string{"n", "email", "first_name", "last_name", "phone"},
			pgx.CopyFromFunc(func() ([]any, error) {
				if i++; i > importRows {
					return nil, nil
				}
				return []any{i, "s" + strconv.Itoa(turn) + "-" + strconv.Itoa(i) + "@example.com", "Ann", "Example", "+15550100"}, nil
			}))
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO staged.signup (waitlist_id, number, queue_key, email, token, created_at, first_name, last_name, phone)
			SELECT $1::uuid, m.number + n, (m.number + n) << 20, email, gen_random_uuid(), now(), first_name, last_name, phone
			FROM staged.input, (SELECT max(number) AS number FROM staged.signup WHERE waitlist_id = $1::uuid) m
			ON CONFLICT (waitlist_id, email) DO NOTHING`, waitlistID)
		if err == nil && tag.RowsAffected() != importRows {
			err = fmt.Errorf("staged import inserted %d rows", tag.RowsAffected())
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("staged import: %w", err)
	}
	return nil
}

// resetPeak resets the process's peak memory.
func (s *server) resetPeak() error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the peak of memory: %w", err)
	}
	return nil
}

// peak returns the process's peak memory since resetPeak, in bytes.
func (s *server) peak() (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the peak of memory: %w", err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	words := strings.Fields(rest)
	if len(words) == 0 {
		return 0, errors.New("the system does not report a process's peak memory")
	}
	kib, err := strconv.Atoi(words[0])
	if err != nil {
		return 0, fmt.Errorf("read the peak of memory: %w", err)
	}
	return kib << 10, nil
}
