package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/services/notifier"
	"waitlist.internal/tools/internal/webhooksink"
)

// receiver receives what is sent to owners' servers.
type receiver struct {
	// env makes the program send its notifications to the receiver.
	env map[string]string

	mu sync.Mutex
	// posts are the received bodies by path.
	posts map[string][]string
	// answers are the handlers by path; default: 200.
	answers map[string]http.HandlerFunc
}

func newReceiver(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{posts: map[string][]string{}, answers: map[string]http.HandlerFunc{}}
	s, err := webhooksink.New(t.TempDir(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	r.env = s.Env
	return r
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	b, _ := io.ReadAll(req.Body)
	body := string(b)
	if req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json" {
		body = fmt.Sprint(req.Method, " ", req.Header, " ", body)
	}
	r.mu.Lock()
	r.posts[req.URL.Path] = append(r.posts[req.URL.Path], body)
	answer := r.answers[req.URL.Path]
	r.mu.Unlock()
	if answer != nil {
		answer(w, req)
	}
}

func (r *receiver) got(path string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.posts[path]...)
}

// await waits for n bodies at a path and returns them.
func (r *receiver) await(t testing.TB, path string, n int) []string {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for len(r.got(path)) < n {
		if time.Now().After(deadline) {
			t.Fatalf("%d messages arrived at %s, want %d", len(r.got(path)), path, n)
		}
		<-tick.C
	}
	return r.got(path)
}

// want requires exactly these bodies at a path, in any order.
func (r *receiver) want(t testing.TB, path string, bodies ...Obj) {
	t.Helper()
	got := map[string]int{}
	for _, b := range r.await(t, path, len(bodies)) {
		var v any
		if err := json.Unmarshal([]byte(b), &v); err != nil {
			t.Errorf("%s: %v: %s", path, err, b)
		}
		got[canonical(v)]++
	}
	want := map[string]int{}
	for _, b := range bodies {
		want[canonical(b)]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s received %v\nwant %v", path, got, want)
	}
}

func hook(event, waitlist, at string, data Obj) Obj {
	return Obj{"event": event, "waitlist_id": waitlist, "timestamp": at, "data": data}
}

// testNotifications checks that all three channels notify owners of what the contract lists, and of nothing else.
func (s *suite) testNotifications(t *testing.T) {
	r := newReceiver(t)
	d := s.deploy(t, r.env)
	o := d.owner(t)
	on := Obj{
		"webhook_url": "https://example.com/hook", "slack_webhook_url": "https://example.com/slack",
		"discord_webhook_url": "https://example.com/discord",
		"position_offset":     100, "hide_position": true, "referral_boost": 5,
	}
	id := o.waitlist(t, on)
	ada, bob, eve := address("a_da+x"), address("bob"), address("eve")
	first := o.join(t, id, ada, Obj{"first_name": "Ada <b>", "last_name": "\"L\""})
	// The first waits until the consumers, which have just started, have joined their group.
	r.await(t, "/discord", 1)
	second := o.join(t, id, bob)
	start := time.Now()
	r.await(t, "/discord", 2)
	if took := time.Since(start); took > notifier.Timeout {
		t.Errorf("the owner was notified after %s", took)
	}
	third := o.join(t, id, eve, Obj{"referred_by_token": second.Str("referral_token")})
	// No notifications for an existing address, a bot, an import or a removal.
	o.Do(t, signup(id, ada)).Want(http.StatusOK)
	o.Do(t, signup(id, address("bot"), Obj{"website": "x"})).Want(http.StatusCreated)
	o.Do(t, Post("/waitlists/"+id+"/import", Obj{"signups": []any{Obj{"email": address("imported")}}}).As(o.token)).Want(http.StatusOK)
	o.Do(t, Delete("/waitlists/"+id+"/signups/"+ada).As(o.token)).Want(http.StatusNoContent)

	person := func(r *Response, position int, first, last string) Obj {
		return Obj{
			"email": r.Str("email"), "first_name": first, "last_name": last, "position": position,
			"referral_token": r.Str("referral_token"),
		}
	}
	at := func(r *Response) string { return r.Str("created_at") }
	wantHooks := []Obj{
		hook("signup.created", id, at(first), person(first, 101, "Ada <b>", "\"L\"")),
		hook("signup.created", id, at(second), person(second, 102, "", "")),
		hook("signup.created", id, at(third), person(third, 103, "", "")),
	}
	credited := Obj{"email": bob, "referral_count": 1, "position": 101}
	r.want(t, "/hook", append(wantHooks, hook("referral.credited", id, at(third), credited))...)
	slack := func(email string, position int) Obj {
		return Obj{
			"text": "New signup on waitlist " + id + ": " + email,
			"blocks": []any{Obj{"type": "section", "text": Obj{
				"type": "mrkdwn", "text": fmt.Sprintf("*New Signup*\nWaitlist: %s\nEmail: %s\nPosition: #%d", id, email, position),
			}}},
		}
	}
	r.want(t, "/slack", slack(ada, 101), slack(bob, 102), slack(eve, 103))
	discord := func(res *Response, position int) Obj {
		email := strings.ReplaceAll(res.Str("email"), "_", `\_`)
		return Obj{"embeds": []any{Obj{
			"title": "New Signup", "description": fmt.Sprintf("Email: %s\nPosition: #%d", email, position), "color": 6513393, "timestamp": at(res),
		}}}
	}
	r.want(t, "/discord", discord(first, 101), discord(second, 102), discord(third, 103))

	t.Run("chosen events", func(t *testing.T) { testChosenEvents(t, d, o, r) })
	t.Run("tiers", func(t *testing.T) { testChannelTiers(t, d, r) })
	t.Run("bad receivers", func(t *testing.T) { testBadReceivers(t, d, r) })
	t.Run("log", func(t *testing.T) {
		log := d.deliveries(t, id)
		if log["webhook delivered"] != 4 || log["slack delivered"] != 3 || log["discord delivered"] != 3 {
			t.Errorf("%v", log)
		}
		o.Do(t, Delete("/waitlists/"+id).As(o.token)).Want(http.StatusNoContent)
		deadline := time.Now().Add(time.Minute)
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		for len(d.deliveries(t, id)) > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("the deleted waitlist's log: %v", d.deliveries(t, id))
			}
			<-tick.C
		}
	})
}

