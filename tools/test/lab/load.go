package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Load sends requests to every public service at a constant rate, however long answers take. Each request has one correct
// status; every other answer is a failure.
type Load struct {
	url    string
	client *http.Client
	cancel context.CancelFunc
	done   chan struct{}

	waitlists []string
	key       string

	mu     sync.Mutex
	sent   int
	failed []string
	// joined are the people whose signups were acknowledged.
	joined []int64
	slow   time.Duration
	number atomic.Int64
}

// loadTimeout bounds one request; a slower answer is a failure.
const loadTimeout = 10 * time.Second

// lists is the number of waitlists: enough for each consumer of a group to have events, since a waitlist's all go to one partition.
const lists = 16

// StartLoad registers an owner with waitlists and sends rate requests per second until Stop.
func StartLoad(ctx context.Context, url string, rate int) (*Load, error) {
	l := &Load{url: url, done: make(chan struct{}), client: &http.Client{
		Timeout: loadTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 256, DialContext: (&net.Dialer{Timeout: loadTimeout}).DialContext},
	}}
	email := fmt.Sprintf("load-%d@example.com", time.Now().UnixNano())
	account, err := l.call(ctx, http.MethodPost, "/auth/register", http.StatusCreated,
		map[string]any{"email": email, "password": "correct horse battery"})
	if err != nil {
		return nil, err
	}
	l.key, _ = account["api_key"].(string)
	for range lists {
		waitlist, err := l.call(ctx, http.MethodPost, "/waitlists", http.StatusCreated, map[string]any{"name": "Load"})
		if err != nil {
			return nil, err
		}
		id, _ := waitlist["waitlist_id"].(string)
		l.waitlists = append(l.waitlists, id)
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go l.run(ctx, rate)
	return l, nil
}

func (l *Load) run(ctx context.Context, rate int) {
	defer close(l.done)
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Without ctx's cancellation: every request that was sent is waited for.
		all.Go(func() { l.one(context.WithoutCancel(ctx), l.number.Add(1)) })
	}
}

// waitlist returns the waitlist of request n. Eight requests in a row, which include every kind, share one.
func (l *Load) waitlist(n int64) string { return l.waitlists[n/8%lists] }

func person(n int64) string { return fmt.Sprintf("person-%d@example.com", n) }

// one sends request number n.
func (l *Load) one(ctx context.Context, n int64) {
	waitlist := l.waitlist(n)
	public := "/public/waitlists/" + waitlist
	email := person(n)
	start := time.Now()
	var err error
	switch n % 8 {
	case 0, 1, 2:
		if _, err = l.call(ctx, http.MethodPost, public+"/signups", http.StatusCreated, map[string]any{"email": email}); err == nil {
			l.mu.Lock()
			l.joined = append(l.joined, n)
			l.mu.Unlock()
		}
	case 3:
		l.mu.Lock()
		known := len(l.joined) > 0
		if known {
			earlier := l.joined[int(n)%len(l.joined)]
			public, email = "/public/waitlists/"+l.waitlist(earlier), person(earlier)
		}
		l.mu.Unlock()
		if known {
			_, err = l.call(ctx, http.MethodGet, public+"/signups/"+email, http.StatusOK, nil)
		}
	case 4:
		_, err = l.call(ctx, http.MethodGet, public+"/config", http.StatusOK, nil)
	case 5:
		_, err = l.call(ctx, http.MethodGet, "/waitlists/"+waitlist+"/stats", http.StatusOK, nil)
	case 6:
		if n%16 == 6 {
			_, err = l.send(ctx, http.MethodGet, "/w/"+waitlist, http.StatusOK, nil)
			break
		}
		_, err = l.call(ctx, http.MethodGet, "/auth/me", http.StatusOK, nil)
	case 7:
		path := "/templates"
		if n%16 == 7 {
			path = "/billing/info"
		}
		_, err = l.call(ctx, http.MethodGet, path, http.StatusOK, nil)
	}
	took := time.Since(start)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	l.slow = max(l.slow, took)
	if err != nil {
		l.failed = append(l.failed, err.Error())
	}
}

// call sends one request to the API and returns the answer's JSON object.
func (l *Load) call(ctx context.Context, method, path string, want int, body any) (map[string]any, error) {
	raw, err := l.send(ctx, method, "/v1"+path, want, body)
	if err != nil {
		return nil, err
	}
	var answer map[string]any
	if err := json.Unmarshal(raw, &answer); err != nil && len(raw) > 0 {
		var list []any
		if json.Unmarshal(raw, &list) != nil {
			return nil, fmt.Errorf("%s %s: %w: %.200s", method, path, err, raw)
		}
	}
	return answer, nil
}

// send sends one request and returns the answer's content.
func (l *Load) send(ctx context.Context, method, path string, want int, body any) ([]byte, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, l.url+path, content)
	if err != nil {
		return nil, err
	}
	// The HTTP client must not retry a request: that would hide failures.
	req.GetBody = nil
	req.Header.Set("Content-Type", "application/json")
	if l.key != "" {
		req.Header.Set("x-api-key", l.key)
	}
	res, err := l.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if res.StatusCode != want {
		return nil, fmt.Errorf("%s %s: status %d, want %d: %.200s", method, path, res.StatusCode, want, raw)
	}
	return raw, nil
}

// Sent returns the number of requests answered or failed so far.
func (l *Load) Sent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

// Report is the result of a load.
type Report struct {
	Sent   int
	Failed []string
	// Slowest is the longest time to an answer.
	Slowest time.Duration
	// Waitlists have the signups of everybody in Joined, and possibly signups whose answer was lost.
	Waitlists []string
	Joined    []string
}

// Stop waits for the requests in progress.
func (l *Load) Stop() Report {
	l.cancel()
	<-l.done
	l.client.CloseIdleConnections()
	r := Report{Sent: l.sent, Failed: l.failed, Slowest: l.slow, Waitlists: l.waitlists}
	for _, n := range l.joined {
		r.Joined = append(r.Joined, person(n))
	}
	return r
}
