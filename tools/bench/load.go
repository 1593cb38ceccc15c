package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The client shares the machine with the system under test, so it is small: requests are prepared bytes in which only digits
// change, and of an answer it reads the status, the length and at most one number.

// answerTimeout bounds one exchange. The API answers within five seconds.
const answerTimeout = 10 * time.Second

// client is a kept-alive connection. It is not safe for concurrent use.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	body []byte
	// once keeps do from repeating requests that are refused.
	once bool
}

func dial(ctx context.Context, addr string) (*client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the service: %w", err)
	}
	return &client{conn: conn, in: bufio.NewReaderSize(conn, 4<<10)}, nil
}

func (c *client) close() { _ = c.conn.Close() }

// retryPause is the time after which do repeats a refused request: as a process starts, it admits fewer requests at a time than
// a bench has connections. Retry-After says a second; a tenth of it keeps refusals from being most of what is measured.
const retryPause = 100 * time.Millisecond

// do sends a request and returns the answer's status and body, which is valid until the next call. It repeats one that is
// refused, until the connection's deadline.
func (c *client) do(request []byte) (status int, body []byte, err error) {
	for {
		status, body, err = c.exchange(request)
		if status != http.StatusTooManyRequests || c.once || err != nil {
			return status, body, err
		}
		time.Sleep(retryPause)
	}
}

// exchange is do without repetition. Answers must have a Content-Length.
func (c *client) exchange(request []byte) (status int, body []byte, err error) {
	if _, err := c.conn.Write(request); err != nil {
		return 0, nil, fmt.Errorf("send request: %w", err)
	}
	length := -1
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, nil, fmt.Errorf("read answer: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if len(line) < 12 {
				return 0, nil, fmt.Errorf("unexpected start of an answer: %q", line)
			}
			status = number(line[9:12])
			continue
		}
		if len(line) == 0 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length = number(v)
		}
	}
	if length < 0 {
		return 0, nil, fmt.Errorf("answer with status %d has no Content-Length", status)
	}
	c.body = slices.Grow(c.body[:0], length)[:length]
	for n := 0; n < length; {
		m, err := c.in.Read(c.body[n:])
		if err != nil {
			return 0, nil, fmt.Errorf("read answer: %w", err)
		}
		n += m
	}
	return status, c.body, nil
}

// number parses digits. Other bytes give a wrong number, which the checks detect.
func number(digits []byte) int {
	n := 0
	for _, d := range digits {
		n = 10*n + int(d-'0')
	}
	return n
}

// field returns an integer field of flat JSON, or 0 if it is missing.
func field(body []byte, name string) int {
	at := bytes.Index(body, []byte(name))
	if at < 0 {
		return 0
	}
	rest := body[at+len(name):]
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	return number(rest[:end])
}

// addressDigits is the width of the number in an address.
const addressDigits = 10

func address(n int64) string { return fmt.Sprintf("a%0*d@example.com", addressDigits, n) }

// template is a request with a placeholder for the digits of an address.
type template struct {
	bytes  []byte
	digits int // offset of the digits
}

func newTemplate(text string) template {
	b := []byte(text)
	return template{b, bytes.Index(b, []byte(address(0))) + 1}
}

// with inserts a number and returns the request.
func (t template) with(n int64) []byte {
	for i := t.digits + addressDigits - 1; i >= t.digits; i-- {
		t.bytes[i] = byte('0' + n%10)
		n /= 10
	}
	return t.bytes
}

func signupRequest(waitlistID string) template {
	body := `{"email":"` + address(0) + `","first_name":"Ann","last_name":"Example","utm_source":"launch","utm_medium":"mail"}`
	return newTemplate("POST /v1/public/waitlists/" + waitlistID + "/signups HTTP/1.1\r\nHost: bench\r\n" +
		"Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

func statusRequest(waitlistID string) template {
	return newTemplate("GET /v1/public/waitlists/" + waitlistID + "/signups/" + address(0) + "/status HTTP/1.1\r\nHost: bench\r\n\r\n")
}

// list is a waitlist under load with the positions it has assigned.
type list struct {
	id   string
	mu   sync.Mutex
	seen []uint64 // one bit per position
	n    int
	max  int
}

// recordPositions records the positions of acknowledged signups. A duplicate position is an error.
func (l *list) recordPositions(positions []int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range positions {
		if p < 1 {
			return fmt.Errorf("waitlist %s assigned the invalid position %d", l.id, p)
		}
		for p/64 >= len(l.seen) {
			l.seen = append(l.seen, make([]uint64, 1+len(l.seen))...)
		}
		if l.seen[p/64]&(1<<(p%64)) != 0 {
			return fmt.Errorf("waitlist %s assigned position %d twice", l.id, p)
		}
		l.seen[p/64] |= 1 << (p % 64)
		l.n++
		l.max = max(l.max, p)
	}
	return nil
}

// exact returns nil if exactly the positions 1 to n were assigned.
func (l *list) exact() error {
	if l.n != l.max {
		return fmt.Errorf("waitlist %s assigned %d positions, the last one being %d", l.id, l.n, l.max)
	}
	return nil
}

// sample is the result of one slice of load.
type sample struct {
	perSecond float64
	// latencies are in microseconds, sorted.
	latencies []int
}

// quantile returns a quantile in milliseconds.
func (s sample) quantile(q float64) float64 {
	if len(s.latencies) == 0 {
		return 0
	}
	at := min(int(q*float64(len(s.latencies))), len(s.latencies)-1)
	return float64(s.latencies[at]) / 1000
}

// generator creates signups with addresses that it never repeats.
type generator struct {
	addr string
	next atomic.Int64
}

// signUp keeps conns connections busy for d and waits for the last answers. Connection i uses the waitlist lists[i %
// len(lists)]. Every answer must be 201 with a new position.
func (g *generator) signUp(ctx context.Context, lists []*list, conns int, d time.Duration) (sample, error) {
	clients := make([]*client, conns)
	for i := range clients {
		c, err := dial(ctx, g.addr)
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		clients[i] = c
	}
	var (
		all       sync.WaitGroup
		latencies = make([][]int, conns)
		errs      = make([]error, conns)
		start     = time.Now()
		end       = start.Add(d)
	)
	for i, c := range clients {
		l := lists[i%len(lists)]
		all.Go(func() {
			request := signupRequest(l.id)
			var positions []int
			for now := time.Now(); now.Before(end) && ctx.Err() == nil; {
				_ = c.conn.SetDeadline(now.Add(answerTimeout))
				status, body, err := c.do(request.with(g.next.Add(1)))
				if err != nil {
					errs[i] = err
					return
				}
				if status != http.StatusCreated {
					errs[i] = fmt.Errorf("signup was answered %d: %s", status, body)
					return
				}
				done := time.Now()
				latencies[i] = append(latencies[i], int(done.Sub(now).Microseconds()))
				positions = append(positions, field(body, `"position":`))
				now = done
			}
			errs[i] = l.recordPositions(positions)
		})
	}
	all.Wait()
	took := time.Since(start)
	if err := first(errs, ctx.Err()); err != nil {
		return sample{}, err
	}
	s := sample{latencies: slices.Concat(latencies...)}
	slices.Sort(s.latencies)
	s.perSecond = float64(len(s.latencies)) / took.Seconds()
	return s, nil
}

// first returns the first error of the connections with their number, or otherwise if there is none.
func first(errs []error, otherwise error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return otherwise
	}
	return fmt.Errorf("%d connections failed, the first with: %w", len(errs), errs[0])
}