// deliveries counts the entries of a waitlist's delivery log.
func (d *deployment) deliveries(t testing.TB, waitlist string) map[string]int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(),
		"SELECT channel || ' ' || outcome, count(*) FROM notifier.delivery WHERE waitlist_id = $1 GROUP BY 1", waitlist)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	var what string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&what, &n}, func() error { out[what] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// testChosenEvents checks that the webhook gets the chosen events, by default both.
func testChosenEvents(t *testing.T, _ *deployment, o *owner, r *receiver) {
	id := o.waitlist(t, Obj{"webhook_url": "https://example.com/chosen"})
	referrer := o.join(t, id, address("referrer")).Str("referral_token")
	refer := func() { o.join(t, id, address("referred"), Obj{"referred_by_token": referrer}) }
	events := func(n int) map[string]int {
		t.Helper()
		out := map[string]int{}
		for _, b := range r.await(t, "/chosen", n) {
			var body struct{ Event string }
			if err := json.Unmarshal([]byte(b), &body); err != nil {
				t.Fatal(err)
			}
			out[body.Event]++
		}
		return out
	}
	refer()
	events(3)
	o.set(t, id, Obj{"webhook_events": []any{}})
	refer()
	o.set(t, id, Obj{"webhook_events": []any{"referral.credited"}})
	refer()
	events(4)
	o.set(t, id, Obj{"webhook_events": []any{"signup.created"}})
	refer()
	events(5)
	o.set(t, id, Obj{"webhook_events": nil})
	refer()
	if got, want := events(7), map[string]int{"signup.created": 4, "referral.credited": 3}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// testChannelTiers checks that channels are silent below Pro and without an active plan, and resume with the plan.
func testChannelTiers(t *testing.T, d *deployment, r *receiver) {
	o := d.owner(t)
	id := o.waitlist(t, Obj{
		"webhook_url": "https://example.com/tiers", "slack_webhook_url": "https://example.com/tiers",
		"discord_webhook_url": "https://example.com/tiers",
	})
	for _, state := range [][2]string{{"advanced", "active"}, {"basic", "active"}, {"pro", "inactive"}} {
		d.setTier(t, o, state[0], state[1])
		o.join(t, id, address("silent"))
	}
	d.setTier(t, o, "pro", "active")
	loud := o.join(t, id, address("loud")).Str("email")
	for _, b := range r.await(t, "/tiers", 3) {
		if !strings.Contains(b, loud) {
			t.Errorf("notified below Pro: %s", b)
		}
	}
	if n := len(r.got("/tiers")); n != 3 {
		t.Errorf("%d messages", n)
	}
}

// testBadReceivers checks that no owner's server can slow signups down, cause duplicates, or delay notifications to others.
func testBadReceivers(t *testing.T, d *deployment, r *receiver) {
	release := make(chan struct{})
	defer close(release)
	r.mu.Lock()
	maps.Copy(r.answers, map[string]http.HandlerFunc{
		"/500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"/301": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "/elsewhere", http.StatusMovedPermanently)
		},
		"/308": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "/elsewhere", http.StatusPermanentRedirect)
		},
		"/reset": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"/hang":  func(http.ResponseWriter, *http.Request) { <-release },
		"/10GB": func(w http.ResponseWriter, _ *http.Request) {
			chunk := make([]byte, 64<<10)
			for range 10 << 30 / len(chunk) {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
			t.Error("the program read 10 GB")
		},
	})
	r.mu.Unlock()
	paths := []string{"/500", "/301", "/308", "/reset", "/10GB", "/hang"}
	bad, good := d.owner(t), d.owner(t)
	const each = 10
	healthy := good.waitlist(t, Obj{"webhook_url": "https://example.com/healthy"})
	var slowest time.Duration
	ids := map[string]string{}
	for _, path := range paths {
		ids[path] = bad.waitlist(t, Obj{"webhook_url": "https://example.com" + path})
	}
	for range each {
		for _, path := range paths {
			slowest = max(slowest, bad.join(t, ids[path], address("x")).Took)
		}
		good.join(t, healthy, address("y"))
	}
	// Neither waits for an attempt at /hang, which takes notifier.Timeout.
	start := time.Now()
	r.await(t, "/healthy", each)
	if took := time.Since(start); took > notifier.Timeout/2 {
		t.Errorf("other owners were notified after %s", took)
	}
	if slowest > notifier.Timeout {
		t.Errorf("a signup took %s", slowest)
	}
	for _, path := range paths {
		r.await(t, path, each)
	}
	for path, outcome := range map[string]string{
		"/500": "rejected", "/301": "rejected", "/308": "rejected", "/reset": "unreachable", "/10GB": "delivered", "/hang": "timeout",
	} {
		deadline := time.Now().Add(time.Minute)
		tick := time.NewTicker(pollEvery)
		for d.deliveries(t, ids[path])["webhook "+outcome] != each && time.Now().Before(deadline) {
			<-tick.C
		}
		tick.Stop()
		if log := d.deliveries(t, ids[path]); log["webhook "+outcome] != each {
			t.Errorf("%s: %v", path, log)
		}
		if n := len(r.got(path)); n != each {
			t.Errorf("%s was called %d times", path, n)
		}
	}
	if n := len(r.got("/elsewhere")); n != 0 {
		t.Error("the program followed a redirect")
	}
}

