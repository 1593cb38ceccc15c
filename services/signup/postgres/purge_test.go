package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/services/signup/postgres"
)

// fill gives a waitlist n rows in each table that belongs to it.
func fill(t *testing.T, o *ownersEnv, id string, n int) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
		 SELECT $1, i, i, i || '@example.com', gen_random_uuid(), now() FROM generate_series(1, $2::bigint) i`,
		`INSERT INTO queue_bucket (waitlist_id, bucket, live) SELECT $1, i, 1 FROM generate_series(1, $2::bigint) i`,
		`INSERT INTO change (waitlist_id, no, nonce, live, total, credited, last_number, first_number)
		 SELECT $1, i, 0, i, i, 0, i, i FROM generate_series(1, $2::bigint) i`,
	} {
		if _, err := o.pool.Exec(t.Context(), sql, id, n); err != nil {
			t.Fatal(err)
		}
	}
}

// rows counts what a waitlist has in all tables.
func rows(t *testing.T, o *ownersEnv, id string) (n int) {
	t.Helper()
	err := o.pool.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM signup WHERE waitlist_id = $1) + (SELECT count(*) FROM queue_bucket WHERE waitlist_id = $1)
		     + (SELECT count(*) FROM change WHERE waitlist_id = $1) + (SELECT count(*) FROM waitlist WHERE id = $1)`, id).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// purger is a purge that keeps no ids.
func purger(o *ownersEnv, forget func(context.Context, string) error) *postgres.Purge {
	return &postgres.Purge{Pool: o.pool, Forget: forget, Every: time.Minute, Log: slog.New(slog.DiscardHandler)}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	gone, stuck, kept := create(t, o, ada, `{"name":"a"}`), create(t, o, ada, `{"name":"b"}`), create(t, o, ada, `{"name":"c"}`)
	const n = 11_000 // three chunks
	for _, id := range []string{gone.ID, stuck.ID, kept.ID} {
		fill(t, o, id, n)
	}
	for _, id := range []string{stuck.ID, gone.ID} {
		want(t, o.Delete(t.Context(), ada, id), "")
	}
	away := errors.New("Redis is away")
	var mu sync.Mutex
	forgotten := map[string]int{}
	failing := true
	purge := purger(o, func(_ context.Context, id string) error {
		mu.Lock()
		defer mu.Unlock()
		if failing && id == stuck.ID {
			return away
		}
		forgotten[id]++
		return nil
	})
	if err := purge.Once(t.Context()); !errors.Is(err, away) {
		t.Fatal(err)
	}
	if rows(t, o, gone.ID) != 0 || rows(t, o, stuck.ID) != 1 || rows(t, o, kept.ID) != 3*n+1 {
		t.Fatalf("left: %d, %d, %d", rows(t, o, gone.ID), rows(t, o, stuck.ID), rows(t, o, kept.ID))
	}
	failing = false
	if err := purge.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rows(t, o, stuck.ID) != 0 || rows(t, o, kept.ID) != 3*n+1 || forgotten[gone.ID] != 1 || forgotten[stuck.ID] != 1 ||
		len(forgotten) != 2 {
		t.Fatalf("left: %d, %d; forgotten %v", rows(t, o, stuck.ID), rows(t, o, kept.ID), forgotten)
	}
}

