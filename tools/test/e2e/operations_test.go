package e2e

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/loop"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/messaging/providers/resendtest"
)

// request returns a valid request to an implemented operation, on a waitlist with one signup.
func (d *deployment) request(t *testing.T, op Operation, o *owner, id, email, unsubscribe string) Request {
	t.Helper()
	var body any
	switch op.ID {
	case "createSignup":
		body = Obj{"email": address("new")}
	case "verifySignup":
		body = Obj{"token": "x"}
	case "unsubscribe", "deleteMyData":
		body = Obj{"email": email, "token": unsubscribe}
	case "register":
		body = Obj{"email": address("new"), "password": "12345678"}
	case "login":
		body = Obj{"email": o.email, "password": o.password}
	case "refresh", "logout":
		body = Obj{"refresh_token": o.refresh}
	case "mailLink":
		body = Obj{"email": email}
	case "forgotPassword":
		body = Obj{"email": o.email}
	case "verifyEmail":
		body = Obj{"token": d.server.AwaitMails(t, o.email, 1)[0].Token(), "password": o.password}
	case "resetPassword":
		if o.reset == "" {
			had := len(d.server.AwaitMails(t, o.email, 1)) // the mail of the registration
			o.Do(t, Post("/auth/forgot-password", Obj{"email": o.email})).Want(http.StatusAccepted)
			o.reset = d.server.AwaitMails(t, o.email, had+1)[had].Token()
		}
		body = Obj{"token": o.reset, "password": "12345678"}
	case "changePassword":
		body = Obj{"current_password": o.password, "password": o.password}
	case "createWaitlist", "updateWaitlist":
		body = Obj{"name": "x"}
	case "moveSignup":
		body = Obj{"position": 1}
	case "creditSignup":
		body = Obj{"credit": true}
	case "importSignups":
		body = Obj{"signups": []any{Obj{"email": email}}}
	case "inviteMember":
		body = Obj{"email": address("member")}
	case "sendBlast":
		body = Obj{"subject": "News", "text_body": "Hello"}
	case "createTemplate":
		body = Obj{"template_type": "blast", "subject_template": "x", "text_body_template": "x"}
	case "updateTemplate":
		body = Obj{"name": "x"}
	case "startDomainVerification":
		body = Obj{"domain": "example.com"}
	case "checkout", "previewPlan":
		body = Obj{"tier": "basic"}
	case "receivePaymentEvent":
		return paymentEvent(address("evt"), "cus_unknown")
	case "receiveMailNotification":
		return notification(t, resendtest.Secret, address("id"), "email.bounced", "Permanent", time.Now(), email)
	}
	path := fill(op.Path, id, url.PathEscape(email))
	if op.ID == "verifySignupByLink" {
		path += "?token=x"
	}
	r := NewRequest(op.Method, path, body)
	if len(op.Schemes) > 0 {
		r = r.As(o.token)
	}
	return r
}

// testRateLimit checks that everything under /v1 counts and health checks do not.
func (s *suite) testRateLimit(t *testing.T) {
	d := s.deploy(t, map[string]string{"RATE_LIMIT_RPS": "1", "RATE_LIMIT_BURST": "20"})
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	requests := map[string]Request{
		"unknown path": Get("/nope"),
		// Only the path as billing knows it is exempt.
		"escaped path":   Post("/billing/%77ebhook", Obj{}),
		"unknown method": NewRequest(http.MethodPut, "/auth/me", nil),
		"preflight":      NewRequest(http.MethodOptions, "/waitlists", nil).With("Access-Control-Request-Method", http.MethodPost),
		"public preflight": NewRequest(http.MethodOptions, "/public/waitlists/"+id+"/signups", nil).
			With("Access-Control-Request-Method", http.MethodPost),
		"bad credentials": Get("/auth/me").As("x"),
		"bad body":        Post("/auth/login", nil).Raw([]byte("{")).Invalid(),
	}
	for _, op := range d.contract.Operations() {
		// Payment events do not count; see testBilling.
		if !op.Planned && op.ID != "receivePaymentEvent" {
			requests[op.ID] = d.request(t, op, o, id, ada, "x")
		}
	}
	for name, r := range requests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Several at once: a rate of one request a second cannot admit them all, however long a password takes to check.
			Await(t, time.Minute, "429", func() bool {
				var refused atomic.Bool
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						res := o.Do(t, r)
						if res.Status != http.StatusTooManyRequests {
							return
						}
						if h := res.Header.Get("Retry-After"); h != "" {
							if n, err := strconv.Atoi(h); err != nil || n < 1 {
								t.Errorf("Retry-After %q", h)
							}
						}
						refused.Store(true)
					})
				}
				all.Wait()
				return refused.Load()
			})
		})
	}
	t.Run("health", func(t *testing.T) {
		for range 60 {
			if status, err := d.server.ready(t.Context()); err != nil || status != http.StatusOK {
				t.Fatalf("/readyz: %d, %v", status, err)
			}
		}
	})
	t.Run("recovers", func(t *testing.T) {
		Await(t, time.Minute, "an answer", func() bool {
			return o.Do(t, Get("/auth/jwks.json")).Status == http.StatusOK
		})
	})
}

