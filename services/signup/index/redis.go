package index

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"waitlist.internal/services/signup/queue"
)

// Redis implements Store: for each waitlist a sorted set of its signups' numbers by queue key, and a hash with the mark
// of the set. Both keys share the hash tag {waitlist id}. All of it is derived from Postgres and may be lost at any time.
type Redis struct {
	rdb goredis.UniversalClient
}

// NewRedis returns an index on rdb, whose maxmemory-policy should be noeviction.
func NewRedis(rdb goredis.UniversalClient) *Redis { return &Redis{rdb: rdb} }

func setKey(waitlistID string) string   { return "queue:{" + waitlistID + "}:keys" }
func markKey(waitlistID string) string  { return "queue:{" + waitlistID + "}:mark" }
func leaseKey(waitlistID string) string { return "queue:{" + waitlistID + "}:lease" }

// KeysOf returns all Redis keys of a waitlist: set, mark, lease.
func KeysOf(waitlistID string) []string {
	return []string{setKey(waitlistID), markKey(waitlistID), leaseKey(waitlistID)}
}

// The scripts return again if the caller has to look again, and wrong if the index
// contradicts its mark. They then drop the mark, so that nobody trusts the set until it
// is rebuilt.
const (
	again = -1
	wrong = -2
)

// rankScript: KEYS set, mark; ARGV change, nonce, then number and queue key of each member. It returns the
// index's change, nonce (a text: Lua's numbers are exact only to 2^53), live and total, then each rank, 0 for
// a member that is missing. It compares the nonce and the members' scores only if the index is at the caller's change.
var rankScript = goredis.NewScript(`
local mark = redis.call('HMGET', KEYS[2], 'change', 'nonce', 'live', 'total')
if not mark[1] or tonumber(mark[1]) < tonumber(ARGV[1]) then return {-1} end
local same = tonumber(mark[1]) == tonumber(ARGV[1])
local wrong = redis.call('ZCARD', KEYS[1]) ~= tonumber(mark[3]) or (same and mark[2] ~= ARGV[2])
local places = {tonumber(mark[1]), mark[2], tonumber(mark[3]), tonumber(mark[4])}
for i = 3, #ARGV, 2 do
  local rank = redis.call('ZRANK', KEYS[1], ARGV[i])
  wrong = wrong or (same and (not rank or tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i])) ~= tonumber(ARGV[i + 1])))
  places[#places + 1] = rank and rank + 1 or 0
end
if wrong then
  redis.call('DEL', KEYS[2])
  return {-2}
end
return places`)

// applyScript: KEYS set, mark; ARGV from change, from nonce, to change, to
// nonce, live, total, number of puts, then key and number of each, then removed
// numbers. A command takes many members at once, but not more values than Lua can unpack.
var applyScript = goredis.NewScript(`
local mark = redis.call('HMGET', KEYS[2], 'change', 'nonce')
if (mark[1] or '0') ~= ARGV[1] or (mark[2] or '0') ~= ARGV[2] then return -1 end
if ARGV[1] == '0' then redis.call('UNLINK', KEYS[1]) end
local last = 7 + 2 * tonumber(ARGV[7])
for i = 8, last, 2000 do redis.call('ZADD', KEYS[1], unpack(ARGV, i, math.min(i + 1999, last))) end
for i = last + 1, #ARGV, 2000 do redis.call('ZREM', KEYS[1], unpack(ARGV, i, math.min(i + 1999, #ARGV))) end
if redis.call('ZCARD', KEYS[1]) ~= tonumber(ARGV[5]) then
  redis.call('DEL', KEYS[2])
  return -2
end
redis.call('HSET', KEYS[2], 'change', ARGV[3], 'nonce', ARGV[4], 'live', ARGV[5], 'total', ARGV[6])
return 1`)

// swapScript: KEYS set, mark, new set; ARGV change, nonce, live, total. A present index
// with a later mark stays. An index of another history has no mark here: Build dropped
// it.
var swapScript = goredis.NewScript(`
if redis.call('ZCARD', KEYS[3]) ~= tonumber(ARGV[3]) then
  redis.call('UNLINK', KEYS[3])
  return -2
end
local mark = redis.call('HGET', KEYS[2], 'change')
if mark and tonumber(mark) > tonumber(ARGV[1]) then
  redis.call('UNLINK', KEYS[3])
  return 0
end
redis.call('UNLINK', KEYS[1])
if tonumber(ARGV[3]) > 0 then redis.call('RENAME', KEYS[3], KEYS[1]) end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[2], 'change', ARGV[1], 'nonce', ARGV[2], 'live', ARGV[3], 'total', ARGV[4])
return 1`)

