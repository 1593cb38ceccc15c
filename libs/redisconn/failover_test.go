package redisconn_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/redisconn"
	"waitlist.internal/libs/testenv"
)

// TestFailover: a client leaves a primary that has turned into a replica, though all its
// connections stay open. Each costs at most one failure.
func TestFailover(t *testing.T) {
	const open = 8
	address, swap, move := testenv.RedisFailover(t)
	script := redis.NewScript("return redis.call('INCR', KEYS[1])")
	writes := map[string]func(c *redis.Client) error{
		"a command": func(c *redis.Client) error { return c.Incr(t.Context(), "command").Err() },
		"a script":  func(c *redis.Client) error { return script.Run(t.Context(), c, []string{"script"}).Err() },
		"a pipeline": func(c *redis.Client) error {
			_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Incr(t.Context(), "pipeline").Err() })
			return err
		},
		"readiness": func(c *redis.Client) error { return redisconn.Ready(t.Context(), c) },
	}
	clients := map[string]*redis.Client{}
	for what, write := range writes {
		opened, err := redisconn.Open(address, redisconn.Options{Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = opened.Close() }()
		c := opened.(*redis.Client)
		clients[what] = c
		if err := write(c); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var used []*redis.Conn
		for range open {
			used = append(used, c.Conn())
			if err := used[len(used)-1].Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, conn := range used {
			_ = conn.Close() // back into the pool
		}
	}
	swap()
	for what, write := range writes {
		if err := write(clients[what]); !redis.IsReadOnlyError(err) {
			t.Errorf("a replica answers %s with %v", what, err)
		}
	}
	move()
	for what, write := range writes {
		failures := 0
		for failures <= open && write(clients[what]) != nil {
			failures++
		}
		if failures > open {
			t.Errorf("%s still fails after %d tries", what, failures)
		}
	}
}
