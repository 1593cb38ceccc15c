package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/rpc"
)

const (
	// pageConns is the number of connections that look at forms.
	pageConns = 64
	// viewsPerSecond are the views of B18.
	viewsPerSecond = 2000
)

// pages measures B17, the form in a browser's request, against a bare gin handler that writes the same bytes, and B18, what
// views cost the signups.
func (b *bench) pages(ctx context.Context) (err error) {
	const database = "pages"
	conn, err := b.database(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("create a key: %w", err)
	}
	internal, err := freeAddr(ctx)
	if err != nil {
		return err
	}
	srv, err := b.lab.start(ctx, b.program, b.postgres.URL(database), database,
		"GRPC_ADDR="+internal, "SERVICE_KEYS="+rpc.Keys{"pages": {public}}.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	program, err := b.build(ctx, "./services/pages/cmd/pages")
	if err != nil {
		return err
	}
	web, err := b.lab.start(ctx, program, "", "web", "SIGNUP_GRPC="+internal, "PAGES_API_URL=http://"+srv.addr+"/v1",
		"SERVICE_KEY="+base64.StdEncoding.EncodeToString(private.Seed()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.stop()) }()
	l, err := newList(ctx, conn)
	if err != nil {
		return err
	}
	request := []byte("GET /w/" + l.id + " HTTP/1.1\r\nHost: bench\r\n\r\n")
	settle := func(ctx context.Context) error { return published(ctx, conn) }
	if b.wants("B17") {
		if err := b.pageViews(ctx, web.addr, request, settle); err != nil {
			return fmt.Errorf("B17: %w", err)
		}
	}
	if b.wants("B18") {
		gen := &generator{addr: srv.addr}
		alone := func(ctx context.Context, d time.Duration) (sample, error) {
			return gen.signUp(ctx, []*list{l}, b.conns, d)
		}
		viewed := func(addr string) func(context.Context, time.Duration) (sample, error) {
			return func(ctx context.Context, d time.Duration) (s sample, err error) {
				looking, stop := context.WithCancel(ctx)
				var views int
				var failed error
				var looker sync.WaitGroup
				looker.Go(func() { views, failed = paced(looking, addr, request) })
				s, err = alone(ctx, d)
				stop()
				looker.Wait()
				if rate := float64(views) / d.Seconds(); err == nil && failed == nil && rate < .95*viewsPerSecond {
					failed = fmt.Errorf("only %.0f views a second", rate)
				}
				return s, errors.Join(err, failed)
			}
		}
		// What the viewers' client takes of the same processors is in the ratio, so the service's own share is told beside it.
		var used, looked time.Duration
		pairs, err := b.turns(ctx, "B18", settle, func(ctx context.Context, d time.Duration) (sample, error) {
			before, err := web.cpu()
			if err != nil {
				return sample{}, err
			}
			start := time.Now()
			s, failed := viewed(web.addr)(ctx, d)
			looked += time.Since(start)
			after, err := web.cpu()
			used += after - before
			return s, errors.Join(failed, err)
		}, alone, b.slice)
		if err != nil {
			return err
		}
		b.notes = append(b.notes, fmt.Sprintf("While %d people a second look at a form, pages take %.1f %% of the time of all processors.",
			viewsPerSecond, 100*used.Seconds()/(looked.Seconds()*float64(runtime.NumCPU()))))
		judge := func(id, what string, pairs []pair) {
			ours, theirs, ratio := of(pairs, rate)
			b.add(row{
				id: id, goal: "≥ 0.9 ×", ratio: ratio, met: ratio >= .9, what: what,
				ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
			})
		}
		judge("B18", fmt.Sprintf("Signups into one waitlist over %d connections while %d people a second look at its form, "+
			"against nobody looking.", b.conns, viewsPerSecond), pairs)
		bare, err := b.bareForm(ctx, web.addr, request)
		if err != nil {
			return err
		}
		if pairs, err = b.turns(ctx, "B18 bare", settle, viewed(web.addr), viewed(bare), b.slice); err != nil {
			return err
		}
		judge("B18 bare", "The same signups while people look at its form, "+
			"against people who look at the same bytes from a bare gin handler.", pairs)
		if pairs, err = b.turns(ctx, "B18 least", settle, viewed(bare), alone, b.slice); err != nil {
			return err
		}
		judge("B18 least", "The same signups while people look at those bytes from the bare gin handler, against nobody looking.", pairs)
	}
	return l.exact()
}

// bareForm starts a bare gin handler that writes the same form as the service at addr.
func (b *bench) bareForm(ctx context.Context, addr string, request []byte) (bare string, err error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return "", err
	}
	defer c.close()
	status, body, err := c.do(request)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the form was answered %d: %s", status, body)
	}
	if err != nil {
		return "", err
	}
	file := filepath.Join(b.dir, "form.html")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		return "", fmt.Errorf("keep the form: %w", err)
	}
	return b.role(ctx, rolePage, file)
}

// pageViews measures B17.
func (b *bench) pageViews(ctx context.Context, addr string, request []byte, settle func(context.Context) error) error {
	bare, err := b.bareForm(ctx, addr, request)
	if err != nil {
		return err
	}
	side := func(addr string) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) {
			return repeatRequest(ctx, addr, request, pageConns, d)
		}
	}
	pairs, err := b.turns(ctx, "B17", settle, side(addr), side(bare), b.slice/2)
	if err != nil {
		return err
	}
	ours, theirs, ratio := of(pairs, rate)
	b.add(row{
		id: "B17", goal: "≥ 0.5 ×", ratio: ratio, met: ratio >= .5,
		what: fmt.Sprintf("Forms a second in a browser's request over %d connections, against a bare gin handler that writes the same bytes.",
			pageConns),
		ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
	})
	return nil
}

// paced looks at a form viewsPerSecond times a second until ctx ends, and returns how often it was shown.
func paced(ctx context.Context, addr string, request []byte) (views int, err error) {
	const conns, every = 8, 10 * time.Millisecond
	var all sync.WaitGroup
	seen, errs := make([]int, conns), make([]error, conns)
	for i := range conns {
		c, err := dial(ctx, addr)
		if err != nil {
			return 0, err
		}
		defer c.close()
		all.Go(func() {
			start := time.Now()
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				// As many as are due: a tick may come late.
				for due := int(time.Since(start).Seconds() * viewsPerSecond / conns); seen[i] < due && ctx.Err() == nil; seen[i]++ {
					_ = c.conn.SetDeadline(time.Now().Add(answerTimeout))
					status, body, err := c.do(request)
					if err == nil && status != http.StatusOK {
						err = fmt.Errorf("the form was answered %d: %s", status, body)
					}
					if err != nil {
						errs[i] = err
						return
					}
				}
			}
		})
	}
	all.Wait()
	for _, n := range seen {
		views += n
	}
	return views, first(errs, nil)
}

// barePage answers every form with the content of file until standard input ends.
func barePage(ctx context.Context, file string) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.GET("/w/:id", func(c *gin.Context) {
		c.Header("Content-Length", strconv.Itoa(len(body)))
		c.Data(http.StatusOK, "text/html; charset=utf-8", body)
	})
	return serveBare(ctx, g)
}
