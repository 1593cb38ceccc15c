package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"waitlist.internal/libs/access"
	"waitlist.internal/services/signup/postgres"
)

// fill gives a waitlist n rows in each table that belongs to it.
func fill(t *testing.T, o *owners, id string, n int) {
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
func rows(t *testing.T, o *owners, id string) (n int) {
	t.Helper()
	err := o.pool.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM signup WHERE waitlist_id = $1) + (SELECT count(*) FROM queue_bucket WHERE waitlist_id = $1)
		     + (SELECT count(*) FROM change WHERE waitlist_id = $1) + (SELECT count(*) FROM waitlist WHERE id = $1)`, id).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
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
	purge := postgres.NewPurge(o.pool, func(_ context.Context, id string) error {
		mu.Lock()
		defer mu.Unlock()
		if failing && id == stuck.ID {
			return away
		}
		forgotten[id]++
		return nil
	}, slog.New(slog.DiscardHandler))
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
	if rows(t, o, stuck.ID) != 0 || rows(t, o, kept.ID) != 3*n+1 || forgotten[gone.ID] != 1 || forgotten[stuck.ID] != 1 || len(forgotten) != 2 {
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
		purge := postgres.NewPurge(o.pool, func(context.Context, string) error { cancel(); return nil }, slog.New(slog.DiscardHandler))
		wg.Go(func() {
			if err := purge.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	cancel()
	if err := postgres.NewPurge(o.pool, func(context.Context, string) error { return nil }, slog.New(slog.DiscardHandler)).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rows(t, o, w.ID); n != 0 {
		t.Fatalf("%d rows left", n)
	}
}

func TestPurgeOwnersAndKeys(t *testing.T) {
	t.Parallel()
	o, ada, bob, eve := newOwners(t), account(access.Basic), account(access.Basic), account(access.Basic)
	for _, actor := range []access.Actor{ada, bob, eve} {
		if _, _, err := o.Create(t.Context(), actor, "", []byte(`{"name":"x"}`), "key"); err != nil {
			t.Fatal(err)
		}
	}
	want(t, o.CloseOwner(t.Context(), ada.AccountID), "")
	want(t, o.CloseOwner(t.Context(), bob.AccountID), "")
	for sql, id := range map[string]string{
		`UPDATE owner SET closed_at = now() - interval '2 hours' WHERE id = $1`:                     ada.AccountID,
		`UPDATE idempotency_key SET created_at = now() - interval '25 hours' WHERE account_id = $1`: eve.AccountID,
	} {
		if _, err := o.pool.Exec(t.Context(), sql, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := postgres.NewPurge(o.pool, func(context.Context, string) error { return nil }, slog.New(slog.DiscardHandler)).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	var owner, key string
	err := o.pool.QueryRow(t.Context(), `
		SELECT (SELECT string_agg(id::text, ' ' ORDER BY closed_at) FROM owner), (SELECT string_agg(account_id::text, ' ' ORDER BY account_id) FROM idempotency_key)`).Scan(&owner, &key)
	if err != nil {
		t.Fatal(err)
	}
	if owner != bob.AccountID+" "+eve.AccountID {
		t.Errorf("owners %s", owner)
	}
	if len(key) != 2*36+1 {
		t.Errorf("keys of %s", key)
	}
}
