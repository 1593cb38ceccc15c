package stripesim_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/tools/internal/stripesim"
)

const (
	// schedules is the number of accounts. Those of one world share its time, provider and reconciler.
	schedules = 1000
	perWorld  = 20
	// stepsEach is the average number of steps per account.
	stepsEach = 12
	// lanes is how many worlds run at a time: they wait more than they compute.
	lanes = 8
)

// Users act; the provider's events arrive late, twice, out of order or never; calls fail before and after their effect; time
// passes. Whatever billing tells account, the provider has it at that moment. After a final reconciliation, every account
// has what the provider says. SIM_SEED repeats one world.
func TestModel(t *testing.T) {
	var seeds []uint64
	for i := range uint64(schedules / perWorld) {
		seeds = append(seeds, i+1)
	}
	if testing.Short() {
		seeds = seeds[:len(seeds)/5]
	}
	if s := os.Getenv("SIM_SEED"); s != "" {
		one, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{one}
	}
	var mu sync.Mutex
	happened := map[string]int{}
	work := make(chan uint64, len(seeds))
	for _, s := range seeds {
		work <- s
	}
	close(work)
	var group sync.WaitGroup
	for range lanes {
		group.Go(func() {
			for seed := range work {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
					w := newWorld(t, seed, perWorld)
					live(w, seed)
					mu.Lock()
					defer mu.Unlock()
					for k, n := range w.happened {
						happened[k] += n
					}
				})
			}
		})
	}
	group.Wait()
	t.Logf("happened: %v", happened)
	if len(seeds) == 1 {
		return
	}
	if happened["refunded"] == 0 {
		t.Error("no schedule led to a refund")
	}
	for _, k := range []string{
		"page", "upgraded", "payment failed", "present plan", "canceling", "trial ended", "trial started", "charged as shown",
		"deleted", "event lost", "event doubled", "502", "429", "active", "canceled", "past_due",
	} {
		if happened[k] < 10 {
			t.Errorf("%s happened only %d times: the schedules test too little", k, happened[k])
		}
	}
}

func live(w *world, seed uint64) {
	w.Helper()
	defer func() {
		if w.Failed() {
			w.Logf("SIM_SEED=%d repeats this:\n%s", seed, strings.Join(w.log, "\n"))
		}
	}()
	w.lossy = seed%2 == 0
	for range stepsEach * perWorld {
		if w.Failed() {
			return
		}
		w.sim.clock.add(time.Duration(1+w.random.IntN(90)) * time.Second)
		w.step()
	}
	// The remaining events arrive or are lost.
	w.strict = false
	w.sim.ClearFaults()
	w.accounts.setAway(0)
	w.sim.clock.add(2 * time.Minute)
	for _, p := range w.people {
		if !p.deletedAt.IsZero() && !p.buried {
			w.bury(p)
		}
	}
	waiting := w.sim.Pending()
	for _, i := range w.random.Perm(len(waiting)) {
		if !w.lossy || w.random.IntN(2) == 0 {
			w.deliver(waiting[i].Event, false)
		}
	}
	w.work()
	if !w.lossy {
		w.settled() // must hold without the reconciler
	}
	w.reconcile()
	w.work()
	w.settled()
}

// step does one random thing.
func (w *world) step() {
	p := w.people[w.random.IntN(len(w.people))]
	w.faulty = false
	if w.random.IntN(100) < 9 {
		w.fault()
	}
	if w.random.IntN(100) < 4 {
		w.accounts.setAway(1 + w.random.IntN(3))
	}
	switch n := w.random.IntN(100); {
	case n < 20:
		w.checkout(p)
	case n < 40:
		w.page(p)
	case n < 46:
		w.cancel(p)
	case n < 49:
		w.trial(p)
	case n < 53:
		w.preview(p)
	case n < 56:
		w.info(p)
	case n < 62:
		w.portal(p)
	case n < 63:
		w.remove(p)
	case n < 70:
		w.pass()
	case n < 74:
		w.sim.ClearFaults()
		w.accounts.setAway(0)
		w.strict = false // workers still tell what was due earlier
		w.work()
		w.strict = true
	default:
		for range 1 + w.random.IntN(6) {
			w.post()
		}
	}
	w.sim.ClearFaults()
}

