// Package chaos breaks parts of the suite under a load of signups, then compares the
// acknowledged signups with what is stored, indexed and published.
//
// The load follows the open model: requests start at a constant rate, however slow the
// answers are. The default faults are short (4 s, 4 kills); CHAOS=full runs the long
// ones (30 s, 20 kills).
package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
)

// Rate is the load in signups per second.
const Rate = 100

// Ack is a signup that the suite acknowledged with 201.
type Ack struct {
	Email    string
	Token    string
	Position int64
	// Total is the number of signups that the answer told.
	Total int64
	// Referrer is the email address of the referrer that the signup named, or "".
	Referrer string
}

// Load signs people up on one waitlist until Stop.
type Load struct {
	client *http.Client
	url    func() string
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	rng    *rand.Rand
	acks   []Ack
	failed atomic.Int64
	sent   atomic.Int64
}

// StartLoad starts the load. It calls url before each request, because a restarted
// server may have another address. About half of the signups name a referrer, which the
// seed of testenv.Seed decides.
func StartLoad(t testing.TB, prefix string, url func() string) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	l := &Load{
		url: url, stop: cancel, client: &http.Client{Transport: transport, Timeout: 10 * time.Second},
		rng: rand.New(rand.NewPCG(testenv.Seed(t), 1)),
	}
	l.done.Go(func() {
		tick := time.NewTicker(time.Second / Rate)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.done.Go(func() { l.one(fmt.Sprintf("%s%d@example.com", prefix, n)) })
			}
		}
	})
	t.Cleanup(func() {
		l.Stop()
		transport.CloseIdleConnections()
	})
	return l
}

// one sends a signup. It ignores the loop's context, so that Stop interrupts no request.
func (l *Load) one(email string) {
	l.sent.Add(1)
	body := map[string]string{"email": email}
	var referrer Ack
	l.mu.Lock()
	if n := len(l.acks); n > 0 && l.rng.IntN(2) == 0 {
		referrer = l.acks[l.rng.IntN(n)]
		body["referred_by_token"] = referrer.Token
	}
	l.mu.Unlock()
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	res, err := l.client.Post(l.url()+"/signups", "application/json", bytes.NewReader(raw))
	if err != nil {
		l.failed.Add(1)
		return
	}
	defer res.Body.Close()
	var answer struct {
		ReferralToken string `json:"referral_token"`
		Position      int64  `json:"position"`
		TotalSignups  int64  `json:"total_signups"`
	}
	answered, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusCreated || json.Unmarshal(answered, &answer) != nil {
		l.failed.Add(1)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, Ack{
		Email: email, Token: answer.ReferralToken, Position: answer.Position, Total: answer.TotalSignups, Referrer: referrer.Email,
	})
}

// Acknowledged returns the number of signups answered with 201 so far.
func (l *Load) Acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks)
}

// Failed returns the number of requests with any other outcome.
func (l *Load) Failed() int64 { return l.failed.Load() }

// Stop ends the load, waits for the requests in flight and returns the acknowledged
// signups.
func (l *Load) Stop() []Ack {
	l.stop()
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acks
}
