package signup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/redisconn"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// heldLog is a change log that counts its reads and holds them until open is closed.
type heldLog struct {
	index.ChangeLog
	reads atomic.Int64
	open  chan struct{}
}

func (l *heldLog) Since(ctx context.Context, waitlistID string, from index.Mark, most int) (index.Delta, error) {
	l.reads.Add(1)
	<-l.open
	return l.ChangeLog.Since(ctx, waitlistID, from, most)
}

// countedStore counts the ranks that are looked up, and the calls for them.
type countedStore struct {
	index.Store
	ranks, calls atomic.Int64
}

func (s *countedStore) Rank(ctx context.Context, waitlistID string, v queue.View, seen []*queue.Signup) (index.Places, error) {
	s.calls.Add(1)
	defer s.ranks.Add(int64(len(seen)))
	return s.Store.Rank(ctx, waitlistID, v, seen)
}

// TestReadersShareACatchUp: while the index catches up, all who need a later state wait for
// one more catch-up, however many they are, and get a place that counts their own signup.
func TestReadersShareACatchUp(t *testing.T) {
	const readers = 50
	w := newWorld(t, 3)
	log, store := &heldLog{ChangeLog: w.store, open: make(chan struct{})}, &countedStore{Store: w.sets}
	quiet := slog.New(slog.DiscardHandler)
	svc := join.New(join.Config{
		SmallList: -1, Store: w.store, Index: index.New(store, log, quiet), Tokens: w.ring, Now: time.Now, Log: quiet,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = svc.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	join := func(n int) {
		t.Helper()
		if _, err := svc.Join(t.Context(), w.list.ID, fmt.Appendf(nil, `{"email": "p%d@example.com"}`, n), join.Header{}); err != nil {
			t.Fatal(err)
		}
	}
	join(1)
	testenv.Eventually(t, "the first catch-up reads", func() bool { return log.reads.Load() == 1 })
	join(2)
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			if s, err := svc.Status(t.Context(), w.list.ID, "p2@example.com"); err != nil || s.Position != 2 || s.Total != 2 {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	// The first one alone, the others together.
	testenv.Eventually(t, "all have looked", func() bool { return store.ranks.Load() >= readers })
	close(log.open)
	all.Wait()
	if n := log.reads.Load(); n != 2 {
		t.Errorf("the change log was read %d times", n)
	}
}

// builtStore counts the indexes that are built anew.
type builtStore struct {
	index.Store
	builds atomic.Int64
}

func (s *builtStore) Build(ctx context.Context, waitlistID string) (index.Builder, error) {
	s.builds.Add(1)
	return s.Store.Build(ctx, waitlistID)
}

// slowIndex takes a catch-up only when an import beside is more rows ahead than a catch-up
// may read, or makes no progress: it waits for the index.
type slowIndex struct {
	owners.AdminStore
	builtStore
	stored atomic.Int64
}

func (s *slowIndex) Import(
	ctx context.Context, w *waitlist.Waitlist, rows []queue.ImportRow, known *owners.Known, by audit.Entry,
) (int64, error) {
	n, err := s.AdminStore.Import(ctx, w, rows, known, by)
	s.stored.Add(n)
	return n, err
}

func (s *slowIndex) Apply(ctx context.Context, waitlistID string, from index.Mark, d index.Delta) (bool, error) {
	const tick, rest = 10 * time.Millisecond, 30
	before, still := s.stored.Load(), 0
	for range loop.Every(ctx, tick) {
		now := s.stored.Load()
		if still++; now != before {
			before, still = now, 0
		}
		if now-d.To.Live > 25_000 || still == rest {
			break
		}
	}
	return s.Store.Apply(ctx, waitlistID, from, d)
}

// TestImportsAreAppended: the index follows imports that are larger than what one catch-up
// takes, and is not built anew, however slow it is.
func TestImportsAreAppended(t *testing.T) {
	const imports, rows = 3, 35_000
	w := newWorld(t, 3)
	slow, quiet := &slowIndex{AdminStore: w.store, builtStore: builtStore{Store: w.sets}}, slog.New(slog.DiscardHandler)
	svc := join.New(join.Config{
		SmallList: -1, Store: w.store, Index: index.New(slow, w.store, quiet), Tokens: w.ring, Now: time.Now, Log: quiet,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = svc.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	admin := owners.NewAdmin(w.owners, svc, slow, nil, time.Now, quiet)
	all := importRows(imports * rows)
	for i := range int64(imports) {
		if got, err := admin.ImportRows(t.Context(), w.list, all[i*rows:(i+1)*rows], audit.Entry{}); err != nil || got != rows {
			t.Fatalf("%d imported, %v", got, err)
		}
		testenv.Eventually(t, "the index holds the import", func() bool {
			mark, err := w.sets.Mark(t.Context(), w.list.ID)
			return err == nil && mark.Live == (i+1)*rows
		})
	}
	if n := slow.builds.Load(); n != 0 {
		t.Errorf("%d indexes were built", n)
	}
}

// TestAStatusIsOfOneMoment: a place from an index that is ahead of what Postgres said is not
// put beside a count of referrals from before the credit that made it.
func TestAStatusIsOfOneMoment(t *testing.T) {
	w := newWorld(t, 1)
	w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false)})
	referrer, other := w.queue[2], w.queue[0]
	views, err := w.store.Views(t.Context(), w.list.ID, []string{other.email, referrer.email, other.email}, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := []*queue.Signup{views[0].Signup, views[1].Signup, views[2].Signup}
	w.join(t, []*queue.Join{w.newJoin(referrer.token, true)})
	if err := w.index.CatchUp(t.Context(), w.list.ID); err != nil {
		t.Fatal(err)
	}
	// 0: the place after a credit for a count from before it. Those without credits have theirs.
	if at, err := w.index.Rank(t.Context(), w.list.ID, views[0], seen); err != nil || !slices.Equal(at.Ranks, []int64{1, 0, 1}) ||
		at.Mark.Total != 4 {
		t.Errorf("%+v, %v", at, err)
	}
}

// gatedBuild fills no index before gate is closed.
type gatedBuild struct {
	builtStore
	gate chan struct{}
}

type gatedBuilder struct {
	index.Builder
	gate chan struct{}
}

func (b gatedBuilder) Put(ctx context.Context, keys []index.Key) error {
	<-b.gate
	return b.Builder.Put(ctx, keys)
}

func (s *gatedBuild) Build(ctx context.Context, waitlistID string) (index.Builder, error) {
	b, err := s.builtStore.Build(ctx, waitlistID)
	return gatedBuilder{b, s.gate}, err
}

// TestABuildTakesInWhatHappensBesideIt: an index that is missing is built once, however many
// people an import adds and others leave meanwhile.
func TestABuildTakesInWhatHappensBesideIt(t *testing.T) {
	const before, rows = 22_000, 44_000
	w := newWorld(t, 3)
	quiet := slog.New(slog.DiscardHandler)
	all := importRows(before + rows)
	blind := join.New(join.Config{SmallList: -1, Store: w.store, Tokens: w.ring, Now: time.Now, Log: quiet})
	if got, err := w.adminOf(blind).ImportRows(t.Context(), w.list, all[:before], audit.Entry{}); err != nil || got != before {
		t.Fatalf("%d imported, %v", got, err)
	}
	gated := &gatedBuild{builtStore{Store: w.sets}, make(chan struct{})}
	svc := join.New(join.Config{
		SmallList: -1, Store: w.store, Index: index.New(gated, w.store, quiet), Tokens: w.ring, Now: time.Now, Log: quiet,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = svc.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	open := sync.OnceFunc(func() { close(gated.gate) })
	defer open() // also when the test fails before
	if got, err := w.adminOf(svc).ImportRows(t.Context(), w.list, all[before:], audit.Entry{}); err != nil || got != rows {
		t.Fatalf("%d imported, %v", got, err)
	}
	for _, row := range all[:3] {
		if err := svc.Remove(t.Context(), w.list.ID, row.Email, audit.Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	open()
	testenv.Eventually(t, "the index holds the import", func() bool {
		mark, err := w.sets.Mark(t.Context(), w.list.ID)
		return err == nil && mark.Live == before+rows-3
	})
	if n := gated.builds.Load(); n != 1 {
		t.Errorf("%d indexes were built", n)
	}
}

// TestManyAtOnce: an index takes more members, and gives more up, than Lua can pass to one command.
func TestManyAtOnce(t *testing.T) {
	const n = 20_000
	w := newWorld(t, 0)
	var put []index.Key
	var remove []int64
	for i := range int64(n) {
		put = append(put, index.Key{Key: i << 20, Number: i + 1})
		if i%2 == 0 {
			remove = append(remove, i+1)
		}
	}
	full := index.Mark{Change: 1, Nonce: 1, Live: n, Total: n}
	half := index.Mark{Change: 2, Nonce: 2, Live: n / 2, Total: n}
	if ok, err := w.sets.Apply(t.Context(), w.list.ID, index.Mark{}, index.Delta{To: full, Put: put}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := w.sets.Apply(t.Context(), w.list.ID, full, index.Delta{To: half, Remove: remove}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, number := range []int64{2, n / 2, n} {
		v := queue.View{Change: half.Change, Nonce: half.Nonce}
		seen := []*queue.Signup{{Number: number, QueueKey: (number - 1) << 20}}
		if p, err := w.sets.Rank(t.Context(), w.list.ID, v, seen); err != nil || p.Ranks[0] != number/2 || p.Mark != half {
			t.Errorf("number %d: %+v, %v", number, p, err)
		}
	}
}

// TestAForeignWriteHeals: whatever somebody else writes into Redis, places are right again after a check, from the index, too.
func TestAForeignWriteHeals(t *testing.T) {
	w := newWorld(t, 1)
	var keys []string
	var clock atomic.Int64
	quiet := slog.New(slog.DiscardHandler)
	store := &countedStore{Store: w.sets}
	svc := join.New(join.Config{
		SmallList: 5, Store: w.store, Index: index.New(store, w.store, quiet), Tokens: w.ring, Log: quiet,
		Now: func() time.Time { return time.Unix(clock.Load(), 0) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = svc.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	status := func(m member) join.Standing {
		t.Helper()
		at, err := svc.Status(t.Context(), w.list.ID, m.email)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for name, write := range map[string]func() error{
		"others are moved to the front": func() error {
			for _, m := range w.queue[20:] {
				if err := w.rdb.ZAdd(t.Context(), keys[0], goredis.Z{Score: -1, Member: m.number}).Err(); err != nil {
					return err
				}
			}
			return nil
		},
		"people who are on no list": func() error {
			for n := range 21 {
				if err := w.rdb.ZAdd(t.Context(), keys[0], goredis.Z{Score: -1, Member: 1_000_000 + n}).Err(); err != nil {
					return err
				}
			}
			return w.rdb.HSet(t.Context(), keys[1], "live", 51).Err()
		},
		"another total": func() error { return w.rdb.HSet(t.Context(), keys[1], "total", 99).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			w.open(1) // its index is not being built any more for another write
			var joins []*queue.Join
			for range 30 {
				joins = append(joins, w.newJoin(queue.Token{}, false))
			}
			w.join(t, joins)
			victim := w.queue[14]
			keys = index.KeysOf(w.list.ID)
			if at := status(victim); at.Position != 15 || at.Total != 30 {
				t.Fatalf("before: %+v", at)
			}
			if err := write(); err != nil {
				t.Fatal(err)
			}
			clock.Add(60)
			if at := status(victim); at.Position != 15 || at.Total != 30 {
				t.Errorf("a minute later: %+v", at)
			}
			// Until the index is built anew, and nothing is due.
			for end := time.Now().Add(time.Minute); ; {
				before := store.ranks.Load()
				at := status(victim)
				rank, err := w.rdb.ZRank(t.Context(), keys[0], fmt.Sprint(victim.number)).Result()
				total, totalErr := w.rdb.HGet(t.Context(), keys[1], "total").Int64()
				if err == nil && totalErr == nil && rank == 14 && total == 30 && store.ranks.Load() > before && at.Position == 15 {
					break
				}
				if at.Position != 15 || time.Now().After(end) {
					t.Fatalf("the index is still wrong: rank %d, total %d, %+v", rank, total, at)
				}
			}
		})
	}
}

// TestRedisFailsOver: while Redis is a replica, places come from Postgres. Once its name leads to
// the new primary they come from the index again, and it can be built anew.
func TestRedisFailsOver(t *testing.T) {
	w := newWorld(t, 1)
	address, swap, move := testenv.RedisFailover(t)
	rdb, err := redisconn.Open(address, redisconn.Options{Timeout: time.Second, Retries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rdb.Close() }()
	quiet := slog.New(slog.DiscardHandler)
	places := index.New(index.NewRedis(rdb), w.store, quiet)
	svc := join.New(join.Config{SmallList: -1, Store: w.store, Index: places, Tokens: w.ring, Now: time.Now, Log: quiet})
	joined := 0
	join := func() {
		t.Helper()
		joined++
		w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false)})
		at, err := svc.Status(t.Context(), w.list.ID, w.queue[joined-1].email)
		if err != nil || at.Position != int64(joined) {
			t.Errorf("%+v, %v; want place %d", at, err, joined)
		}
	}
	use := func() error {
		return errors.Join(places.Rebuild(t.Context(), w.list.ID), places.CatchUp(t.Context(), w.list.ID))
	}
	join()
	if err := use(); err != nil {
		t.Fatal(err)
	}
	swap()
	join()
	if err := use(); !goredis.IsReadOnlyError(err) {
		t.Errorf("a replica takes an index: %v", err)
	}
	move()
	join()
	testenv.Within(t, 5*time.Second, "the index is written again", func() bool { return use() == nil })
	join()
	if err := places.CatchUp(t.Context(), w.list.ID); err != nil {
		t.Error(err)
	}
	if n, err := rdb.ZCard(t.Context(), index.KeysOf(w.list.ID)[0]).Result(); err != nil || n != int64(joined) {
		t.Errorf("the index has %d of %d, %v", n, joined, err)
	}
}
