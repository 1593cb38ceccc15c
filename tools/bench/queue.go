package main

import (
	"context"
	"crypto/md5" // as fill makes tokens
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"waitlist.internal/libs/devservers"
)

const (
	// queueGoal is how many times as long a change of the queue may take on the large list.
	queueGoal = 1.5
	// lookGoal is the p50 of a status without Redis on the large list, in milliseconds.
	lookGoal = 5.0
	// rowsGoal is how many rows a move writes when all moves lead to one spot.
	rowsGoal = 4.0
)

// boosts are the places that a credit gains in B5.
func boosts() []int { return []int{1, 10, 100} }

// tokenOf returns the referral token of a member that fill has inserted.
func tokenOf(n int64) string {
	sum := md5.Sum([]byte(strconv.FormatInt(n, 10)))
	return hex.EncodeToString(sum[:])
}

// queueSide is a filled list of B5 with the whole suite that serves it.
type queueSide struct {
	*suite
	launch
	// last is the cursor of the page read last.
	last string
}

// queue measures B5: what a change of the queue costs on a large and on a small list.
func (b *bench) queue(ctx context.Context) (err error) {
	sides := make([]*queueSide, 2) // the large list, the small one
	for i, size := range []int{b.rows, b.small} {
		s, conn, err := b.openSuite(ctx, fmt.Sprintf("queue%d", i+1))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.close(ctx, conn)) }()
		l, err := s.newList(ctx)
		if err != nil {
			return err
		}
		took, err := fill(ctx, conn, l, size)
		if err != nil {
			return err
		}
		b.say("B5: filled a waitlist with %d signups in %.0f s", size, took.Seconds())
		sides[i] = &queueSide{suite: s, launch: launch{addr: s.addr, list: l, conn: conn, filled: int64(size)}}
		sides[i].next.Store(int64(size))
	}
	if err := b.looksWithoutRedis(ctx, sides); err != nil {
		return err
	}
	for _, s := range sides { // a change would have the index built, beside the turns
		if err := b.sizes(ctx, s); err != nil {
			return err
		}
	}
	for _, boost := range boosts() {
		for _, s := range sides {
			settings := fmt.Sprintf(`{"settings":{"referral_boost":%d}}`, boost)
			if err := s.patch(ctx, "", settings); err != nil {
				return err
			}
		}
		what := fmt.Sprintf("p50 of one referred signup at a time, whose credit gains %d places", boost)
		if err := b.oneByOne(ctx, fmt.Sprintf("B5 credit %d", boost), what, sides, (*queueSide).credit); err != nil {
			return err
		}
	}
	for _, one := range []struct {
		id, what string
		do       func(*queueSide, context.Context, *client) error
	}{
		{"B5 move", "p50 of a move of a random person to the middle", (*queueSide).move},
		{"B5 list", "p50 of the owner's next page of 100 signups", (*queueSide).page},
		{"B5 leaderboard", "p50 of the leaderboard of 50", (*queueSide).leaders},
		{"B5 stats", "p50 of the owner's counts", (*queueSide).stats},
	} {
		if err := b.oneByOne(ctx, one.id, one.what, sides, one.do); err != nil {
			return err
		}
	}
	for _, s := range sides {
		if err := b.audit(ctx, s.conn); err != nil {
			return err
		}
	}
	return b.onOneSpot(ctx, sides[0])
}

// sizes has the index of a list built, and says how long that takes and what a signup takes up.
func (b *bench) sizes(ctx context.Context, s *queueSide) error {
	before, err := b.redisMemory(ctx)
	if err != nil {
		return err
	}
	took, err := b.index(ctx, statusLoad{addr: s.addr, list: s.list, size: int(s.filled)})
	if err != nil {
		return err
	}
	after, err := b.redisMemory(ctx)
	if err != nil {
		return err
	}
	var table, indexes int64
	if err := s.conn.QueryRow(ctx, `
		SELECT pg_table_size(oid), pg_indexes_size(oid) FROM pg_class WHERE oid = 'signup.signup'::regclass`).Scan(&table, &indexes); err != nil {
		return fmt.Errorf("B5: read the size of a table: %w", err)
	}
	b.say("B5: the index of %d signups was built in %.0f s; bytes of a signup: %d in the table, %d in its indexes, %d in Redis",
		s.filled, took.Seconds(), table/s.filled, indexes/s.filled, (after-before)/s.filled)
	return nil
}

