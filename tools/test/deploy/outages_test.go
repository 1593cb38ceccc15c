package deploy

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"waitlist.internal/libs/testenv"
	signupindex "waitlist.internal/services/signup/index"
	"waitlist.internal/tools/test/chaos"
)

// testOutages lets Redis lose and contradict what it had, and Kafka stay away. Every place
// that is told meanwhile must be right, and signups go on.
func testOutages(t *testing.T, dir string) {
	away := 5 * time.Second
	if os.Getenv("CHAOS") == "full" {
		away = time.Minute
	}
	s := newSite(t, dir)
	m := newMix(s, testenv.Seed(t), everyday())
	a := newAuditor(m)
	m.warmUp()
	address, err := redis.ParseURL(s.base["REDIS_URL"])
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(address)
	defer rdb.Close()
	keys := signupindex.KeysOf(m.signups)
	goOn := func(n int) {
		t.Helper()
		m.start()
		before := m.acknowledged()
		testenv.Within(t, patience, "signups go on", func() bool { return m.acknowledged() >= before+n })
		m.end()
	}
	// told compares every place with Postgres now, without time to mend the index.
	told := func(after string) {
		t.Helper()
		stored := chaos.AuditRows(t, s.db.server.URL(databaseName), m.signups, m.acks)
		chaos.AuditStatus(t, s.url("signup", "/v1/public/waitlists/"+m.signups), stored)
		if t.Failed() {
			t.Fatalf("after %s", after)
		}
	}
	goOn(10)

	// A snapshot of before, restored: its mark names a change of the past.
	s.kill("Redis")
	old := filepath.Join(t.TempDir(), "snapshot")
	if err := os.CopyFS(old, os.DirFS(s.redisDir)); err != nil {
		t.Fatal(err)
	}
	s.revive("Redis")
	goOn(100)
	s.kill("Redis")
	if err := os.RemoveAll(s.redisDir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(s.redisDir, os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	s.revive("Redis")
	if mark, err := rdb.HLen(t.Context(), keys[1]).Result(); err != nil || mark == 0 {
		t.Fatalf("the snapshot has no mark: %v", err)
	}
	told("an old snapshot")
	goOn(20)
	told("an old snapshot and more signups")

	// Evicted wholly or in part, with the mark left.
	for _, lost := range []struct {
		what  string
		evict func() error
	}{
		{"the index was evicted", func() error { return rdb.Del(t.Context(), keys[0]).Err() }},
		{"half of it was lost", func() error { return rdb.ZRemRangeByRank(t.Context(), keys[0], 0, warm/2).Err() }},
	} {
		if err := lost.evict(); err != nil {
			t.Fatal(err)
		}
		if mark, err := rdb.HLen(t.Context(), keys[1]).Result(); err != nil || mark == 0 {
			t.Fatalf("the index has no mark: %v", err)
		}
		told(lost.what)
		goOn(20)
		told(lost.what + ", and more signups")
	}

	m.start()
	failed := m.failed("signup")
	before := m.acknowledged()
	s.servers["Kafka"].kill()
	pause(t.Context(), away)
	if n := m.acknowledged() - before; n < int(away.Seconds()*everyday().signups/2) {
		t.Errorf("%d signups in %v without Kafka", n, away)
	}
	if n := m.failed("signup") - failed; n > 0 {
		t.Errorf("%d requests of people failed without Kafka", n)
	}
	m.end()
	s.servers["Kafka"].start()
	goOn(20)
	a.audit()
	t.Log(a.summary())
}
