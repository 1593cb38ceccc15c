package pg_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func pool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pg.Open(t.Context(), url, "app", 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	p := pool(t, testenv.Postgres(t))
	files := fstest.MapFS{"00001_things.sql": {Data: []byte(`-- +goose Up
CREATE TABLE thing (id int PRIMARY KEY, n int NOT NULL, CONSTRAINT thing_later UNIQUE (n) DEFERRABLE INITIALLY DEFERRED);
INSERT INTO thing VALUES (1, 1), (2, 2);
`)}}
	// Of replicas that start together, all succeed and one creates the schema.
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = pg.Migrate(t.Context(), p, "app", files, slog.New(slog.DiscardHandler)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestInTx(t *testing.T) {
	p := migrated(t)
	set := func(tx pgx.Tx, id, n int) error {
		_, err := tx.Exec(t.Context(), `UPDATE thing SET n = $2 WHERE id = $1`, id, n)
		return err
	}
	value := func(id int) (n int) {
		t.Helper()
		if err := p.QueryRow(t.Context(), `SELECT n FROM thing WHERE id = $1`, id).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Run("an error rolls back", func(t *testing.T) {
		want := errors.New("no")
		err := pg.InTx(t.Context(), p, func(tx pgx.Tx) error { return errors.Join(set(tx, 1, 50), want) })
		if !errors.Is(err, want) || value(1) != 1 {
			t.Errorf("%v, value %d", err, value(1))
		}
	})
	t.Run("a failed commit is an error", func(t *testing.T) {
		// The constraint is checked at COMMIT.
		err := pg.InTx(t.Context(), p, func(tx pgx.Tx) error { return set(tx, 1, 2) })
		if !pg.IsUnique(err, "thing_later") || value(1) != 1 {
			t.Errorf("%v, value %d", err, value(1))
		}
	})
	t.Run("cancellation frees the locks", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := pg.InTx(ctx, p, func(tx pgx.Tx) error {
			err := set(tx, 1, 60)
			cancel()
			return errors.Join(err, ctx.Err())
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		short, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if _, err := p.Exec(short, `SELECT FROM thing WHERE id = 1 FOR UPDATE`); err != nil {
			t.Errorf("the row is still locked: %v", err)
		}
	})
	t.Run("a deadlock is tried again", func(t *testing.T) {
		// Each locks its row, waits until the other has locked its own, and then locks
		// the other's.
		var wg, first sync.WaitGroup
		first.Add(2)
		errs := make([]error, 2)
		for i := range errs {
			tries := 0
			wg.Go(func() {
				errs[i] = pg.InTx(t.Context(), p, func(tx pgx.Tx) error {
					if err := set(tx, i+1, 100+i); err != nil {
						return err
					}
					if tries++; tries == 1 {
						first.Done()
						first.Wait()
					}
					_, err := tx.Exec(t.Context(), `SELECT FROM thing WHERE id = $1 FOR UPDATE`, 2-i)
					return err
				})
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil || value(1) != 100 || value(2) != 101 {
			t.Errorf("%v, values %d and %d", err, value(1), value(2))
		}
	})
}

func TestUnreachable(t *testing.T) {
	server := testenv.PostgresServer(t, devservers.PostgresOptions{Settings: testenv.FastPostgres()})
	p := pool(t, server.URL("postgres"))
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Not Kill, since backends outlive their postmaster for a moment.
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := pg.InTx(t.Context(), p, func(pgx.Tx) error { return nil }); err == nil {
		t.Error("a transaction without a server")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the error took %s", took)
	}
}

// The URL has all settings for TLS.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert := testenv.NewCertificate(t, dir)
	settings := testenv.FastPostgres()
	settings["ssl"], settings["ssl_cert_file"], settings["ssl_key_file"] = "on", cert.CertFile, cert.KeyFile
	server := testenv.PostgresServer(t, devservers.PostgresOptions{Dir: dir, Settings: settings})
	url := strings.Replace(server.URL("postgres"), "sslmode=disable", "sslmode=verify-full", 1)
	var encrypted bool
	err := pool(t, url+"&sslrootcert="+cert.CAFile).
		QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted)
	if err != nil || !encrypted {
		t.Errorf("encrypted %v, %v", encrypted, err)
	}
	if err := pool(t, url).Ping(t.Context()); err == nil {
		t.Error("an authority that nobody knows is trusted")
	}
	if err := pool(t, url+"&sslrootcert="+testenv.NewCertificate(t, t.TempDir()).CAFile).Ping(t.Context()); err == nil {
		t.Error("another authority is trusted")
	}
}

// A backend that is stopped keeps its connection and says nothing, as a proxy that stalls.
func TestASilentServerIsLeft(t *testing.T) {
	u, err := url.Parse(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("statement_timeout", "500ms")
	q.Set("pool_max_conns", "1")
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	silent := func(fn func(tx pgx.Tx) error) error {
		p, err := pg.Open(ctx, u.String(), "app", 0)
		if err != nil {
			return err
		}
		defer p.Close()
		if err := pg.InTx(ctx, p, func(tx pgx.Tx) error {
			if err := pg.NoTimeouts(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "SELECT pg_sleep(6)")
			return err
		}); err != nil {
			return fmt.Errorf("without timeouts: %w", err)
		}
		return pg.InTx(ctx, p, func(tx pgx.Tx) error {
			backend := int(tx.Conn().PgConn().PID())
			if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil {
				return err
			}
			defer func() { _ = syscall.Kill(backend, syscall.SIGCONT) }()
			return fn(tx)
		})
	}
	var wg sync.WaitGroup
	for name, argument := range map[string]string{"read": "x", "write": strings.Repeat("x", 64<<20)} {
		wg.Go(func() {
			from := time.Now()
			err := silent(func(tx pgx.Tx) error { return tx.QueryRow(ctx, "SELECT $1::text", argument).Scan(new(string)) })
			if err == nil || !strings.Contains(err.Error(), "Postgres was silent for 5.5s") {
				t.Errorf("%s: %v after %s", name, err, time.Since(from))
			}
		})
	}
	wg.Wait()
}
