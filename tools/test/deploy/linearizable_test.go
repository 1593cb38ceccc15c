package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"waitlist.internal/libs/testenv"
)

const (
	clients = 64
	// Of owners clients, one moves people and one removes them. Their answers tell little
	// about the queue, so that each more of them at a time multiplies the orders to judge.
	owners = 32
	// imported is how many people are on the waitlist at first: more than Postgres ranks
	// without the index.
	imported = 1100
	// judged is how long porcupine may think about a history.
	judged = 3 * time.Minute
	// visible is how long after its time stamp a commit may take to be seen.
	visible = time.Second
	// answered is how long the suite may take for an answer while its servers are away.
	answered = time.Minute
)

// testLinearizable lets 64 clients sign up, move, remove and look while the network between
// two replicas of signup and their servers is cut and slowed. What they were told must be
// what some order of their operations, one by one, would have told them.
func testLinearizable(t *testing.T, programs string) {
	const each = 16
	rounds := 3
	if os.Getenv("CHAOS") == "full" {
		rounds = 30
	}
	from := testenv.Seed(t)
	db := newDatabase(t)
	db.applyRoles(t, "postgres")
	d := newDeployment(t, db, programs)
	d.migrate()
	network := newNetwork(t)
	d.base["RATE_LIMIT_RPS"], d.base["RATE_LIMIT_BURST"] = "100000", "100000"
	d.env["signup"]["POSTGRES_URL"] = network.lead(t, "postgres", d.env["signup"]["POSTGRES_URL"])
	d.env["signup"]["REDIS_URL"] = network.lead(t, "redis", d.base["REDIS_URL"])
	for _, p := range []*process{
		d.start("account", 0), d.start("signup", 0), d.start("signup", 1),
	} {
		testenv.Within(t, patience, p.service+" is ready", func() bool { return p.ready(t) })
		d.names.set(name(p.service), append(d.names.get(name(p.service)), p.host)...)
	}
	key, _ := d.owner()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	defer transport.CloseIdleConnections()
	audit := db.connect(t, "postgres")
	for round := range rounds {
		h := newHistory(t, d, transport, key)
		h.record(network, from+uint64(round), each)
		h.settle(audit)
		h.readAll()
		h.judge()
		if t.Failed() {
			return
		}
	}
}

// network is what lies between signup and its servers.
type network struct {
	server  *toxiproxy.ApiServer
	proxies []*toxiproxy.Proxy
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())}
	t.Cleanup(func() {
		for _, p := range n.proxies {
			p.Stop()
		}
	})
	return n
}

// lead puts a proxy before a server and returns the server's URL by way of it.
func (n *network) lead(t *testing.T, name, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := toxiproxy.NewProxy(n.server, name, "127.0.0.1:0", u.Host)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	n.proxies = append(n.proxies, p)
	u.Host = p.Listen
	return u.String()
}

// span is a time from begin to end, as history.now tells it.
type span struct{ begin, end int64 }

// disturb cuts and slows the network at random until ctx ends, and leaves it in order.
func (n *network) disturb(ctx context.Context, t *testing.T, rng *rand.Rand, now func() int64) (faults []span) {
	for {
		if !pause(ctx, time.Duration(20+rng.IntN(100))*time.Millisecond) {
			return faults
		}
		begin := now()
		p := n.proxies[rng.IntN(len(n.proxies))]
		lasts := time.Duration(50+rng.IntN(250)) * time.Millisecond
		stream := []string{"upstream", "downstream"}[rng.IntN(2)]
		toxic := func(kind, attributes string) {
			text := fmt.Sprintf(`{"name": "fault", "type": %q, "stream": %q, "attributes": {%s}}`, kind, stream, attributes)
			if _, err := p.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
				t.Errorf("%s: %v", text, err)
				return
			}
			pause(ctx, lasts)
			if err := p.Toxics.RemoveToxic(context.WithoutCancel(ctx), "fault"); err != nil {
				t.Errorf("end of %s: %v", text, err)
			}
		}
		switch rng.IntN(5) {
		case 0:
			p.Stop()
			pause(ctx, lasts)
			if err := p.Start(); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		case 1:
			toxic("reset_peer", fmt.Sprintf(`"timeout": %d`, rng.IntN(30)))
		case 2:
			toxic("timeout", fmt.Sprintf(`"timeout": %d`, 1+rng.IntN(100)))
		case 3:
			toxic("latency", fmt.Sprintf(`"latency": %d, "jitter": 10`, 10+rng.IntN(40)))
		case 4:
			toxic("slicer", `"average_size": 64, "size_variation": 32, "delay": 500`)
		}
		faults = append(faults, span{begin, now()})
	}
}

