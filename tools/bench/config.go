package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
)

// configConns is the number of connections of B6.
const configConns = 64

// config measures B6. Its reference is what no service could do without: one script in Redis, one row by its key, and the bytes.
func (b *bench) config(ctx context.Context) (err error) {
	const database = "config"
	conn, err := b.database(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	srv, err := b.lab.start(ctx, b.program, b.postgres.URL(database), database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	l, err := newList(ctx, conn)
	if err != nil {
		return err
	}
	request := []byte("GET /v1/public/waitlists/" + l.id + "/config HTTP/1.1\r\nHost: bench\r\n\r\n")
	c, err := dial(ctx, srv.addr)
	if err != nil {
		return err
	}
	defer c.close()
	status, body, err := c.do(request)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("config was answered %d: %s", status, body)
	}
	if err != nil {
		return fmt.Errorf("B6: %w", err)
	}
	file := filepath.Join(b.dir, "config.json")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		return fmt.Errorf("B6: %w", err)
	}
	bare, err := b.role(ctx, roleBare, b.postgres.URL(database), b.redis.URL, file)
	if err != nil {
		return err
	}
	side := func(addr string) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) {
			return repeatRequest(ctx, addr, request, configConns, d)
		}
	}
	pairs, err := b.turns(ctx, "B6", func(context.Context) error { return nil }, side(srv.addr), side(bare), b.slice)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B6", goal: "≥ 0.7 ×", ratio: ratio, met: ratio >= .7,
		what: fmt.Sprintf("Requests a second for a form's config over %d connections, against a bare gin handler with one EVALSHA, one row by "+
			"its key and the same bytes.", configConns),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})
	return nil
}

// bareScript is a fixed-window limit, the shortest script that limits anything.
var bareScript = goredis.NewScript(`
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('EXPIRE', KEYS[1], 1) end
return n`)

// bareHandler answers every config with the content of file, after one script in Redis and one row from Postgres, until
// standard input ends.
func bareHandler(ctx context.Context, postgresURL, redisURL, file string) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	options, err := goredis.ParseURL(redisURL)
	if err != nil {
		return fmt.Errorf("read the address of Redis: %w", err)
	}
	rdb := goredis.NewClient(options)
	defer func() { _ = rdb.Close() }()
	cfg, err := pgxpool.ParseConfig(postgresURL)
	if err != nil {
		return fmt.Errorf("read the address of Postgres: %w", err)
	}
	cfg.MaxConns = 10 // as the service has
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("open Postgres: %w", err)
	}
	defer pool.Close()
	if err := bareScript.Load(ctx, rdb).Err(); err != nil {
		return fmt.Errorf("load the script: %w", err)
	}
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.GET("/v1/public/waitlists/:id/config", func(c *gin.Context) { //nolint:contextcheck // the request has its own
		var version int64
		err := bareScript.EvalSha(c.Request.Context(), rdb, []string{"bare"}).Err()
		if err == nil {
			err = pool.QueryRow(c.Request.Context(), "SELECT version FROM signup.waitlist WHERE id = $1", c.Param("id")).Scan(&version)
		}
		if err != nil {
			c.String(http.StatusInternalServerError, err.Error())
			return
		}
		c.Data(http.StatusOK, "application/json; charset=utf-8", body)
	})
	return serveBare(ctx, g)
}

// serveBare prints its address and serves h until standard input ends.
func serveBare(ctx context.Context, h http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	web := &http.Server{Handler: h, ReadHeaderTimeout: answerTimeout}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = web.Close()
	}()
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
