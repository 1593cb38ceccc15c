package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
)

// formerShare is what a version must reach of the one before it.
const formerShare = .95

// crowd is how many connections ask for statuses at the same time, crowded how many people are on their list.
const crowd, crowded = 512, 200_000

// versions measures B1, B3, B6 and a crowd's statuses against the former program, all services running on both sides: has a
// change made a request dearer? It also says how much processor time a request takes of the program, of Postgres and of
// Redis, which other load on the machine disturbs less.
func (b *bench) versions(ctx context.Context) (err error) {
	sides, stop, err := b.launches(ctx, "former", crowded)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	settle := func(ctx context.Context) error { return b.followed(ctx, sides) }
	signers, fresh := map[*launch]*generator{}, map[*launch]*list{}
	for _, l := range sides {
		signers[l] = &generator{addr: l.addr}
		if fresh[l], err = newList(ctx, l.conn); err != nil {
			return err
		}
	}
	type side = func(*launch) func(context.Context, time.Duration) (sample, error)
	join := func(conns int) side {
		return func(l *launch) func(context.Context, time.Duration) (sample, error) {
			gen, lists := signers[l], []*list{fresh[l]}
			return func(ctx context.Context, d time.Duration) (sample, error) { return gen.signUp(ctx, lists, conns, d) }
		}
	}
	for _, r := range []struct {
		id, what string
		side     side
	}{
		{"B1", fmt.Sprintf("Signups a second into one hot waitlist over %d connections", b.conns), join(b.conns)},
		{"B3", "Signups a second, one after the other on one connection", join(1)},
		{"B6", fmt.Sprintf("Requests a second for a form's config over %d connections", configConns), func(l *launch) func(
			context.Context, time.Duration) (sample, error) {
			request := []byte("GET /v1/public/waitlists/" + l.list.id + "/config HTTP/1.1\r\nHost: bench\r\n\r\n")
			return func(ctx context.Context, d time.Duration) (sample, error) {
				return repeatRequest(ctx, l.addr, request, configConns, d)
			}
		}},
		{"statuses", fmt.Sprintf("Statuses a second of random people on a list of %d over %d connections", crowded, crowd), func(l *launch) func(
			context.Context, time.Duration) (sample, error) {
			load := statusLoad{addr: l.addr, list: l.list, size: crowded}
			return func(ctx context.Context, d time.Duration) (sample, error) { return load.saturate(ctx, crowd, d) }
		}},
	} {
		var spent [2][len(spenders)][]time.Duration
		turn := func(i int) func(context.Context, time.Duration) (sample, error) {
			run := r.side(sides[i])
			return func(ctx context.Context, d time.Duration) (sample, error) {
				before, err := b.spent(ctx, sides[i])
				if err != nil {
					return sample{}, err
				}
				s, err := run(ctx, d)
				if err != nil {
					return s, err
				}
				after, err := b.spent(ctx, sides[i])
				for j := range after {
					spent[i][j] = append(spent[i][j], (after[j]-before[j])/time.Duration(max(len(s.latencies), 1)))
				}
				return s, err
			}
		}
		end := b.sideProfiles(ctx, r.id, sides)
		pairs, err := b.turns(ctx, r.id, settle, turn(0), turn(1), b.slice)
		end()
		if err != nil {
			return err
		}
		for j, name := range spenders {
			for i := range spent {
				spent[i][j] = slices.Sorted(slices.Values(spent[i][j][1:])) // without the warm-up
			}
			b.say("%s: a request takes %v of a processor in %s, formerly %v", r.id, spent[0][j][b.pairs/2], name, spent[1][j][b.pairs/2])
		}
		ours, theirs, ratio := of(pairs, rate)
		b.add(row{
			id: r.id + " former", goal: fmt.Sprintf("≥ %.2f ×", formerShare), ratio: ratio, met: ratio >= formerShare,
			what: r.what + ", all services running, against the former program.",
			ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
		})
	}
	return nil
}

// spenders are the processes whose processor time counts.
var spenders = [...]string{"the program", "Postgres", "Redis"}

// spent returns the processor time that the spenders have taken: Postgres for a side's database, Redis for all.
func (b *bench) spent(ctx context.Context, l *launch) (took [len(spenders)]time.Duration, err error) {
	if took[0], err = l.srv.cpu(); err != nil {
		return took, err
	}
	rows, err := l.conn.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	if err != nil {
		return took, fmt.Errorf("find Postgres's processes: %w", err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return took, fmt.Errorf("find Postgres's processes: %w", err)
	}
	o, err := goredis.ParseURL(b.redis.URL)
	if err != nil {
		return took, fmt.Errorf("read the address of Redis: %w", err)
	}
	client := goredis.NewClient(o)
	defer client.Close()
	redis, err := client.Info(ctx, "server").Result()
	if err != nil {
		return took, fmt.Errorf("find Redis's process: %w", err)
	}
	for _, pid := range pids {
		one, err := processorTime(pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return took, err
		}
		took[1] += one
	}
	took[2], err = processorTime(field([]byte(redis), "process_id:"))
	return took, err
}

// sideProfiles is profiles for each side of a row.
func (b *bench) sideProfiles(ctx context.Context, id string, sides []*launch) (stop func()) {
	var stops []func()
	for _, l := range sides {
		stops = append(stops, b.profiles(ctx, l.srv, id+"-"+l.name+"-"))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