// pause waits for d. It returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// history is what happened on one waitlist.
type history struct {
	t         *testing.T
	d         *deployment
	transport http.RoundTripper
	key, list string
	begin     time.Time
	people    atomic.Int64
	requests  atomic.Int64

	mu         sync.Mutex
	operations []porcupine.Operation
	// known are the signups that somebody was told of, with their tokens.
	known  []int
	tokens map[int]string
	// removable are those of them that nobody removes yet.
	removable []int
	owned     []owned
	faults    []span
	// numbers are those of the people who are on the waitlist in the end.
	numbers map[int]int
}

// owned is an owner's operation with its answer.
type owned struct {
	porcupine.Operation
	request string
	// lost: it is not known whether it took effect.
	lost bool
}

// named gives requests an id.
type named struct {
	http.RoundTripper
	id string
}

func (n named) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("X-Request-Id", n.id)
	return n.RoundTripper.RoundTrip(req)
}

func newHistory(t *testing.T, d *deployment, transport http.RoundTripper, key string) *history {
	t.Helper()
	h := &history{t: t, d: d, transport: transport, key: key, begin: time.Now(), tokens: map[int]string{}}
	settings := fmt.Sprintf(`{"name": "Launch", "settings": {"referral_boost": %d}}`, boost)
	h.list, _ = d.post(http.StatusCreated, "signup", "/v1/waitlists", key, settings)["waitlist_id"].(string)
	var rows []map[string]string
	for person := range imported {
		rows = append(rows, map[string]string{"email": email(person)})
	}
	h.people.Store(imported)
	body, err := json.Marshal(map[string]any{"signups": rows})
	if err != nil {
		t.Fatal(err)
	}
	got := d.post(http.StatusOK, "signup", "/v1/waitlists/"+h.list+"/import", key, string(body))
	if got["imported"] != float64(imported) {
		t.Fatalf("import: %v", got)
	}
	return h
}

func email(person int) string { return fmt.Sprintf("p%d@example.com", person) }

func (h *history) now() int64 { return int64(time.Since(h.begin)) }

// record lets the clients do their operations while the network is disturbed.
func (h *history) record(n *network, seed uint64, each int) {
	ctx, cancel := context.WithCancel(h.t.Context())
	var disturbing, asking sync.WaitGroup
	disturbing.Go(func() { h.faults = n.disturb(ctx, h.t, rand.New(rand.NewPCG(seed, clients)), h.now) })
	for client := range clients {
		asking.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			for range each {
				switch {
				case client%owners == 0:
					h.move(rng, client)
				case client%owners == 1:
					h.remove(rng, client)
				case rng.IntN(2) == 0:
					h.signUp(rng, client)
				default:
					h.look(client, h.pick(rng))
				}
			}
		})
	}
	asking.Wait()
	cancel()
	disturbing.Wait()
	h.t.Logf("seed %d: %d operations in %v, %d faults",
		seed, len(h.operations)+len(h.owned), time.Since(h.begin).Round(time.Millisecond), len(h.faults))
}

func (h *history) add(client int, c call, begin int64, a answer, end int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: c, Call: begin, Output: a, Return: end})
}

// pick returns somebody on the list, mostly one of the latest.
func (h *history) pick(rng *rand.Rand) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.known); n > 0 && rng.IntN(4) > 0 {
		return h.known[max(0, n-1-rng.IntN(clients))]
	}
	return rng.IntN(imported)
}

// ask sends a request. A 500 may have taken effect, a 429 had none.
func (h *history) ask(by http.RoundTripper, method, host, path, key, body string) (status int, got map[string]any) {
	ctx, cancel := context.WithTimeout(h.t.Context(), answered)
	defer cancel()
	path = "http://" + host + ":8080/v1" + path
	status, got, err := send(ctx, by, method, path, key, body)
	if err != nil {
		h.t.Errorf("%s %s: %v", method, path, err)
		return http.StatusTooManyRequests, nil
	}
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent, http.StatusNotFound,
		http.StatusTooManyRequests, http.StatusInternalServerError:
	default:
		h.t.Errorf("%s %s: %d %v", method, path, status, got)
	}
	return status, got
}