// fault makes the next provider calls fail.
func (w *world) fault() {
	f := stripesim.Fault{
		Kind:  []string{stripesim.Throttle, stripesim.Broken, stripesim.Reset}[w.random.IntN(3)],
		After: w.random.IntN(2) == 0, Skip: w.random.IntN(6), Times: 1 + w.random.IntN(3),
	}
	if w.random.IntN(2) == 0 {
		f.Method = http.MethodPost
	}
	f.Sticky = f.Kind == stripesim.Broken && w.random.IntN(3) == 0
	w.note("fault %+v", f)
	w.faulty = true
	if err := w.sim.Inject(f); err != nil {
		w.Fatal(err)
	}
}

// failed reports whether a fault or a deletion explains the answer.
func (w *world) failed(p *person, status int, body map[string]any) bool {
	switch {
	case !p.deletedAt.IsZero():
		if status != http.StatusUnauthorized {
			w.Errorf("%s is deleted but gets %d %v", p.id, status, body)
		}
		return true
	case status == http.StatusBadGateway, status == http.StatusTooManyRequests:
		w.happened[strconv.Itoa(status)]++
		if !w.faulty {
			w.Errorf("%s gets %d %v without a fault", p.id, status, body)
		}
		return true
	}
	return false
}

func (w *world) checkout(p *person) {
	tier := []access.Tier{access.Basic, access.Advanced, access.Pro}[w.random.IntN(3)]
	interval := []string{"monthly", "monthly", "yearly"}[w.random.IntN(3)]
	w.subscribe(p, tier, interval)
}

func (w *world) subscribe(p *person, tier access.Tier, interval string) {
	price := fmt.Sprintf("price_%s_%s", tier, interval)
	before, knows := w.live(p.id), w.accountKnows()
	status, body := w.call(p, http.MethodPost, "/checkout", fmt.Sprintf(`{"tier":%q,"interval":%q}`, tier, interval))
	if w.failed(p, status, body) {
		return
	}
	after := w.live(p.id)
	switch {
	case status == http.StatusOK && body["url"] != nil:
		p.pages = append(p.pages, body["url"].(string)) // the contract's
		p.trialOver = true
		w.happened["page"]++
		if len(after) != 0 {
			w.Errorf("%s has %+v but is asked to pay again", p.id, after)
		}
		if e := w.accounts.get(p.id).e.At(w.now()); e.Status == access.Trialing && knows {
			w.Errorf("%s is sent to a checkout but has %+v", p.id, e)
		}
		if w.random.IntN(2) == 0 {
			w.page(p)
		}
	case status == http.StatusOK && body["upgraded"] == true:
		w.happened["upgraded"]++
		if len(after) != 1 || after[0].Price != price || after[0].CancelAtPeriodEnd || body["tier"] != string(tier) ||
			body["status"] != "active" {
			w.Errorf("%s gets the answer %v but has %+v", p.id, body, after)
		}
	case status == http.StatusOK && body["payment_failed"] == true:
		w.happened["payment failed"]++
		if body["upgraded"] != false || !slices.Equal(before, after) || len(after) == 0 {
			w.Errorf("%s gets the answer %v; had %+v, has %+v", p.id, body, before, after)
		}
	case status == http.StatusBadRequest:
		w.happened["present plan"]++
		if len(after) != 1 || after[0].Price != price || after[0].CancelAtPeriodEnd {
			w.Errorf("%s gets the answer %v but has %+v", p.id, body, after)
		}
	default:
		w.Errorf("%s: %d %v", p.id, status, body)
	}
}

