package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// manyWaitlists is how many waitlists an account may have by the chart, mostSettings how many bytes their settings.
	manyWaitlists = 1000
	mostSettings  = 256 << 10
)

// testEdgeAbuse replays attacks on what the tenants share: connections, memory and places.
func (s *suite) testEdgeAbuse(t *testing.T) {
	d := s.deploy(t, map[string]string{
		"MAX_WAITLISTS": strconv.Itoa(manyWaitlists + 1), "MAX_SETTINGS_BYTES": strconv.Itoa(mostSettings),
		"MAX_TEMPLATES": "2", "MAX_BLASTS": "1",
	})
	t.Run("bounds", func(t *testing.T) { testBounds(t, d) })
	t.Run("exports", func(t *testing.T) { testExportAbuse(t, d) })
	t.Run("half-open requests", func(t *testing.T) { testHalfOpen(t, d) })
	t.Run("requests that are not HTTP", func(t *testing.T) { testNotHTTP(t, d) })
}

// longest returns settings of about size bytes.
func longest(size int) Obj {
	var questions []Obj
	const perQuestion, optionLength = 50, 190
	for left := size; left > 0; left -= perQuestion * optionLength * 4 {
		var options []string
		for i := range min(perQuestion, left/optionLength/4+1) {
			options = append(options, fmt.Sprint(i)+strings.Repeat(emoji, optionLength))
		}
		questions = append(questions, Obj{"id": fmt.Sprint("q", left), "label": "?", "type": "dropdown", "options": options})
	}
	return Obj{"custom_questions": questions}
}

// testBounds checks that an account reaches its bounds, that it cannot exceed them by requests at a time either, and that as
// many waitlists as it can have, with the longest settings, are listed as fast as short ones.
func testBounds(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, longest(mostSettings-10_000))
	t.Run("settings", func(t *testing.T) {
		o.Do(t, Patch("/waitlists/"+id, Obj{"settings": longest(mostSettings + 10_000)}).As(o.token)).Invalid("settings")
		o.Do(t, Post("/waitlists", Obj{"name": "x", "settings": longest(mostSettings + 10_000)}).As(o.token)).Invalid("settings")
		o.set(t, id, Obj{"headline": "Still there"})
	})
	t.Run("waitlists", func(t *testing.T) {
		d.exec(t, `INSERT INTO signup.waitlist (id, owner_id, name, settings, created_at)
			SELECT overlay(gen_random_uuid()::text PLACING '7' FROM 15)::uuid, owner_id, name, settings, created_at
			FROM signup.waitlist, generate_series(2, $2) WHERE id = $1`,
			id, manyWaitlists)
		var took []time.Duration
		for range 100 {
			var got struct {
				Waitlists []Obj `json:"waitlists"`
			}
			r := o.Do(t, Get("/waitlists").As(o.token)).Want(http.StatusOK)
			r.Decode(&got)
			if took = append(took, r.Took); len(got.Waitlists) != manyWaitlists {
				t.Fatalf("%d waitlists", len(got.Waitlists))
			}
		}
		slices.Sort(took)
		t.Logf("%d waitlists were listed within %s at the median, %s at the 99th percentile", manyWaitlists, took[50], took[99])
		// Other deployments are tested beside this one. With every list's settings read, it took 2 s alone.
		if took[50] > 1500*time.Millisecond {
			t.Errorf("the list took %s", took[50])
		}
	})
	t.Run("one too many", func(t *testing.T) {
		template := o.template(t, "blast", nil)
		for name, r := range map[string]Request{
			"waitlists": Post("/waitlists", Obj{"name": "x"}), "templates": newTemplate("blast", nil), "blasts": newBlast(id, nil),
		} {
			var all sync.WaitGroup
			statuses := make(chan int, 5)
			for range cap(statuses) {
				all.Go(func() {
					res := o.Do(t, r.As(o.token))
					if statuses <- res.Status; res.Status >= http.StatusBadRequest {
						res.WantError(http.StatusConflict, "CONFLICT")
					}
				})
			}
			all.Wait()
			close(statuses)
			made := 0
			for s := range statuses {
				if s < http.StatusBadRequest {
					made++
				}
			}
			if made != 1 {
				t.Errorf("%s: %d were created where one is free", name, made)
			}
		}
		// A place that becomes free can be taken.
		o.Do(t, Delete("/templates/"+template).As(o.token)).Want(http.StatusNoContent)
		o.template(t, "blast", nil)
	})
}

