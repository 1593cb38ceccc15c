package redisconn_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/redisconn"
	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestOpen(t *testing.T) {
	c, err := redisconn.Open(testenv.Redis(t), redisconn.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	cluster, err := redisconn.Open("redis://127.0.0.1:1?addr=127.0.0.1:2", redisconn.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cluster.Close() }()
	if _, ok := cluster.(*redis.ClusterClient); !ok {
		t.Errorf("%T for several nodes", cluster)
	}
	// A status on a large list would wait for the pause while Redis is away.
	if one, ok := c.(*redis.Client); !ok || one.Options().MinRetryBackoff != 0 || one.Options().MaxRetryBackoff != 0 {
		t.Errorf("%T pauses before it repeats a command", c)
	}
	if all := cluster.(*redis.ClusterClient).Options(); all.MinRetryBackoff != 0 || all.MaxRetryBackoff != 0 {
		t.Error("a cluster's client pauses before it repeats a command")
	}
	// Else it would stay with an old server that its name no longer stands for.
	if one, all := c.(*redis.Client).Options(), cluster.(*redis.ClusterClient).Options(); one.ConnMaxLifetime == 0 ||
		one.ConnMaxLifetimeJitter == 0 || all.ConnMaxLifetime == 0 || all.ConnMaxLifetimeJitter == 0 {
		t.Error("connections have no end")
	}
	for _, bad := range []string{"", "x", "http://a", "redis://:secret@a b:1", "redis://127.0.0.1:1/x"} {
		if _, err := redisconn.Open(bad, redisconn.Options{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q) = %v", bad, err)
		}
	}
}