// accountKnows reports whether account answered all calls so far; otherwise it hears the news later.
func (w *world) accountKnows() bool {
	w.accounts.mu.Lock()
	defer w.accounts.mu.Unlock()
	return w.accounts.away == 0
}

// page submits the form of a checkout, possibly an old one.
func (w *world) page(p *person) {
	if len(p.pages) == 0 {
		return
	}
	page := p.pages[len(p.pages)-1]
	if w.random.IntN(4) == 0 {
		page = p.pages[w.random.IntN(len(p.pages))]
	}
	choice := []string{"pay", "pay", "pay", "later", "decline", "cancel"}[w.random.IntN(6)]
	for range 1 + w.random.IntN(2) {
		status, to, _ := w.sim.choose(w.T, page, choice)
		w.note("%s: %s → %d %s", p.id[:4], choice, status, to)
	}
}

func (w *world) cancel(p *person) {
	status, body := w.call(p, http.MethodPost, "/cancel", "")
	if w.failed(p, status, body) {
		return
	}
	live := w.live(p.id)
	switch {
	case status == http.StatusOK && body["canceled_immediately"] == true:
		p.trialOver = true
		w.happened["trial ended"]++
		if len(live) > 0 || body["status"] != "inactive" {
			w.Errorf("%s gets the answer %v but has %+v", p.id, body, live)
		}
	case status == http.StatusOK:
		w.happened["canceling"]++
		if len(live) != 1 || !live[0].CancelAtPeriodEnd || body["status"] != "canceling" ||
			body["cancel_at"] != float64(live[0].CurrentPeriodEnd) {
			w.Errorf("%s gets the answer %v but has %+v", p.id, body, live)
		}
	case status == http.StatusBadRequest:
		if len(live) > 0 {
			w.Errorf("%s gets the answer %v but has %+v", p.id, body, live)
		}
	default:
		w.Errorf("%s: %d %v", p.id, status, body)
	}
}

func (w *world) trial(p *person) {
	away := !w.accountKnows()
	before := w.accounts.get(p.id)
	status, body := w.call(p, http.MethodPost, "/start-trial", "")
	if w.failed(p, status, body) {
		return
	}
	may := !before.usedTrial && before.e.At(w.now()).Status == access.Inactive
	switch {
	case status == http.StatusOK && body["status"] == "trialing":
		p.trialOver = false
		w.happened["trial started"]++
		if !may {
			w.Errorf("%s: %v, was %+v", p.id, body, before)
		}
	case status == http.StatusConflict:
	case status == http.StatusInternalServerError && away:
	default:
		w.Errorf("%s: %d %v", p.id, status, body)
	}
}

// preview asks for the price of a change and sometimes makes the change.
func (w *world) preview(p *person) {
	tier := []access.Tier{access.Basic, access.Advanced, access.Pro}[w.random.IntN(3)]
	interval := []string{"monthly", "yearly"}[w.random.IntN(2)]
	live := w.live(p.id)
	status, body := w.call(p, http.MethodPost, "/preview", fmt.Sprintf(`{"tier":%q,"interval":%q}`, tier, interval))
	if w.failed(p, status, body) {
		return
	}
	switch {
	case status == http.StatusBadRequest:
		// There may be a subscription that billing has not heard of yet.
	case status == http.StatusOK && len(live) != 1 && !w.faulty:
		w.Errorf("%s has %+v but gets the answer %v", p.id, live, body)
	case status == http.StatusOK && body["already_on_plan"] == true:
		if live[0].Price != fmt.Sprintf("price_%s_%s", tier, interval) {
			w.Errorf("%s has %+v but gets the answer %v", p.id, live, body)
		}
	case status == http.StatusOK && w.random.IntN(2) == 0:
		w.subscribe(p, tier, interval)
		now := w.live(p.id)
		if len(now) != 1 || now[0].Price == live[0].Price {
			return // declined, or failed by a fault
		}
		w.happened["charged as shown"]++
		sub := w.sim.get(w.T, now[0].Subscription)
		if got := sub.LatestInvoice.Total; body["proration_amount"] != float64(got) {
			w.Errorf("%s was shown %v but charged %d", p.id, body, got)
		}
	case status != http.StatusOK:
		w.Errorf("%s: %d %v", p.id, status, body)
	}
}