// testExportAbuse checks that slow readers do not take all places, and that an export ends with the right to have it.
func testExportAbuse(t *testing.T, d *deployment) {
	slow := []*owner{d.owner(t), d.owner(t)}
	exports := make([]string, len(slow))
	rows, _ := strangers(60_000) // more than fits the buffers on the way
	for i, o := range slow {
		o.HTTP.Timeout = 2 * time.Minute
		id := o.waitlist(t, nil)
		o.imports(t, id, rows).WantJSON("imported", len(rows))
		exports[i] = "/waitlists/" + id + "/export"
	}
	t.Run("starved", func(t *testing.T) {
		const replicas = 4 // at most: each process lets an account have one
		for i, o := range slow {
			refused := false
			for range replicas + 1 {
				res := o.begin(t, exports[i])
				defer res.Body.Close()
				if refused = res.StatusCode == http.StatusTooManyRequests; refused {
					break
				}
			}
			if !refused {
				t.Errorf("an account has %d exports at a time", replicas+1)
			}
		}
		other := d.owner(t)
		if rows := other.export(t, other.waitlist(t, nil)); len(rows) != 0 {
			t.Errorf("%d rows", len(rows))
		}
	})
	t.Run("of a former member", func(t *testing.T) {
		o, member := slow[0], d.owner(t)
		member.HTTP.Timeout = 2 * time.Minute
		// With a small buffer, most of the file is still with the program when the membership ends.
		member.HTTP.Transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return conn, conn.(*net.TCPConn).SetReadBuffer(16 << 10)
		}}
		d.verify(t, member)
		o.Do(t, invite(member.email, "admin").As(o.token)).Want(http.StatusCreated)
		var file io.ReadCloser
		Await(t, time.Minute, "a place for the export", func() bool {
			res := member.begin(t, exports[0])
			if res.StatusCode != http.StatusOK {
				_ = res.Body.Close()
				return false
			}
			file = res.Body
			return true
		})
		defer file.Close()
		o.Do(t, removeMember(member.email).As(o.token)).Want(http.StatusNoContent)
		var err error
		// Reading all of it would take 20 seconds and more.
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for err == nil {
			<-tick.C
			_, err = io.CopyN(io.Discard, file, 40<<10)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the file ended with %v", err)
		}
	})
}

// dial opens a connection to the program for the duration of the test and sends text on it.
func (d *deployment) dial(t testing.TB, text string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", d.server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// testHalfOpen holds connections by bodies that never come, on routes that answer before they read. Others are served
// meanwhile, and all connections are freed.
func testHalfOpen(t *testing.T, d *deployment) {
	// Without read deadlines, the connections stay open for good. The bounds leave room for the deployments that are
	// tested beside this one.
	const connections, freed, patience = 3000, time.Minute, 5 * time.Second
	o := d.owner(t)
	id := o.waitlist(t, nil)
	start := time.Now()
	open := make([]net.Conn, connections)
	for i := range open {
		open[i] = d.dial(t, []string{
			"POST /v1/nope HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
			"POST /v1/waitlists HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
			"GET /v1/public/waitlists/" + id + "/count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
			"POST /v1/public/waitlists/" + id + "/signups HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
			"GET /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		}[i%5])
	}
	opened := time.Since(start)
	// So many requests at once are more than a process admits. What waits for its body takes no place.
	Await(t, patience, "the burst has passed", func() bool {
		for range 20 {
			if o.Do(t, Get("/public/waitlists/"+id+"/count")).Status != http.StatusOK {
				return false
			}
		}
		return true
	})
	var took []time.Duration
	for range 300 {
		asked := time.Now()
		o.Do(t, Get("/public/waitlists/"+id+"/count")).Want(http.StatusOK)
		took = append(took, time.Since(asked))
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	if p99 > patience {
		t.Errorf("others waited %s at the 99th percentile", p99)
	}
	var all sync.WaitGroup
	last := make(chan error, connections)
	for _, conn := range open {
		all.Go(func() {
			_ = conn.SetReadDeadline(start.Add(opened + freed))
			_, err := io.Copy(io.Discard, conn)
			last <- err
		})
	}
	all.Wait()
	held := 0
	for range open {
		if <-last != nil {
			held++
		}
	}
	t.Logf("%d connections opened within %s and freed after %s; p99 of others %s", connections, opened, time.Since(start), p99)
	if held > 0 {
		t.Errorf("%d of %d connections are still open after %s", held, connections, freed)
	}
}

// testNotHTTP sends what net/http refuses before any handler sees it.
func testNotHTTP(t *testing.T, d *deployment) {
	for name, tc := range map[string]struct {
		request string
		status  int
	}{
		"no version":      {"GET /v1/auth/me\r\n\r\n", http.StatusBadRequest},
		"no host":         {"GET /v1/auth/me HTTP/1.1\r\n\r\n", http.StatusBadRequest},
		"a path with %zz": {"GET /v1/%zz HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusBadRequest},
		"an endless line": {"GET /v1/" + strings.Repeat("x", 100_000) + " HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		"an endless field": {
			"GET /v1/auth/me HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 100_000) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge,
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := d.dial(t, tc.request)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			var body struct {
				Error     string `json:"error"`
				Code      string `json:"error_code"`
				RequestID string `json:"request_id"`
				Errors    []any  `json:"errors"`
			}
			if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
				t.Fatalf("%d: %v", res.StatusCode, err)
			}
			if res.StatusCode != tc.status || body.Code != "VALIDATION_ERROR" || body.Error == "" || len(body.Errors) != 1 ||
				body.RequestID == "" || body.RequestID != res.Header.Get("X-Request-Id") || res.Header.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("%s %+v", fmt.Sprint(res.StatusCode, res.Header), body)
			}
		})
	}
}
