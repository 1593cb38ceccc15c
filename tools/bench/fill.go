package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// owner owns every waitlist of the run.
const owner = "00000000-0000-4000-8000-0000000000aa"

// newList inserts a waitlist with default settings.
func newList(ctx context.Context, conn *pgx.Conn) (*list, error) {
	l := new(list)
	_, err := conn.Exec(ctx, `
		INSERT INTO signup.owner (id, tier, status, trial, version) VALUES ($1, 'basic', 'active', false, 1)
		ON CONFLICT DO NOTHING`, owner)
	if err == nil {
		err = conn.QueryRow(ctx, `
			INSERT INTO signup.waitlist (id, owner_id, name, settings, created_at)
			VALUES (gen_random_uuid(), $1, 'Launch', '{}', now())
			RETURNING id::text`, owner).Scan(&l.id)
	}
	if err != nil {
		return nil, fmt.Errorf("insert a waitlist: %w", err)
	}
	return l, nil
}

// fill inserts n signups, address(1) to address(n), into a waitlist as if they had joined one by one. The database must have
// no other signups. It creates the indexes afterwards, which is several times faster.
func fill(ctx context.Context, conn *pgx.Conn, l *list, n int) (took time.Duration, err error) {
	start := time.Now()
	rows, err := conn.Query(ctx, `
		SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
		WHERE conrelid = 'signup.signup'::regclass AND contype IN ('p', 'u')`)
	if err != nil {
		return 0, fmt.Errorf("read the table's constraints: %w", err)
	}
	type constraint struct{ Name, Definition string }
	constraints, err := pgx.CollectRows(rows, pgx.RowToStructByPos[constraint])
	if err != nil {
		return 0, fmt.Errorf("read the table's constraints: %w", err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		run := func(sql string, args ...any) error {
			if _, err := tx.Exec(ctx, sql, args...); err != nil {
				return fmt.Errorf("fill the waitlist: %w", err)
			}
			return nil
		}
		for _, c := range constraints {
			if err := run("ALTER TABLE signup.signup DROP CONSTRAINT " + c.Name); err != nil {
				return err
			}
		}
		if err := run(`
			INSERT INTO signup.signup (waitlist_id, number, queue_key, email, token, created_at, first_name, last_name, utm_source, utm_medium)
			SELECT $1::uuid, n, n << 20, 'a' || lpad(n::text, $3::int, '0') || '@example.com', md5(n::text)::uuid,
			       now() - ($2::bigint - n) * interval '1 second', 'Ann', 'Example', 'launch', 'mail'
			FROM generate_series(1, $2::bigint) AS n`, l.id, n, addressDigits); err != nil {
			return err
		}
		if err := run(`
			INSERT INTO signup.queue_bucket (waitlist_id, bucket, live)
			SELECT $1::uuid, n << 20 >> 32, count(*) FROM generate_series(1, $2::bigint) AS n GROUP BY 2`, l.id, n); err != nil {
			return err
		}
		if err := run(`
			INSERT INTO signup.change (waitlist_id, no, nonce, live, total, credited, last_number, first_number)
			VALUES ($1, 1, 42, $2, $2, 0, $2, $2::bigint + 1)`, l.id, n); err != nil {
			return err
		}
		for _, c := range constraints {
			if err := run("ALTER TABLE signup.signup ADD CONSTRAINT " + c.Name + " " + c.Definition); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, sql := range []string{
		"VACUUM ANALYZE signup.signup", "VACUUM ANALYZE signup.queue_bucket", "VACUUM ANALYZE signup.change", "CHECKPOINT",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return 0, fmt.Errorf("settle the tables: %w", err)
		}
	}
	return time.Since(start), nil
}