// redisMemory returns the bytes that Redis has taken for its data.
func (b *bench) redisMemory(ctx context.Context) (n int64, err error) {
	o, err := goredis.ParseURL(b.redis.URL)
	if err != nil {
		return 0, fmt.Errorf("read the address of Redis: %w", err)
	}
	client := goredis.NewClient(o)
	defer client.Close()
	info, err := client.InfoMap(ctx, "memory").Result()
	if err == nil {
		n, err = strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("read the memory of Redis: %w", err)
	}
	return n, nil
}

// oneByOne lets both lists take turns with one request at a time.
func (b *bench) oneByOne(
	ctx context.Context, id, what string, sides []*queueSide, do func(*queueSide, context.Context, *client) error,
) error {
	turn := func(s *queueSide) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) { return s.repeat(ctx, d, do) }
	}
	settle := func(ctx context.Context) error {
		for _, s := range sides {
			if err := published(ctx, s.conn); err != nil {
				return err
			}
		}
		return nil
	}
	pairs, err := b.turns(ctx, id, settle, turn(sides[0]), turn(sides[1]), b.slice/2)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, at(.5))
	b.add(row{
		id: id, goal: "≤ 1.5 ×", ratio: ratio, met: ratio <= queueGoal,
		what: fmt.Sprintf("%s on a list of %d, against %d.", what, b.rows, b.small),
		ours: fmt.Sprintf("%.2f ms", ours), theirs: fmt.Sprintf("%.2f ms", theirs),
	})
	return nil
}

// repeat makes one request after the other on one connection for d.
func (s *queueSide) repeat(ctx context.Context, d time.Duration, do func(*queueSide, context.Context, *client) error) (sample, error) {
	c, err := dial(ctx, s.addr)
	if err != nil {
		return sample{}, err
	}
	defer c.close()
	var out sample
	began := time.Now()
	for now := began; now.Sub(began) < d && ctx.Err() == nil; {
		_ = c.conn.SetDeadline(now.Add(answerTimeout))
		if err := do(s, ctx, c); err != nil {
			return sample{}, err
		}
		done := time.Now()
		out.latencies = append(out.latencies, int(done.Sub(now).Microseconds()))
		now = done
	}
	out.perSecond = float64(len(out.latencies)) / clock(began)
	slices.Sort(out.latencies)
	return out, ctx.Err()
}

// credit signs somebody up who was referred by a random member.
func (s *queueSide) credit(_ context.Context, c *client) error {
	_, status, err := s.signUp(c, tokenOf(1+rand.Int64N(s.filled)))
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("signup was answered %d", status)
	}
	return err
}

// page reads the page after the last one, or the first.
func (s *queueSide) page(ctx context.Context, _ *client) error {
	path := "/signups?limit=100"
	if s.last != "" {
		path += "&last_key=" + url.QueryEscape(s.last)
	}
	var page struct {
		Count   int    `json:"count"`
		LastKey string `json:"last_key"`
	}
	if err := s.get(ctx, "/v1/waitlists/"+s.list.id+path, &page); err != nil {
		return err
	}
	if page.Count == 0 || page.Count < 100 && page.LastKey != "" {
		return fmt.Errorf("a page has %d signups", page.Count)
	}
	s.last = page.LastKey
	return nil
}

// leaders reads the leaderboard.
func (s *queueSide) leaders(ctx context.Context, _ *client) error {
	var board struct {
		Leaderboard []struct {
			Rank int `json:"rank"`
		} `json:"leaderboard"`
	}
	err := s.get(ctx, "/v1/public/waitlists/"+s.list.id+"/leaderboard?limit=50", &board)
	if err == nil && len(board.Leaderboard) != 50 {
		err = fmt.Errorf("the leaderboard has %d places", len(board.Leaderboard))
	}
	return err
}

// stats reads the counts.
func (s *queueSide) stats(ctx context.Context, _ *client) error {
	var stats struct {
		Total int64 `json:"total_signups"`
	}
	err := s.get(ctx, "/v1/waitlists/"+s.list.id+"/stats", &stats)
	if err == nil && stats.Total < s.filled {
		err = fmt.Errorf("the statistics have %d signups of %d", stats.Total, s.filled)
	}
	return err
}