func (w *world) info(p *person) {
	status, body := w.call(p, http.MethodGet, "/info", "")
	if w.failed(p, status, body) {
		return
	}
	if status != http.StatusOK {
		w.Errorf("%s: %d %v", p.id, status, body)
	}
}

// portal opens the portal or acts in an open one.
func (w *world) portal(p *person) {
	if len(p.portals) == 0 || w.random.IntN(2) == 0 {
		status, body := w.call(p, http.MethodPost, "/portal", "")
		if w.failed(p, status, body) {
			return
		}
		switch {
		case status == http.StatusOK:
			p.portals = append(p.portals, body["url"].(string)) // the contract's
		case status != http.StatusBadRequest:
			w.Errorf("%s: %d %v", p.id, status, body)
		}
		return
	}
	choice := []string{"cancel", "resume", "card", "bad_card"}[w.random.IntN(4)]
	status, _, _ := w.sim.choose(w.T, p.portals[len(p.portals)-1], choice)
	w.note("%s: portal %s → %d", p.id[:4], choice, status)
}

// remove deletes an account. Billing hears of it now or later.
func (w *world) remove(p *person) {
	if !p.deletedAt.IsZero() {
		return
	}
	if w.random.IntN(2) == 0 {
		w.checkout(p) // leaves a page that may be paid later
		w.sim.clock.add(time.Second)
	}
	p.deletedAt = w.now()
	w.happened["deleted"]++
	w.accounts.remove(p.id)
	w.note("%s: deleted", p.id[:4])
	w.sim.clock.add(time.Second)
	if w.random.IntN(3) > 0 {
		w.page(p) // a payment that overtakes the deletion's event
	}
	if w.random.IntN(2) == 0 {
		w.bury(p)
	}
}

// pass lets time pass, up to renewals and beyond.
func (w *world) pass() {
	// Our own events never take days, unlike the provider's.
	for _, p := range w.people {
		if !p.deletedAt.IsZero() && !p.buried {
			w.bury(p)
		}
	}
	d := []time.Duration{time.Hour, 25 * time.Hour, 4 * 24 * time.Hour, 9 * 24 * time.Hour, 32 * 24 * time.Hour}[w.random.IntN(5)]
	w.note("%s pass", d)
	w.sim.ClearFaults()
	w.strict = false
	w.work()
	w.sim.clock.add(d)
	if err := w.sim.Tick(); err != nil {
		w.Error(err)
	}
	w.work()
	w.strict = true
}

// post picks a pending event and delivers it once, twice or never.
func (w *world) post() {
	waiting := w.sim.Pending()
	if len(waiting) == 0 {
		return
	}
	// The newest events are more likely, so that some stay pending for long.
	i := len(waiting) - 1 - int(float64(len(waiting))*w.random.Float64()*w.random.Float64())
	ev := waiting[max(0, i)]
	switch n := w.random.IntN(100); {
	case n < 15 && w.lossy:
		w.happened["event lost"]++
		w.note("lost: %s %s", ev.Event, ev.Type)
		w.sim.Drop(ev.Event)
	case n < 35:
		w.happened["event doubled"]++
		w.deliver(ev.Event, true)
		w.deliver(ev.Event, false)
	default:
		w.deliver(ev.Event, false)
	}
}

// deliver delivers an event. An accepted event leaves the queue unless keep is set.
func (w *world) deliver(event string, keep bool) {
	status, err := w.sim.Send(w.Context(), event)
	w.note("event %s → %d", event, status)
	switch {
	case err != nil:
		w.Error(err)
	case status == http.StatusOK:
		if !keep {
			w.sim.Drop(event)
		}
	case !w.faulty:
		w.Errorf("event %s: status %d without a fault", event, status)
	}
}