// Rank implements Store.
func (x *Redis) Rank(ctx context.Context, waitlistID string, v queue.View, seen []*queue.Signup) (Places, error) {
	args := make([]any, 0, 2+2*len(seen))
	args = append(args, v.Change, v.Nonce)
	for _, s := range seen {
		args = append(args, s.Number, s.QueueKey)
	}
	got, err := rankScript.Run(ctx, x.rdb, []string{setKey(waitlistID), markKey(waitlistID)}, args...).Int64Slice()
	switch {
	case err != nil:
		return Places{}, fmt.Errorf("rank: %w", err)
	case got[0] == wrong:
		return Places{}, ErrStale
	case got[0] == again:
		return Places{}, nil
	}
	return Places{Ranks: got[4:], Mark: Mark{Change: got[0], Nonce: got[1], Live: got[2], Total: got[3]}}, nil
}

// Mark implements Store.
func (x *Redis) Mark(ctx context.Context, waitlistID string) (Mark, error) {
	fields, err := x.rdb.HMGet(ctx, markKey(waitlistID), "change", "nonce", "live", "total").Result()
	if err != nil {
		return Mark{}, fmt.Errorf("read mark: %w", err)
	}
	var m Mark
	for i, to := range []*int64{&m.Change, &m.Nonce, &m.Live, &m.Total} {
		text, ok := fields[i].(string)
		if !ok {
			return Mark{}, nil
		}
		if *to, err = strconv.ParseInt(text, 10, 64); err != nil {
			return Mark{}, fmt.Errorf("read mark: %w", err)
		}
	}
	return m, nil
}

// Apply implements Store.
func (x *Redis) Apply(ctx context.Context, waitlistID string, from Mark, d Delta) (bool, error) {
	args := make([]any, 0, 7+2*len(d.Put)+len(d.Remove))
	args = append(args, from.Change, from.Nonce, d.To.Change, d.To.Nonce, d.To.Live, d.To.Total, len(d.Put))
	for _, p := range d.Put {
		args = append(args, p.Key, p.Number)
	}
	for _, number := range d.Remove {
		args = append(args, number)
	}
	code, err := applyScript.Run(ctx, x.rdb, []string{setKey(waitlistID), markKey(waitlistID)}, args...).Int()
	switch {
	case err != nil:
		return false, fmt.Errorf("apply changes: %w", err)
	case code == wrong:
		return false, ErrStale
	}
	return code == 1, nil
}

// Lease implements Store.
func (x *Redis) Lease(ctx context.Context, waitlistID string, ttl time.Duration) (func(), bool, error) {
	owner := uuid.NewString()
	ok, err := x.rdb.SetNX(ctx, leaseKey(waitlistID), owner, ttl).Result()
	if err != nil {
		return nil, false, fmt.Errorf("lease: %w", err)
	}
	release := func() {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = releaseScript.Run(short, x.rdb, []string{leaseKey(waitlistID)}, owner).Err()
	}
	return release, ok, nil
}

// releaseScript: KEYS lease; ARGV owner.
var releaseScript = goredis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// builderTTL bounds the life of an abandoned new index.
const builderTTL = 15 * time.Minute

// Build implements Store. It drops the mark of the present index, which was
// found wrong.
func (x *Redis) Build(ctx context.Context, waitlistID string) (Builder, error) {
	if err := x.rdb.Del(ctx, markKey(waitlistID)).Err(); err != nil {
		return nil, fmt.Errorf("drop mark: %w", err)
	}
	return &builder{rdb: x.rdb, waitlistID: waitlistID, key: "queue:{" + waitlistID + "}:build:" + uuid.NewString()}, nil
}

type builder struct {
	rdb        goredis.UniversalClient
	waitlistID string
	key        string
}

// Put implements Builder.
func (b *builder) Put(ctx context.Context, keys []Key) error {
	members := make([]goredis.Z, len(keys))
	for i, k := range keys {
		// Keys stay below 2^53, up to which a float64 is exact.
		members[i] = goredis.Z{Score: float64(k.Key), Member: k.Number}
	}
	_, err := b.rdb.Pipelined(ctx, func(p goredis.Pipeliner) error {
		p.ZAdd(ctx, b.key, members...)
		p.Expire(ctx, b.key, builderTTL)
		return nil
	})
	if err != nil {
		return fmt.Errorf("fill index: %w", err)
	}
	return nil
}

// Remove implements Builder.
func (b *builder) Remove(ctx context.Context, numbers []int64) error {
	members := make([]any, len(numbers))
	for i, n := range numbers {
		members[i] = n
	}
	if err := b.rdb.ZRem(ctx, b.key, members...).Err(); err != nil {
		return fmt.Errorf("fill index: %w", err)
	}
	return nil
}

// errShort says that a new index lost members before the swap.
var errShort = errors.New("redis: new index is incomplete")

// Swap implements Builder.
func (b *builder) Swap(ctx context.Context, m Mark) error {
	code, err := swapScript.Run(ctx, b.rdb, []string{setKey(b.waitlistID), markKey(b.waitlistID), b.key},
		m.Change, m.Nonce, m.Live, m.Total).Int()
	if err != nil {
		return fmt.Errorf("swap index: %w", err)
	}
	if code == wrong {
		return errShort
	}
	return nil
}

// Discard implements Builder.
func (b *builder) Discard(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = b.rdb.Unlink(short, b.key).Err()
}