// move moves a random member to the middle.
func (s *queueSide) move(ctx context.Context, _ *client) error {
	return s.moveTo(ctx, address(1+rand.Int64N(s.filled)), s.filled/2)
}

func (s *queueSide) moveTo(ctx context.Context, email string, position int64) error {
	return s.patch(ctx, "/signups/"+email+"/position", fmt.Sprintf(`{"position":%d}`, position))
}

// patch changes the list, or what path names below it, as the owner.
func (s *queueSide) patch(ctx context.Context, path, body string) error {
	res, err := s.do(ctx, http.MethodPatch, "/v1/waitlists/"+s.list.id+path, []byte(body))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

// looksWithoutRedis measures the status of random people while Postgres alone knows their places.
func (b *bench) looksWithoutRedis(ctx context.Context, sides []*queueSide) (err error) {
	redis, err := devservers.StartRedis(ctx, devservers.RedisOptions{Dir: filepath.Join(b.dir, "redis-away")})
	if err != nil {
		return err
	}
	crowds := make([]statusLoad, len(sides))
	for i, s := range sides {
		name := fmt.Sprintf("queue%d", i+1)
		srv, err := b.lab.start(ctx, b.program, b.postgres.URL(name), name+"-away", "REDIS_URL="+redis.URL, "KAFKA_TOPIC_PREFIX="+name+".")
		if err != nil {
			return errors.Join(err, redis.Stop())
		}
		defer func() { err = errors.Join(err, srv.stop()) }()
		crowds[i] = statusLoad{addr: srv.addr, list: s.list, size: int(s.filled)}
	}
	if err := redis.Stop(); err != nil {
		return err
	}
	side := func(c statusLoad) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) { return c.offer(ctx, b.rate, d) }
	}
	none := func(context.Context) error { return nil }
	pairs, err := b.turns(ctx, "B5 status", none, side(crowds[0]), side(crowds[1]), b.slice/2)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, at(.5))
	b.add(row{
		id: "B5 status", goal: "≤ 5 ms", ratio: ratio, met: ours <= lookGoal,
		what: fmt.Sprintf("p50 of a random person's status without Redis on a list of %d, against %d, at %.0f requests a second.",
			b.rows, b.small, b.rate),
		ours:   fmt.Sprintf("%.2f ms (p99 %.2f ms)", ours, median(pairs, func(p pair) float64 { return p.ours.quantile(.99) })),
		theirs: fmt.Sprintf("%.2f ms", theirs),
	})
	return nil
}

// onOneSpot moves the last one to the same position again and again, which uses up the room between two keys, and counts the
// rows that this writes. The suite has stopped when it returns, since Postgres counts a connection's rows at its end.
func (b *bench) onOneSpot(ctx context.Context, s *queueSide) error {
	written := func() (rows int64, err error) {
		err = s.conn.QueryRow(ctx, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'signup.signup'::regclass").Scan(&rows)
		return rows, err
	}
	var last []string
	rows, err := s.conn.Query(ctx,
		`SELECT email FROM signup.signup WHERE waitlist_id = $1 ORDER BY queue_key DESC LIMIT $2`, s.list.id, b.moves)
	if err == nil {
		last, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return fmt.Errorf("B5: read the last people: %w", err)
	}
	before, err := written()
	if err != nil {
		return fmt.Errorf("B5: count rows: %w", err)
	}
	began := time.Now()
	for i, email := range last {
		if err := s.moveTo(ctx, email, s.filled/2); err != nil {
			return err
		}
		if n := i + 1; n%10_000 == 0 {
			b.say("B5: %d moves to one spot in %.0f s", n, clock(began))
		}
	}
	if err := s.stop(); err != nil {
		return err
	}
	after, err := written()
	if err != nil {
		return fmt.Errorf("B5: count rows: %w", err)
	}
	each := float64(after-before) / float64(len(last))
	b.add(row{
		id: "B5 rows", goal: "≤ 4", ratio: each / rowsGoal, met: each <= rowsGoal,
		what: fmt.Sprintf("Rows that a move writes, its own included, when %d people are moved to one spot of a list of %d, against the goal.",
			len(last), b.rows),
		ours: fmt.Sprintf("%.2f", each), theirs: fmt.Sprintf("%.0f", rowsGoal),
	})
	return nil
}