func (h *history) signupPath(person int) string {
	return "/public/waitlists/" + h.list + "/signups/" + email(person)
}

func answerOf(status int, got map[string]any) answer {
	number := func(field string) int { n, _ := got[field].(float64); return int(n) }
	return answer{
		created: status == http.StatusCreated, absent: status == http.StatusNotFound,
		position: number("position"), total: number("total_signups"), referrals: number("referral_count"),
	}
}

// look asks for a status until it is answered.
func (h *history) look(client, person int) {
	for h.t.Context().Err() == nil {
		begin := h.now()
		status, got := h.ask(h.transport, http.MethodGet, h.d.host("signup", client%2), h.signupPath(person), "", "")
		if status == http.StatusOK || status == http.StatusNotFound {
			h.add(client, call{kind: looks, person: person, referrer: nobody}, begin, answerOf(status, got), h.now())
			return
		}
		pause(h.t.Context(), askEvery)
	}
}

// signUp signs up somebody new, or now and then an imported person again, until it is
// answered.
func (h *history) signUp(rng *rand.Rand, client int) {
	c := call{kind: signsUp, person: int(h.people.Add(1)) - 1, referrer: nobody}
	again := rng.IntN(8) == 0
	if again {
		c.person = rng.IntN(imported)
	}
	body := map[string]string{"email": email(c.person)}
	if referrer := h.pick(rng); rng.IntN(2) == 0 && referrer >= imported {
		h.mu.Lock()
		c.referrer, body["referred_by_token"] = referrer, h.tokens[referrer]
		h.mu.Unlock()
	}
	raw, err := json.Marshal(body)
	if err != nil {
		h.t.Error(err)
		return
	}
	path := "/public/waitlists/" + h.list + "/signups"
	first, failed := h.now(), false
	for h.t.Context().Err() == nil {
		begin := h.now()
		status, got := h.ask(h.transport, http.MethodPost, h.d.host("signup", rng.IntN(2)), path, "", string(raw))
		switch status {
		case http.StatusOK, http.StatusCreated:
			if status == http.StatusOK && !again {
				if !failed {
					h.t.Errorf("%s is said to be on the list already", body["email"])
				}
				// Nobody else signs this person up: one of the failed attempts took effect. A failed
				// attempt before a 201 had none.
				h.add(client, c, first, answer{unknown: true}, h.now())
			}
			h.add(client, c, begin, answerOf(status, got), h.now())
			if !again {
				token, _ := got["referral_token"].(string)
				h.mu.Lock()
				h.known, h.removable = append(h.known, c.person), append(h.removable, c.person)
				h.tokens[c.person] = token
				h.mu.Unlock()
			}
			return
		case http.StatusInternalServerError:
			failed = true
		}
		pause(h.t.Context(), askEvery)
	}
}

// move asks the owner's side to move somebody.
func (h *history) move(rng *rand.Rand, client int) {
	c := call{kind: moves, person: h.pick(rng), referrer: nobody, to: 1 + rng.IntN(imported+clients)}
	h.own(client, c, http.MethodPatch, "/"+email(c.person)+"/position", fmt.Sprintf(`{"position": %d}`, c.to))
}

// remove removes somebody whom nobody else removes.
func (h *history) remove(rng *rand.Rand, client int) {
	h.mu.Lock()
	n := len(h.removable)
	if n == 0 {
		h.mu.Unlock()
		return
	}
	at := rng.IntN(n)
	c := call{kind: removes, person: h.removable[at], referrer: nobody}
	h.removable[at] = h.removable[n-1]
	h.removable = h.removable[:n-1]
	h.mu.Unlock()
	h.own(client, c, http.MethodDelete, "/"+email(c.person), "")
}

// own sends a request of the owner, once.
func (h *history) own(client int, c call, method, path, body string) {
	o := owned{
		Operation: porcupine.Operation{ClientId: client, Input: c, Call: h.now()},
		request:   fmt.Sprintf("%s.%s.%d", h.list, c.kind[:4], h.requests.Add(1)),
	}
	by := named{h.transport, o.request}
	status, got := h.ask(by, method, h.d.host("signup", client%2), "/waitlists/"+h.list+"/signups"+path, h.key, body)
	o.Return = h.now()
	a := answerOf(status, got)
	o.Output = answer{absent: a.absent, position: a.position}
	o.lost = status == http.StatusInternalServerError
	if status != http.StatusTooManyRequests {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.owned = append(h.owned, o)
	}
}