// TestPurgeResumes: a purge that ends midway goes on where it was.
func TestPurgeResumes(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	w := create(t, o, ada, `{"name":"a"}`)
	fill(t, o, w.ID, 6000)
	want(t, o.Delete(t.Context(), ada, w.ID), "")
	if _, err := o.pool.Exec(t.Context(), `DELETE FROM signup WHERE number <= 5000; DELETE FROM queue_bucket`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	// Replicas run it side by side; the first to be done ends the others.
	var wg sync.WaitGroup
	for range 3 {
		purge := purger(o, func(context.Context, string) error { cancel(); return nil })
		wg.Go(func() {
			if err := purge.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	cancel()
	if err := purger(o, func(context.Context, string) error { return nil }).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rows(t, o, w.ID); n != 0 {
		t.Fatalf("%d rows left", n)
	}
}

// TestPurgeKeepsIDs: until their time the ids stay, and nothing but them; then
// whatever came late goes with them.
func TestPurgeKeepsIDs(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	w := create(t, o, ada, `{"name":"Secret","settings":{"headline":"Secret"}}`)
	fill(t, o, w.ID, 10)
	want(t, o.CloseOwner(t.Context(), ada.AccountID), "")
	forgotten := 0
	purge := purger(o, func(context.Context, string) error { forgotten++; return nil })
	purge.Kept = time.Hour
	for range 3 {
		if err := purge.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		var left string
		if err := o.pool.QueryRow(t.Context(), `SELECT name || settings FROM waitlist`).Scan(&left); err != nil || left != "{}" ||
			rows(t, o, w.ID) != 1 || forgotten != 1 {
			t.Fatalf("%q, %v, %d rows, forgotten %d times", left, err, rows(t, o, w.ID), forgotten)
		}
	}
	fill(t, o, w.ID, 1)
	if _, err := o.pool.Exec(t.Context(), `UPDATE waitlist SET deleted_at = now() - interval '61 minutes'; UPDATE owner SET closed_at = `+
		`now() - interval '61 minutes'`); err != nil {
		t.Fatal(err)
	}
	if err := purge.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	var owners int
	if err := o.pool.QueryRow(t.Context(), `SELECT count(*) FROM owner`).Scan(&owners); err != nil || owners != 0 ||
		rows(t, o, w.ID) != 0 || forgotten != 2 {
		t.Fatalf("%d owners, %v, %d rows, forgotten %d times", owners, err, rows(t, o, w.ID), forgotten)
	}
}

func TestPurgeOwnersAndKeys(t *testing.T) {
	t.Parallel()
	o, ada, bob, eve := newOwners(t), account(access.Basic), account(access.Basic), account(access.Basic)
	fay := account(access.Basic)
	for _, actor := range []access.Actor{ada, bob, eve, fay} {
		if _, _, err := o.Create(t.Context(), actor, "", []byte(`{"name":"x"}`), "key"); err != nil {
			t.Fatal(err)
		}
	}
	want(t, o.CloseOwner(t.Context(), ada.AccountID), "")
	want(t, o.CloseOwner(t.Context(), bob.AccountID), "")
	for sql, args := range map[string][]any{
		`UPDATE owner SET closed_at = now() - interval '2 hours' WHERE id = $1`:                     {ada.AccountID},
		`UPDATE idempotency_key SET created_at = now() - interval '25 hours' WHERE account_id = $1`: {eve.AccountID},
		// Two chunks of them.
		`INSERT INTO idempotency_key (scope, account_id, key, request_hash, response) SELECT 'x', $1, i, '', '' FROM generate_series(1, ` +
			`6000) i`: {bob.AccountID},
	} {
		if _, err := o.pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	purge := purger(o, func(context.Context, string) error { return nil })
	purge.Kept = time.Hour
	if err := purge.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Ada's waitlist was deleted within the hour; its row still needs her.
	var owners, keys []string
	err := o.pool.QueryRow(t.Context(), `
		SELECT (SELECT array_agg(id::text) FROM owner), (SELECT array_agg(account_id::text) FROM idempotency_key)`).Scan(&owners, &keys)
	if err != nil {
		t.Fatal(err)
	}
	if len(owners) != 4 {
		t.Errorf("owners %v", owners)
	}
	if len(keys) != 1 || keys[0] != fay.AccountID {
		t.Errorf("keys of %v, want those of %s", keys, fay.AccountID)
	}
	if _, err := o.pool.Exec(t.Context(), `UPDATE waitlist SET deleted_at = now() - interval '2 hours' WHERE owner_id = $1`,
		ada.AccountID); err != nil {
		t.Fatal(err)
	}
	if err := purge.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.pool.QueryRow(t.Context(), `SELECT array_agg(id::text ORDER BY id) FROM owner`).Scan(&owners); err != nil {
		t.Fatal(err)
	}
	left := []string{bob.AccountID, eve.AccountID, fay.AccountID}
	slices.Sort(left)
	if !slices.Equal(owners, left) {
		t.Errorf("owners %v, want %v", owners, left)
	}
}
