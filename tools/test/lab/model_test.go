//go:build k8s

package lab_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"waitlist.internal/services/signup/index"
)

const (
	// modelSteps is the approximate number of random steps of testModel; MODEL_STEPS overrides it. TestModel of services/signup
	// takes more than 10^5.
	modelSteps = 20_000
	// walks is the number of walks that run concurrently.
	walks = 4
	// large is a list size at which positions come from the index in Redis.
	large = 1_050
	// mostListed is the largest limit of a page; pageEvery is the number of steps between two pages.
	mostListed, pageEvery = 100, 5
)

// walker takes one walk. It works on one list at a time and keeps an oracle of it.
type walker struct {
	client

	pool *pgxpool.Pool
	rdb  *goredis.Client

	key, list string
	// queue are the people in order; total is how many ever joined.
	queue []*person
	total int
	names int
	// steps counts the steps of all walks, checks the calls of check.
	steps  *atomic.Int64
	checks int
	// snapshot is an earlier copy of the index.
	snapshot [2]string
}

type person struct {
	email, token string
	referrals    int
}

// testModel checks through the gateway that positions are exact: after each random step, a slice, Postgres and the answers
// of every replica agree, whatever happens to the index.
func (w *world) testModel(t *testing.T) {
	s := w.deploy(t, w.chart(), w.images)
	steps := modelSteps
	if v := os.Getenv("MODEL_STEPS"); v != "" {
		var err error
		if steps, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	const checks = 25
	for name, value := range map[string]string{
		"rapid.checks": strconv.Itoa(checks), "rapid.steps": strconv.Itoa(max(1, steps/walks/checks)), "rapid.nofailfile": "true",
	} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pgxpool.New(t.Context(), s.db)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	options, err := goredis.ParseURL(s.redis)
	if err != nil {
		t.Fatal(err)
	}
	rdb := goredis.NewClient(options)
	defer func() { _ = rdb.Close() }()
	transport := &http.Transport{MaxIdleConnsPerHost: walks}
	defer transport.CloseIdleConnections()
	var taken atomic.Int64
	var all sync.WaitGroup
	defer all.Wait()
	t.Run("walks", func(t *testing.T) {
		for i := range walks {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				x := &walker{client: client{t, s.url + "/v1", transport}, pool: pool, rdb: rdb, steps: &taken}
				owner := map[string]any{"email": fmt.Sprintf("walker-%d@example.com", i), "password": "correct horse battery"}
				x.key = x.do(http.StatusCreated, "", http.MethodPost, "/auth/register", owner)["api_key"].(string)
				rapid.Check(t, x.walk)
			})
		}
	})
	t.Logf("%d steps", taken.Load())
}

// walk works on one list from its creation.
func (w *walker) walk(t *rapid.T) {
	w.t = t
	boost := rapid.SampledFrom([]int{1, 2, 7, 100}).Draw(t, "boost")
	w.list = w.do(http.StatusCreated, w.key, http.MethodPost, "/waitlists", map[string]any{
		"name": "Model", "settings": map[string]any{"referral_boost": boost},
	})["waitlist_id"].(string)
	w.queue, w.total, w.snapshot = nil, 0, [2]string{}
	if rapid.Bool().Draw(t, "large") {
		w.imports(large, nil)
	}
	here := func(t *rapid.T) {
		if len(w.queue) == 0 {
			t.Skip("the list is empty")
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"join":   func(*rapid.T) { w.join(nil, boost) },
		"credit": func(t *rapid.T) { here(t); w.join(w.someone(t), boost) },
		"again": func(t *rapid.T) {
			here(t)
			p := w.someone(t)
			answer := w.do(http.StatusOK, "", http.MethodPost, w.public("/signups"), map[string]any{"email": p.email})
			w.same(p, answer)
		},
		"import": func(t *rapid.T) {
			var present *person
			if len(w.queue) > 0 && rapid.Bool().Draw(t, "present") {
				present = w.someone(t)
			}
			w.imports(rapid.IntRange(1, 5).Draw(t, "rows"), present)
		},
		"move": func(t *rapid.T) {
			here(t)
			p, to := w.someone(t), rapid.IntRange(1, len(w.queue)+2).Draw(t, "position")
			answer := w.do(http.StatusOK, w.key, http.MethodPatch, w.admin("/signups/"+p.email+"/position"), map[string]any{"position": to})
			w.place(p, min(to, len(w.queue))-1)
			w.same(p, answer)
		},
		"remove": func(t *rapid.T) {
			here(t)
			p := w.someone(t)
			w.do(http.StatusNoContent, w.key, http.MethodDelete, w.admin("/signups/"+p.email), nil)
			w.queue = slices.Delete(w.queue, w.at(p), w.at(p)+1)
			w.do(http.StatusNotFound, "", http.MethodGet, w.public("/signups/"+p.email), nil)
		},
		"damage index": w.damage,
		"":             func(t *rapid.T) { w.steps.Add(1); w.check(t) },
	})
	w.do(http.StatusNoContent, w.key, http.MethodDelete, w.admin(""), nil)
}

func (w *walker) public(path string) string { return "/public/waitlists/" + w.list + path }
func (w *walker) admin(path string) string  { return "/waitlists/" + w.list + path }