// settle finds out when the owner's operations took effect, and which of those did whose
// answers were lost: an entry of the audit trail is written with the effect. Nobody can see
// a commit before its time stamp.
func (h *history) settle(audit *pgx.Conn) {
	h.t.Helper()
	testenv.Within(h.t, patience, "no transaction is under way", func() bool {
		var busy int
		err := audit.QueryRow(h.t.Context(),
			`SELECT count(*) FROM pg_stat_activity WHERE usename = 'waitlist_signup' AND xact_start IS NOT NULL`).Scan(&busy)
		if err != nil {
			h.t.Fatal(err)
		}
		return busy == 0
	})
	rows, err := audit.Query(h.t.Context(), `SELECT request_id, pg_xact_commit_timestamp(xmin) FROM signup.audit`)
	if err != nil {
		h.t.Fatal(err)
	}
	commits := map[string]int64{}
	var request string
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&request, &at}, func() error {
		if commits[request] != 0 {
			h.t.Errorf("%s took effect twice", request)
		}
		commits[request] = int64(at.Sub(h.begin))
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	lost, effects := 0, 0
	for _, o := range h.owned {
		at, committed := commits[o.request]
		if o.lost {
			lost++
			if !committed {
				continue
			}
			effects++
			o.Output, o.Return = answer{unknown: true}, at+int64(visible)
		} else if absent := o.Output.(answer).absent; absent == committed {
			h.t.Errorf("%s: answered as absent: %t, in the audit trail: %t", o.request, absent, committed)
		}
		if committed {
			o.Call = max(o.Call, at)
		}
		h.operations = append(h.operations, o.Operation)
	}
	rows, err = audit.Query(h.t.Context(), `SELECT email, number FROM signup.signup WHERE waitlist_id = $1`, h.list)
	if err != nil {
		h.t.Fatal(err)
	}
	h.numbers = map[int]int{}
	var person string
	var number int
	if _, err := pgx.ForEachRow(rows, []any{&person, &number}, func() error {
		who, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(person, "p"), "@example.com"))
		h.numbers[who] = number
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Logf("%d of the owner's answers were lost, %d of them after the effect", lost, effects)
}

// found reports whether the answer to a new signup was a look at one that an earlier attempt
// had stored. The counter of its moment is its number, for nobody leaves the counter here.
func (h *history) found(o porcupine.Operation) bool {
	if number, stored := h.numbers[o.Input.(call).person]; stored {
		return o.Output.(answer).total != number
	}
	// Of who has been removed the number is not known.
	return slices.ContainsFunc(h.faults, func(f span) bool { return f.begin < o.Return && o.Call < f.end })
}

// readAll reads everybody's status in the end.
func (h *history) readAll() {
	var asking sync.WaitGroup
	for client := range clients {
		asking.Go(func() {
			for person := client; person < int(h.people.Load()); person += clients {
				h.look(client, person)
			}
		})
	}
	asking.Wait()
}

// judge looks for an order of the operations that explains all answers.
func (h *history) judge() {
	h.t.Helper()
	begin := time.Now()
	found := 0
	operations := split(h.operations, func(o porcupine.Operation) bool {
		is := h.found(o)
		if is {
			found++
		}
		return is
	})
	for i, o := range operations {
		if c, a := o.Input.(call), o.Output.(answer); c.kind == signsUp && a.unknown {
			a.total = h.numbers[c.person]
			operations[i].Output = a
		}
	}
	r := newRecord(fullQueue(imported), operations)
	verdict := porcupine.CheckOperationsTimeout(r.model(), r.operations(), judged)
	h.t.Logf("%d operations judged in %v, with %d signups that were found", len(h.operations),
		time.Since(begin).Round(time.Millisecond), found)
	switch verdict {
	case porcupine.Unknown:
		h.t.Errorf("no verdict within %v", judged)
	case porcupine.Illegal:
		h.t.Error("the history is not linearizable")
	default:
		return
	}
	_, info := porcupine.CheckOperationsVerbose(r.model(), r.operations(), 5*time.Second)
	path := filepath.Join(h.t.ArtifactDir(), "history.html")
	if err := porcupine.VisualizePath(r.model(), info, path); err != nil {
		h.t.Error(err)
	}
	h.t.Logf("%s shows it (go test -artifacts keeps it)", path)
}
