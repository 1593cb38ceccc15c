// Package chaos breaks the suite's parts while people sign up, and then compares
// what was acknowledged with what is stored, indexed and published.
//
// The load is an open model: requests start at a constant rate, whatever the
// answers do. Short faults are the default; CHAOS=full takes those of the
// reliability table (30 s, 20 kills).
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
)

// Rate is the load in signups a second.
const Rate = 100

// Ack is a signup that was answered with 201.
type Ack struct {
	Email    string
	Token    string
	Position int64
	// Referrer is the address of the acknowledged signup that it named, "" for
	// none.
	Referrer string
}

// Load signs people up at one waitlist until it is stopped.
type Load struct {
	client *http.Client
	url    func() string
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	acks   []Ack
	failed atomic.Int64
	sent   atomic.Int64
}

// StartLoad begins. url is asked before each request, since a restarted server
// may be elsewhere. Every second signup names a referrer.
func StartLoad(t testing.TB, prefix string, url func() string) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	l := &Load{url: url, stop: cancel, client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
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

// one sends a signup; ctx is not the loop's, so that a stop cuts nothing off.
func (l *Load) one(email string) {
	l.sent.Add(1)
	body := map[string]string{"email": email}
	var referrer Ack
	l.mu.Lock()
	if n := len(l.acks); n > 0 && rand.IntN(2) == 0 {
		referrer = l.acks[rand.IntN(n)]
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
	}
	answered, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusCreated || json.Unmarshal(answered, &answer) != nil {
		l.failed.Add(1)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, Ack{Email: email, Token: answer.ReferralToken, Position: answer.Position, Referrer: referrer.Email})
}

// Acknowledged returns how many signups were answered with 201 so far.
func (l *Load) Acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks)
}

// Failed returns how many requests got anything else.
func (l *Load) Failed() int64 { return l.failed.Load() }

// Stop ends the load, waits for the requests under way and returns what was
// acknowledged.
func (l *Load) Stop() []Ack {
	l.stop()
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acks
}
