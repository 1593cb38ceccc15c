package observability_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// fault is something that goes wrong in the running suite.
type fault struct {
	// speed is how many seconds pass for the rules in one: windows are so much shorter.
	speed float64
	// step, if set, is how much passes for the rules between two looks however long that takes. Shares
	// then count and not times, so that a budget of days burns in seconds on any machine.
	step time.Duration
	// ages is how many times older the oldest row, mail and blast look, 0 as speed.
	ages float64
	// meanwhile, if set, is what people do, again and again, from before the fault until its end; with
	// step once before each look, and after the end, too.
	meanwhile func(*running)
	// before, if set, is what the fault needs of the suite, before the first look.
	before func(*running)
	begin  func(*running)
	end    func(*running)
	// want are the alerts that must fire, may those that follow from the fault where it lasts: the name,
	// the severity and, of a budget, the window; the first two mean all windows.
	want, may []string
}

// running is a suite with what its faults need.
type running struct {
	*suite
	world
	kafka  *os.Process
	mail   *postOffice
	spans  *collector
	sim    string
	number atomic.Int64
	// more, if set, has other metrics, which the rules see, too.
	more func() []sample
	// shows makes the Redis of the group outside show one of its certificates.
	shows func(name string)
}

// session is a psql of the administrator's.
func (r *running) session(args ...string) *exec.Cmd {
	r.Helper()
	raw, err := os.ReadFile(filepath.Join(r.dir, "data", "postgres", "data", "postmaster.pid"))
	if err != nil {
		r.Fatal(err)
	}
	address := fmt.Sprintf("postgres://postgres@127.0.0.1:%s/waitlist", strings.Split(string(raw), "\n")[3])
	return exec.CommandContext(r.Context(), "psql", append([]string{"-qtAX", "-v", "ON_ERROR_STOP=1", "-d", address}, args...)...)
}

// psql runs a statement as the administrator, returns when it has ended, and reports whether it could.
func (r *running) psql(sql string) bool {
	out, err := r.session("-c", sql).CombinedOutput()
	if err != nil && r.Context().Err() == nil {
		r.Errorf("%s: %v\n%s", sql, err, out)
	}
	return err == nil
}

// redis runs a command.
func (r *running) redis(args ...string) {
	pid := r.children("redis-server")[0]
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		r.Fatal(err)
	}
	m := regexp.MustCompile(`:(\d+)`).FindSubmatch(line)
	if m == nil {
		r.Fatalf("no port in %q", line)
	}
	out, err := exec.CommandContext(r.Context(), "redis-cli", append([]string{"-p", string(m[1])}, args...)...).CombinedOutput()
	if err != nil {
		r.Fatalf("redis-cli %v: %v\n%s", args, err, out)
	}
}

// try sends a request to the interface whose answer does not matter.
func (r *running) try(method, path, key, body string) {
	header := http.Header{"Content-Type": {"application/json"}}
	if key != "" {
		header.Set("X-Api-Key", key)
	}
	r.at(method, r.api+path, header, body)
}

// at sends a request whose answer does not matter.
func (r *running) at(method, url string, header http.Header, body string) {
	ctx, cancel := context.WithTimeout(r.Context(), 6*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		r.Error(err)
		return
	}
	req.Header = header
	if res, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// comes is somebody who signs up.
func (r *running) comes() {
	r.try("POST", "/public/waitlists/"+r.list+"/signups", "", fmt.Sprintf(`{"email":"new%d@example.com"}`, r.number.Add(1)))
}

// each calls fn from n goroutines at once.
func each(n int, fn func()) {
	var all sync.WaitGroup
	for range n {
		all.Go(fn)
	}
	all.Wait()
}

// freeze stops processes until the fault ends.
func freeze(find func(*running) []int) (begin, end func(*running)) {
	var pids []int
	return func(r *running) {
			pids = find(r)
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}, func(*running) {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
}

// holds runs statements in a session that stays open until the fault ends, and with it their locks.
func holds(sql string) (begin, end func(*running)) {
	var open io.Closer
	var session *exec.Cmd
	return func(r *running) {
			session = r.session()
			in, err := session.StdinPipe()
			if err != nil {
				r.Fatal(err)
			}
			out, err := session.StdoutPipe()
			if err != nil {
				r.Fatal(err)
			}
			session.Stderr = os.Stderr
			if err := session.Start(); err != nil {
				r.Fatal(err)
			}
			open = in
			if _, err := io.WriteString(in, sql+";\n\\echo held\n"); err != nil {
				r.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for lines.Scan() && lines.Text() != "held" {
			}
			if lines.Text() != "held" {
				r.Fatalf("%s: the session ended: %v", sql, lines.Err())
			}
		}, func(*running) {
			_ = open.Close()
			_ = session.Wait() // whoever has the lock no longer is all that counts
		}
}

// repeats runs a statement that holds a lock for some seconds, again and again, until the fault
// ends. People wait so long, and then get what they asked for.
func repeats(sql string) (begin, end func(*running)) {
	var stop context.CancelFunc
	var done chan struct{}
	return func(r *running) {
			ctx, cancel := context.WithCancel(r.Context())
			stop, done = cancel, make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil && r.psql(sql) { //nolint:contextcheck // a statement lasts a few seconds
				}
			}()
		}, func(*running) {
			stop()
			<-done
		}
}

// relayLock is the advisory lock of signup's relay.
func relayLock() int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("outbox relay signup"))
	return int64(h.Sum64())
}

