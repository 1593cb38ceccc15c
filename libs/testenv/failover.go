package testenv

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/devservers"
)

// RedisFailover starts a Redis and its replica. url leads to the first. After swap, each is
// what the other was, and url leads to a replica; after move, new connections to url lead
// to the other. Open ones stay where they are.
func RedisFailover(t testing.TB) (url string, swap, move func()) {
	t.Helper()
	var hosts [2]string
	var admins [2]*redis.Client
	for i := range hosts {
		o, err := redis.ParseURL(RedisServer(t, devservers.RedisOptions{Volatile: true}).URL)
		if err != nil {
			t.Fatal(err)
		}
		hosts[i], admins[i] = o.Addr, redis.NewClient(o)
		t.Cleanup(func() { _ = admins[i].Close() })
		if err := admins[i].ConfigSet(t.Context(), "repl-diskless-sync-delay", "0").Err(); err != nil {
			t.Fatal(err)
		}
	}
	host, port, _ := strings.Cut(hosts[0], ":")
	if err := admins[1].ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	follows := func(replica *redis.Client) {
		t.Helper()
		Eventually(t, "the replica follows", func() bool {
			info, err := replica.Info(t.Context(), "replication").Result()
			return err == nil && strings.Contains(info, "master_link_status:up")
		})
	}
	follows(admins[1])
	var to atomic.Pointer[string]
	to.Store(&hosts[0])
	return "redis://" + forward(t, to.Load) + "/0",
		func() {
			t.Helper()
			// It waits until the replica has all.
			if err := admins[0].Do(t.Context(), "FAILOVER").Err(); err != nil {
				t.Fatal(err)
			}
			follows(admins[0])
		},
		func() { to.Store(&hosts[1]) }
}

// forward listens and connects each client with the server that to names then.
func forward(t testing.TB, to func() *string) (address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	Run(t, func(ctx context.Context) error {
		var pipes sync.WaitGroup
		defer pipes.Wait()
		defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
		for {
			client, err := listener.Accept()
			if err != nil {
				return nil // the test has ended
			}
			server, err := (&net.Dialer{}).DialContext(ctx, "tcp", *to())
			if err != nil {
				_ = client.Close()
				continue
			}
			end := func() { _, _ = client.Close(), server.Close() }
			context.AfterFunc(ctx, end)
			for _, pipe := range [][2]net.Conn{{client, server}, {server, client}} {
				pipes.Go(func() {
					defer end()
					_, _ = io.Copy(pipe[0], pipe[1])
				})
			}
		}
	})
	return listener.Addr().String()
}