func (w *walker) someone(t *rapid.T) *person {
	return w.queue[rapid.IntRange(0, len(w.queue)-1).Draw(t, "person")]
}

func (w *walker) at(p *person) int { return slices.Index(w.queue, p) }

// place moves a person in the oracle.
func (w *walker) place(p *person, to int) {
	at := w.at(p)
	w.queue = slices.Insert(slices.Delete(w.queue, at, at+1), to, p)
}

func (w *walker) newEmail() string {
	w.names++
	return fmt.Sprintf("p%d@example.com", w.names)
}

// join signs a person up, referred by referrer unless that is nil.
func (w *walker) join(referrer *person, boost int) {
	p := &person{email: w.newEmail()}
	body := map[string]any{"email": p.email}
	if referrer != nil {
		if referrer.token == "" { // imported
			referrer.token = w.do(http.StatusOK, "", http.MethodPost, w.public("/signups"),
				map[string]any{"email": referrer.email})["referral_token"].(string)
		}
		body["referred_by_token"] = referrer.token
	}
	answer := w.do(http.StatusCreated, "", http.MethodPost, w.public("/signups"), body)
	p.token, _ = answer["referral_token"].(string)
	w.queue = append(w.queue, p)
	w.total++
	w.same(p, answer)
	if referrer != nil {
		referrer.referrals++
		w.place(referrer, max(0, w.at(referrer)-boost))
	}
}

// imports imports n new people and one who is already on the list.
func (w *walker) imports(n int, present *person) {
	var rows []map[string]any
	for range n {
		p := &person{email: w.newEmail()}
		rows = append(rows, map[string]any{"email": p.email})
		w.queue = append(w.queue, p)
	}
	skipped := 0
	if present != nil {
		rows, skipped = append(rows, map[string]any{"email": present.email}), 1
	}
	w.total += n
	answer := w.do(http.StatusOK, w.key, http.MethodPost, w.admin("/import"), map[string]any{"signups": rows})
	if answer["imported"] != float64(n) || answer["skipped"] != float64(skipped) {
		w.t.Fatalf("import of %d new and %d existing people: %v", n, skipped, answer)
	}
}

// same compares an answer about a person with the oracle, as far as the answer has the fields.
func (w *walker) same(p *person, answer map[string]any) {
	w.t.Helper()
	for field, want := range map[string]any{
		"email": p.email, "position": float64(w.at(p) + 1), "referral_count": float64(p.referrals), "total_signups": float64(w.total),
	} {
		if got, said := answer[field]; said && got != want {
			w.t.Fatalf("%s of %s is %v, want %v, with %d on the list", field, p.email, got, want, len(w.queue))
		}
	}
	if answer["position"] == nil {
		w.t.Fatalf("the answer has no position: %v", answer)
	}
}

// check compares the oracle with Postgres, with the answers about one person and, often, with the first page.
func (w *walker) check(t *rapid.T) {
	var stored []string
	err := w.pool.QueryRow(t.Context(),
		"SELECT coalesce(array_agg(email ORDER BY queue_key), '{}') FROM signup.signup WHERE waitlist_id = $1", w.list).Scan(&stored)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(stored, w.queue, func(email string, p *person) bool { return email == p.email }) {
		t.Fatalf("the order in Postgres differs: %v", stored)
	}
	if len(w.queue) == 0 {
		return
	}
	// Ask twice, to reach both replicas.
	i := w.names % len(w.queue)
	for range 2 {
		w.same(w.queue[i], w.do(http.StatusOK, "", http.MethodGet, w.public("/signups/"+w.queue[i].email), nil))
	}
	if w.checks++; w.checks%pageEvery != 0 {
		return
	}
	page := w.do(http.StatusOK, w.key, http.MethodGet, w.admin("/signups?limit="+strconv.Itoa(mostListed)), nil)["signups"].([]any)
	if len(page) != min(len(w.queue), mostListed) {
		t.Fatalf("a page of %d with %d on the list", len(page), len(w.queue))
	}
	for i, row := range page {
		w.same(w.queue[i], row.(map[string]any))
	}
}

// damage does to the index what an outage of Redis can do.
func (w *walker) damage(t *rapid.T) {
	ctx := context.WithoutCancel(t.Context())
	keys := index.KeysOf(w.list)
	set, mark := keys[0], keys[1]
	switch rapid.SampledFrom([]string{"flush", "evict", "forget", "lose", "save", "restore"}).Draw(t, "damage") {
	case "flush":
		w.rdb.FlushDB(ctx)
	case "evict": // the set is lost, its mark stays
		w.rdb.Del(ctx, set)
	case "forget":
		w.rdb.Del(ctx, mark)
	case "lose": // one member is lost
		w.rdb.ZPopMin(ctx, set)
	case "save":
		for i, k := range keys[:2] {
			w.snapshot[i] = w.rdb.Dump(ctx, k).Val()
		}
	case "restore": // an old snapshot of both returns
		for i, k := range keys[:2] {
			w.rdb.Del(ctx, k)
			if w.snapshot[i] != "" {
				w.rdb.RestoreReplace(ctx, k, 0, w.snapshot[i])
			}
		}
	}
}
