package idempotency_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/idempotency"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const account = "0193d4a2-5c1e-7a41-8000-000000000001"

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), testenv.Postgres(t), "public", 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), idempotency.Schema); err != nil {
		t.Fatal(err)
	}
	return pool
}

// do runs one request in its own transaction.
func do(
	t *testing.T, pool *pgxpool.Pool, r idempotency.Request, effect func() ([]byte, error),
) (response string, replayed bool, err error) {
	t.Helper()
	err = pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		var raw []byte
		raw, replayed, err = idempotency.Do(t.Context(), tx, r, effect)
		response = string(raw)
		return err
	})
	return response, replayed, err
}

func answer(s string) func() ([]byte, error) { return func() ([]byte, error) { return []byte(s), nil } }

func TestDo(t *testing.T) {
	t.Parallel()
	pool := database(t)
	base := idempotency.Request{Scope: "s", AccountID: account, Key: "k", Content: []byte("c")}
	with := func(change func(*idempotency.Request)) idempotency.Request {
		r := base
		change(&r)
		return r
	}
	failed := errors.New("failed")
	if _, _, err := do(t, pool, base, func() ([]byte, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name     string
		request  idempotency.Request
		response string
		replayed bool
		code     apierr.Code
	}{
		{"after a failure it runs", base, "1", false, ""},
		{"again", base, "1", true, ""},
		{"other content", with(func(r *idempotency.Request) { r.Content = []byte("d") }), "", false, apierr.Conflict},
		{"other key", with(func(r *idempotency.Request) { r.Key = "K" }), "4", false, ""},
		{"other scope", with(func(r *idempotency.Request) { r.Scope = "S" }), "5", false, ""},
		{"other account", with(func(r *idempotency.Request) { r.AccountID = "0193d4a2-5c1e-7a41-8000-000000000002" }), "6", false, ""},
		{"no key", with(func(r *idempotency.Request) { r.Key = "" }), "7", false, ""},
		{"no key again", with(func(r *idempotency.Request) { r.Key = "" }), "8", false, ""},
		{"longest key", with(func(r *idempotency.Request) { r.Key = strings.Repeat("~", 255) }), "9", false, ""},
		{"key too long", with(func(r *idempotency.Request) { r.Key = strings.Repeat("~", 256) }), "", false, apierr.ValidationError},
		{"key with a control character", with(func(r *idempotency.Request) { r.Key = "a\tb" }), "", false, apierr.ValidationError},
		{"key that is not ASCII", with(func(r *idempotency.Request) { r.Key = "\uFFFD" }), "", false, apierr.ValidationError},
	} {
		effect := answer(step.response)
		if step.replayed || step.code != "" {
			effect = func() ([]byte, error) { t.Errorf("%s: has an effect", step.name); return nil, nil }
		}
		response, replayed, err := do(t, pool, step.request, effect)
		if (step.code == "") != (err == nil) || (err != nil && !apierr.Is(err, step.code)) ||
			response != step.response || replayed != step.replayed {
			t.Errorf("%s: %q, %t, %v", step.name, response, replayed, err)
		}
	}
}

// TestStillRunning checks that a second request is refused at once while the first
// has not committed, and runs after the first rolled back.
func TestStillRunning(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := idempotency.Request{Scope: "s", AccountID: account, Key: "k", Content: []byte("c")}
	rolledBack := errors.New("rolled back")
	_, _, err := do(t, pool, r, func() ([]byte, error) {
		if _, _, err := do(t, pool, r, answer("2")); !apierr.Is(err, apierr.Conflict) || apierr.From(err).RetryAfter == 0 {
			t.Errorf("second request: %v", err)
		}
		return nil, rolledBack
	})
	if !errors.Is(err, rolledBack) {
		t.Fatal(err)
	}
	if response, replayed, err := do(t, pool, r, answer("3")); err != nil || replayed || response != "3" {
		t.Fatalf("%q, %t, %v", response, replayed, err)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	pool := database(t)
	const old = 2500
	for i := range 2 {
		if _, _, err := do(t, pool, idempotency.Request{Scope: "s", AccountID: account, Key: strconv.Itoa(i)}, answer("x")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pool.Exec(t.Context(), `
		INSERT INTO idempotency_key (scope, account_id, key, request_hash, response, created_at)
		SELECT 'old', $1, i, '', '', now() - interval '24 hours' FROM generate_series(1, $2::int) i`, account, old); err != nil {
		t.Fatal(err)
	}
	if n, err := idempotency.Prune(t.Context(), pool); err != nil || n != old {
		t.Fatal(n, err)
	}
	if n, err := idempotency.Prune(t.Context(), pool); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	if _, replayed, err := do(t, pool, idempotency.Request{Scope: "s", AccountID: account, Key: "0"}, answer("y")); err != nil || !replayed {
		t.Fatal(replayed, err)
	}
}