// testNotificationsKilled kills the program repeatedly while it notifies an owner. Nothing may be sent twice; at most the
// notifications in flight at a kill are missing, and the log records them.
func (s *suite) testNotificationsKilled(t *testing.T) {
	const kills, each = 4, 20 // the log keeps that many entries per list
	r := newReceiver(t)
	dir := DataDir(t)
	d := &deployment{suite: s, db: database(t)}
	env := map[string]string{"RATE_LIMIT_RPS": "100000", "RATE_LIMIT_BURST": "100000", "POSTGRES_URL": d.db}
	maps.Copy(env, r.env)
	r.answers["/killed"] = func(_ http.ResponseWriter, req *http.Request) {
		wait := time.NewTimer(20 * time.Millisecond)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-req.Context().Done():
		}
	}
	server := Run(t, Options{Binary: s.binary, Dir: dir, Env: env})
	d.server = server
	o := d.owner(t)
	id := o.waitlist(t, Obj{"webhook_url": "https://example.com/killed"})
	var people []string
	for range kills {
		before := len(r.got("/killed"))
		for range each {
			people = append(people, o.join(t, id, address("p")).Str("email"))
		}
		r.await(t, "/killed", before+each/4) // while deliveries are in progress
		server.Kill()
		server = Run(t, Options{Binary: s.binary, Dir: dir, Addr: server.Addr, Env: env})
		d.server = server
	}
	last := o.join(t, id, address("last")).Str("email")
	// The death of a replica that holds deliveries is noticed after a while.
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	log := d.deliveries(t, id)
	for ; log["webhook delivered"]+log["webhook unknown"] < len(people)+1 || log["webhook "] > 0; log = d.deliveries(t, id) {
		if time.Now().After(deadline) {
			t.Fatalf("%v of %d", log, len(people)+1)
		}
		<-tick.C
	}
	got := map[string]int{}
	for _, b := range r.got("/killed") {
		var body struct{ Data struct{ Email string } }
		if err := json.Unmarshal([]byte(b), &body); err != nil {
			t.Fatal(err)
		}
		got[body.Data.Email]++
	}
	missing := 0
	for _, p := range append(people, last) {
		switch n := got[p]; {
		case n == 0:
			missing++
		case n > 1:
			t.Errorf("%s was sent %d times", p, n)
		}
	}
	if missing > log["webhook unknown"] {
		t.Errorf("%d notifications are missing; the log has %v", missing, log)
	}
	t.Logf("%d told, %d missing after %d kills; %v", len(got), missing, kills, log)
}