// faults are grouped by the suite in which they happen one after the other.
func faults() map[string]map[string]fault {
	child := func(word string) func(*running) []int { return func(r *running) []int { return r.children(word) } }
	with := func(f fault, begin, end func(*running)) fault {
		f.begin, f.end = begin, end
		return f
	}
	pair := func(f fault) func(begin, end func(*running)) fault {
		return func(begin, end func(*running)) fault { return with(f, begin, end) }
	}
	var connections []net.Conn
	return map[string]map[string]fault{
		"budgets": budgetFaults(),
		"outside": outsideFaults(),
		"servers": {
			"Redis frozen":    pair(fault{speed: 30, want: []string{"RedisAway/warning"}})(freeze(child("redis-server"))),
			"Postgres frozen": pair(fault{speed: 30, want: []string{"PostgresAway/critical"}})(freeze(child("postgres"))),
			"suite frozen": pair(fault{speed: 60, want: []string{"NothingScraped/critical"}})(
				freeze(func(r *running) []int { return []int{r.cmd.Process.Pid} })),
			"the relay's lock held by a stranger": pair(fault{speed: 60, want: []string{"OutboxWithoutLeader/critical"}})(holds(fmt.Sprintf(
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'signup outbox relay';
				SELECT pg_advisory_lock(%d)`, relayLock()))),
		},
		"events": {
			"Kafka frozen": pair(fault{
				speed: 30, meanwhile: (*running).comes, want: []string{"KafkaAway/critical", "OutboxOld/critical"},
				// What waited has its effect late.
				may: []string{"BudgetEventsFresh/critical", "BudgetWebhookSoon/critical", "ProducerFails/warning"},
			})(freeze(func(r *running) []int { return []int{r.kafka.Pid} })),
			"a topic that is not there": {
				speed: 20, want: []string{"ProducerFails/warning", "OutboxOld/critical"},
				begin: func(r *running) {
					r.psql(`INSERT INTO signup.outbox (topic, key, payloads, traceparent) VALUES ('nowhere', 'x', ARRAY['x'::bytea], '')`)
				},
				end: func(r *running) { r.psql(`DELETE FROM signup.outbox WHERE topic = 'nowhere'`) },
			},
			"poison event": {
				speed: 60, want: []string{"DeadLetters/warning"},
				begin: func(r *running) {
					r.psql(`INSERT INTO signup.outbox (topic, key, payloads, traceparent)
						VALUES ('waitlist.signups.v1', 'x', ARRAY['\xff'::bytea], '')`)
				},
				end: func(*running) {},
			},
			"refused produce": {
				speed: 60, want: []string{"OutboxParked/warning"},
				begin: func(r *running) {
					r.psql(`INSERT INTO signup.outbox (topic, key, payloads, traceparent)
						VALUES ('waitlist.signups.v1', 'x', ARRAY[convert_to(repeat('x', 1000000), 'UTF8')], '')`)
				},
				end: func(r *running) { r.psql(`DELETE FROM signup.outbox WHERE parked_at IS NOT NULL`) },
			},
		},
		"providers": {
			"payments broken": {
				speed: 60, want: []string{"PaymentsAway/critical"},
				meanwhile: func(r *running) { r.try("POST", "/billing/checkout", r.key, `{"tier":"pro"}`) },
				begin:     func(r *running) { r.control("POST", `{"kind":"broken","times":1000000}`) },
				end: func(r *running) {
					r.control("DELETE", `{}`)
					r.await("a checkout", func() bool {
						status, _ := r.do("POST", "/billing/checkout", r.key, object{"tier": "pro"})
						return status < 300
					})
				},
				may: []string{"BudgetOwnersApi/critical"}, // 502
			},
			"SMTP 421": {
				speed: 20, want: []string{"MailAway/critical"},
				begin: func(r *running) {
					r.mail.answer.Store("421 4.3.2 closing")
					r.forgets()
				},
				end: func(r *running) { r.mail.answer.Store("") },
			},
			"SMTP 451": {
				speed: 30, ages: 600, want: []string{"MailsOld/warning", "BlastStands/warning"},
				begin: func(r *running) {
					r.mail.answer.Store("451 4.7.1 later")
					r.forgets()
					r.post("/waitlists/"+r.list+"/blasts", r.key, object{"subject": "Hello", "text_body": "Hello."})
				},
				end: func(r *running) {
					r.mail.answer.Store("")
					// What was put off takes its pauses, and would look old during the next fault.
					r.await("all mails", func() bool {
						now, _ := scrape(r, r.metrics)
						return len(now) > 0 && total(now, "messaging_oldest_seconds") == 0
					})
				},
			},
		},
		"load": {
			"a table locked": pair(fault{
				speed: 60, want: []string{"PoolExhausted/warning"},
				meanwhile: func(r *running) {
					// Configs that come at the same time would share one read.
					each(40, func() { r.try("GET", "/public/waitlists/"+r.list+"/signups/nobody@example.com/status", "", "") })
				},
			})(repeats(`BEGIN; LOCK TABLE signup.waitlist IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(3.5)`)),
			"a list locked": pair(fault{
				speed: 60, want: []string{"SignupsRefused/warning"}, may: []string{"BudgetSignupFast/critical"},
				meanwhile: func(r *running) { each(40, r.comes) },
			})(repeats(`BEGIN; SELECT 1 FROM signup.waitlist FOR UPDATE; SELECT pg_sleep(3)`)),
			"Redis full": {
				speed: 30, meanwhile: (*running).comes, want: []string{"IndexBehind/warning"},
				begin: func(r *running) { r.redis("CONFIG", "SET", "maxmemory", "1") },
				end:   func(r *running) { r.redis("CONFIG", "SET", "maxmemory", "0") },
			},
			"passwords tried": {
				speed: 30, want: []string{"LoginsRefused/warning"},
				meanwhile: func(r *running) {
					each(20, func() {
						r.try("POST", "/auth/login", "", `{"email":"owner@example.com","password":"wrong wrong wrong"}`)
					})
				},
				begin: func(*running) {}, end: func(*running) {},
			},
			"no collector": {
				speed: 60, meanwhile: (*running).comes, want: []string{"SpansDropped/warning"},
				begin: func(r *running) { r.spans.stop() },
				end: func(r *running) {
					r.spans.start()
					exported := func() float64 {
						now, _ := scrape(r, r.metrics)
						return total(now, "otel_sdk_exporter_span_exported_total")
					}
					before := exported()
					r.await("exports", func() bool { return exported() > before }) // they come after a pause
				},
			},
			"the inbox locked": pair(fault{
				speed: 30, meanwhile: (*running).comes, want: []string{"ConsumerStuck/critical"},
				may: []string{"BudgetEventsFresh/critical"},
			})(holds(`BEGIN; LOCK TABLE admin_analytics.inbox IN ACCESS EXCLUSIVE MODE`)),
			"connections held": {
				speed: 60, want: []string{"ConnectionsFull/warning"},
				begin: func(r *running) {
					for range 4600 {
						c, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", strings.TrimPrefix(strings.TrimSuffix(r.api, "/v1"), "http://"))
						if err != nil {
							r.Fatal(err)
						}
						connections = append(connections, c)
					}
				},
				end: func(*running) {
					for _, c := range connections {
						_ = c.Close()
					}
				},
			},
		},
	}
}

// forgets asks for a mail, of an account of its own, since an account gets few.
func (r *running) forgets() {
	email := fmt.Sprintf("forgetful%d@example.com", r.number.Add(1))
	r.post("/auth/register", "", object{"email": email, "password": "correct horse battery"})
	r.post("/auth/forgot-password", "", object{"email": email})
}

// control gives the payment simulator an order.
func (r *running) control(method, body string) {
	req, err := http.NewRequestWithContext(r.Context(), method, r.sim+"/_sim/faults?key=secret", strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		r.Fatalf("%s faults: %s", method, res.Status)
	}
}

// open starts a suite whose Kafka, mail server, payment simulator and collector are the test's.
func open(t *testing.T, env ...string) *running {
	t.Helper()
	broker := exec.Command(filepath.Join(programs(t), "devkafka"), "-port", "0", "-data", t.TempDir())
	out, err := broker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = broker.Process.Signal(syscall.SIGCONT)
		_ = broker.Process.Signal(syscall.SIGTERM)
		_ = broker.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	r := &running{kafka: broker.Process, mail: newPostOffice(t), spans: newCollector(t)}
	sim := freePort(t)
	host, port, _ := net.SplitHostPort(r.mail.address)
	r.sim = "http://" + sim
	r.suite = start(t, append([]string{
		strings.TrimSpace(line), "STRIPESIM_ADDR=" + sim, "DEV_KEY=secret", "STRIPE_WEBHOOK_SECRETS=" + paymentSecret,
		"RATE_LIMIT_RPS=100000", "RATE_LIMIT_BURST=100000",
		"SIGNUP_QUEUE_SIZE=8", "MAIL_PROVIDER=smtp", "MAIL_FROM=no-reply@example.com", "SMTP_TLS=none", "SMTP_HOST=" + host, "SMTP_PORT=" + port,
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + r.spans.address, "TRACE_RATIO=1", "TRACES_PER_SECOND=20",
		"OTEL_BSP_SCHEDULE_DELAY=500", // its 5 s would be minutes of the rules' time
	}, env...)...)
	r.world = r.suite.world()
	rows := make([]object, 1100) // short lists have no index
	for i := range rows {
		rows[i] = object{"email": fmt.Sprintf("row%d@example.com", i)}
	}
	r.post("/waitlists/"+r.list+"/import", r.key, object{"signups": rows})
	return r
}

// TestFaults lets things go wrong in running suites and watches their real metrics: the
// alerts of each fault fire, end with it, and no other does.
func TestFaults(t *testing.T) {
	t.Parallel()
	for group, all := range faults() {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			var r *running
			if group == "outside" {
				r = openOutside(t)
			} else {
				r = open(t)
			}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				t.Run(name, func(t *testing.T) { r.provoke(t, all[name]) })
			}
		})
	}
}

// TestFaultsAreAll has a fault for each alert.
func TestFaultsAreAll(t *testing.T) {
	t.Parallel()
	provoked := map[string]bool{}
	for _, all := range faults() {
		for _, f := range all {
			for _, name := range f.want {
				provoked[name] = true
			}
		}
	}
	for _, g := range rulesFile(t).Groups {
		for _, r := range g.Rules {
			name := strings.TrimPrefix(alertName(r.Alert, r.Labels["severity"], r.Labels["long"]), "Waitlist")
			if r.Alert != "" && !provoked[name] {
				t.Errorf("%s has no fault", name)
			}
		}
	}
}

// among reports whether a list has an alert, or its name and severity.
func among(list []string, name string) bool {
	return slices.ContainsFunc(list, func(one string) bool { return name == one || strings.HasPrefix(name, one+"/") })
}

// dependencies is how many servers the services need, each service counted.
const dependencies = 13

// periodic are metrics that lag behind what happens, with the reason. Where rules do not see them in
// time, WaitlistConsumerStuck and WaitlistSpansDropped cannot fire.
var periodic = map[string]string{ // a constant
	"kafka_consumer_lag": "looked up every few seconds, which are hours for the rules where time passes by looks",
	"otel_sdk_.*":        "spans are exported every half second",
}

// provoke watches one fault from before it until nothing fires.
func (r *running) provoke(t *testing.T, f fault) {
	t.Helper()
	e := newEngine(t)
	e.now = time.Now() // certificates and keys have real dates
	if f.before != nil {
		f.before(r)
		defer func() { r.more = nil }()
	}
	last, used := time.Now(), e.used()
	if f.step > 0 {
		maps.DeleteFunc(used, func(name string, _ bool) bool { return matches(periodic, name) })
	}
	look := func() {
		if f.step > 0 && f.meanwhile != nil {
			f.meanwhile(r)
		}
		now, _ := scrape(t, r.metrics)
		if r.more != nil {
			now = append(now, r.more()...)
		}
		now = slices.DeleteFunc(now, func(s sample) bool { return !used[s.name()] })
		took := time.Since(last)
		last = last.Add(took)
		passed := time.Duration(float64(took) * f.speed)
		if f.step > 0 {
			passed = f.step
		}
		factor := cmp.Or(f.ages, f.speed, 1)
		for i := range now {
			switch name := now[i].name(); {
			case strings.HasSuffix(name, "_oldest_seconds"):
				now[i].value *= factor
			case name == "prober_last_success_timestamp_seconds" && now[i].value > 0:
				now[i].value = float64(e.now.Add(passed).Unix()) - (float64(last.UnixMilli())/1000-now[i].value)*factor
			}
		}
		e.step(passed, now)
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; {
			look()
			if ok() {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("waited for %s; firing: %s", what, names(e.firing()))
			}
			if f.step > 0 {
				continue
			}
			select {
			case <-t.Context().Done():
				t.Fatal(t.Context().Err())
			case <-time.After(400 * time.Millisecond):
			}
		}
	}
	r.await("dependencies", func() bool {
		now, _ := scrape(t, r.metrics)
		return total(now, "waitlist_dependency_up") == dependencies
	})
	if f.step > 0 && f.meanwhile != nil {
		f.meanwhile(r) // the first of its kind may be slow
	}
	await("a first look", func() bool { return len(e.query(`waitlist_dependency_up == 1`)) == dependencies })
	look()
	if len(e.fired) > 0 {
		t.Fatalf("before: %v", e.fired)
	}
	var people sync.WaitGroup
	ctx, leave := context.WithCancel(t.Context())
	if f.meanwhile != nil && f.step == 0 {
		people.Go(func() {
			for ctx.Err() == nil {
				f.meanwhile(r)
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	began := time.Now()
	f.begin(r)
	ended := false
	end := func() {
		if !ended {
			ended = true
			leave()
			f.end(r)
			people.Wait()
		}
	}
	defer end()
	fired := map[string]bool{}
	await(fmt.Sprint(f.want), func() bool {
		for name := range e.firing() {
			fired[strings.TrimPrefix(name, "Waitlist")] = true
		}
		return !slices.ContainsFunc(f.want, func(name string) bool { return !fired[name] })
	})
	t.Logf("fired after %.0f s", time.Since(began).Seconds())
	end()
	over := time.Now()
	await("nothing to fire", func() bool { return len(e.firing()) == 0 })
	t.Logf("ended after %.0f s", time.Since(over).Seconds())
	for name := range e.fired {
		name = strings.TrimPrefix(name, "Waitlist")
		if !among(f.want, name) && !among(f.may, name) {
			t.Errorf("%s fired, too", name)
		}
	}
}

// postOffice is a mail server that takes mails, or answers each with answer.
type postOffice struct {
	address string
	answer  atomic.Value
}

func newPostOffice(t *testing.T) *postOffice {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &postOffice{address: l.Addr().String()}
	p.answer.Store("")
	var sessions sync.WaitGroup
	sessions.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			sessions.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		sessions.Wait()
	})
	return p
}

// serve speaks as much SMTP as a client needs.
func (p *postOffice) serve(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	say := func(line string) { _, _ = io.WriteString(c, line+"\r\n") }
	say("220 ready")
	for in, data := bufio.NewScanner(c), false; in.Scan(); {
		word, _, _ := strings.Cut(strings.ToUpper(in.Text()), " ")
		answer, _ := p.answer.Load().(string)
		switch {
		case data && in.Text() != ".":
		case data:
			data = false
			say("250 taken")
		case word == "MAIL" && answer != "":
			say(answer)
		case word == "DATA":
			data = true
			say("354 go on")
		case word == "QUIT":
			say("221 bye")
			return
		default:
			say("250 ok")
		}
	}
}

// collector takes spans and throws them away.
type collector struct {
	*testing.T
	address string
	server  *grpc.Server
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{T: t, address: freePort(t)}
	c.start()
	t.Cleanup(c.stop)
	return c
}

// raw passes messages as they are. The answer to an export is empty in protobuf.
type raw struct{}

func (raw) Name() string                { return "proto" }
func (raw) Marshal(any) ([]byte, error) { return nil, nil }
func (raw) Unmarshal([]byte, any) error { return nil }

func (c *collector) start() {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", c.address)
	if err != nil {
		c.Error(err)
		return
	}
	c.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.MaxRecvMsgSize(64<<20),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			if err := s.RecvMsg(new(any)); err != nil {
				return err
			}
			return s.SendMsg(new(any))
		}))
	go func(s *grpc.Server) { _ = s.Serve(l) }(c.server)
}

func (c *collector) stop() { c.server.Stop() }