// testDefaultBucket checks the default limit: a burst of 200, then 100 a second.
func (s *suite) testDefaultBucket(t *testing.T) {
	d := s.deploy(t, map[string]string{"RATE_LIMIT_RPS": "", "RATE_LIMIT_BURST": ""})
	c := d.client(t)
	var mu sync.Mutex
	admitted := 0
	var wg sync.WaitGroup
	start := time.Now()
	for range 32 {
		wg.Go(func() {
			for range 20 {
				r, err := c.Send(t.Context(), Get("/auth/jwks.json"))
				if err != nil {
					t.Error(err)
					return
				}
				if r.Status == http.StatusOK {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	most := 200 + int(100*time.Since(start).Seconds()) + 1
	if admitted < 200 || admitted > most {
		t.Errorf("%d of 640 admitted in %s, want 200 to %d", admitted, time.Since(start), most)
	}
}

// testOutages takes the database and Redis away, first by closing connections, then by silence.
func (s *suite) testOutages(t *testing.T) {
	db, err := url.Parse(database(t))
	if err != nil {
		t.Fatal(err)
	}
	direct := db.String()
	postgres := NewProxy(t, db.Host)
	db.Host = postgres.Addr
	rdb, err := url.Parse(testenv.RedisServer(t, devservers.RedisOptions{Volatile: true}).URL)
	if err != nil {
		t.Fatal(err)
	}
	redis := NewProxy(t, rdb.Host)
	rdb.Host = redis.Addr
	d := s.deploy(t, map[string]string{"POSTGRES_URL": db.String(), "REDIS_URL": rdb.String()})
	d.db = direct
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)
	unsubscribe := d.unsubscribeToken(t, id, ada)
	n := 1

	const limit = 5500 * time.Millisecond // the contract's 5 s and some latency
	for name, away := range map[string]func(){"Postgres cut": postgres.Cut, "Postgres silent": postgres.Freeze} {
		t.Run(name, func(t *testing.T) {
			requests := map[string]Request{}
			for _, op := range d.contract.Operations() {
				if !op.Planned && op.ID != "getKeys" {
					requests[op.ID] = d.request(t, op, o, id, ada, unsubscribe)
				}
			}
			away()
			// The machine's own share: what an answer without Postgres takes meanwhile.
			var slowest time.Duration
			stop := testenv.Run(t, func(ctx context.Context) error {
				for range loop.Every(ctx, 50*time.Millisecond) {
					res, err := o.Send(ctx, Get("/auth/jwks.json"))
					switch {
					case ctx.Err() != nil:
						return nil
					case err != nil:
						return err
					}
					slowest = max(slowest, res.Took)
				}
				return nil
			})
			var took sync.Map
			var wg sync.WaitGroup
			// Their deadlines must not coincide: ninety answers at once take their time.
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for id, r := range requests {
				<-pace.C
				wg.Go(func() {
					res, err := o.Send(t.Context(), r)
					switch {
					case res == nil || err != nil:
						t.Errorf("%s: %v", id, err)
						return
					case res.Status != http.StatusInternalServerError || res.ErrorCode() != "INTERNAL_ERROR":
						t.Errorf("%s: %d %s", id, res.Status, res.Body)
					}
					took.Store(id, res.Took)
					retryAfter(t, res, 60)
				})
			}
			wg.Wait()
			stop()
			for id, d := range took.Range {
				if d.(time.Duration) > limit+slowest {
					t.Errorf("%s: took %s, an answer without Postgres %s at most", id, d, slowest)
				}
			}
			if status, err := d.server.ready(t.Context()); err == nil && status == http.StatusOK {
				t.Error("/readyz answers 200 without the database")
			}
			postgres.Pass()
			Await(t, time.Minute, "ready again", func() bool {
				status, err := d.server.ready(t.Context())
				return err == nil && status == http.StatusOK
			})
			// An unacknowledged signup must not show up half done: everybody on the list has a position.
			r := o.Do(t, signup(id, address("after")))
			Await(t, time.Minute, "a signup", func() bool {
				r = o.Do(t, signup(id, address("after")))
				return r.Status == http.StatusCreated
			})
			o.status(t, id, ada).Want(http.StatusOK).WantJSON("position", 1)
			if r.Int("position") != r.Int("total_signups") {
				t.Errorf("position %d of %d", r.Int("position"), r.Int("total_signups"))
			}
			n = int(r.Int("position"))
		})
	}
	for name, away := range map[string]func(){"Redis cut": redis.Cut, "Redis silent": redis.Freeze} {
		t.Run(name, func(t *testing.T) {
			away()
			for range 20 {
				n++
				email := address("x")
				res := o.join(t, id, email).WantJSON("position", n).WantJSON("total_signups", n)
				if res.Took > 2*time.Second {
					t.Errorf("%s took %s", res.Request, res.Took)
				}
				o.status(t, id, email).WantJSON("position", n)
				o.status(t, id, ada).WantJSON("position", 1)
			}
			redis.Pass()
			n++
			o.join(t, id, address("x")).WantJSON("position", n)
		})
	}
}

// testRestart embeds all servers and checks that the state survives an orderly stop and a kill.
func (s *suite) testRestart(t *testing.T) {
	dir := DataDir(t)
	env := map[string]string{"RATE_LIMIT_RPS": "100000", "RATE_LIMIT_BURST": "100000"}
	server := Run(t, Options{Binary: s.binary, Dir: dir, Env: env})
	// The program is ready before it prints its URL.
	Await(t, time.Minute, "a banner with the URL", func() bool { return strings.Contains(server.Log(), server.URL) })
	d := &deployment{suite: s, server: server}
	o := d.owner(t)
	id := o.waitlist(t, Obj{"require_email_verification": true, "slack_webhook_url": "https://example.com/secret"})
	people := []string{address("a"), address("b"), address("c")}
	var token string
	for _, p := range people {
		token = o.join(t, id, p).Str("referral_token")
	}
	o.join(t, id, address("friend"), Obj{"referred_by_token": token})
	people[1], people[2] = people[2], people[1]
	for range 3 { // counted in the process and stored when it stops
		o.Do(t, viewOf(id)).Want(http.StatusOK)
	}
	verify := server.AwaitMails(t, people[0], 1)[0].Token()
	account := server.AwaitMails(t, o.email, 1)[0].Token()

	for i, stop := range []func(){
		func() {
			if err := server.Stop(); err != nil {
				t.Error(err)
			}
		},
		func() { server.Kill() },
	} {
		stop()
		server = Run(t, Options{Binary: s.binary, Dir: dir, Addr: server.Addr, Env: env})
		d.server = server
		o.Do(t, Get("/auth/me").As(o.token)).Want(http.StatusOK)
		o.Do(t, Get("/auth/me").Key(o.key)).Want(http.StatusOK)
		o.Do(t, Get("/waitlists/"+id).As(o.token)).Want(http.StatusOK).WantJSON("signup_count", 4+i).
			WantJSON("settings.slack_webhook_url", "https://example.com/secret")
		o.awaitSeries(t, id, 3, 4+i, 1)
		for at, p := range people {
			o.status(t, id, p).WantJSON("position", at+1)
			server.AwaitMails(t, p, 1)
		}
		o.join(t, id, address("later")).WantJSON("position", 5+i)
	}
	for _, p := range people {
		if mails, err := server.Mails(p); err != nil || len(mails) != 1 {
			t.Errorf("%d mails to %s, %v; want one", len(mails), p, err)
		}
	}
	o.Do(t, Get(statusPath(id, people[0])+"/verify?token="+url.QueryEscape(verify))).Want(http.StatusOK)
	o.Do(t, Post("/auth/verify-email", Obj{"token": account}).Key(o.key)).Want(http.StatusOK)
}
