package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/chaos"
)

const (
	// warm is how many signups the mix begins with: more than a list has without an index.
	warm = 1100
	// club is how many people get every blast.
	club = 20
	// imports is how many rows an import has.
	imports = 20
	// tries is how often the owner repeats a request that must be answered.
	tries = 600
	// origin is what signups say of where they come from.
	origin = "mix"
)

// rates are the requests a second of each kind, under the open model: they start in time,
// however slow the answers are.
type rates struct{ signups, statuses, configs, pages, imports, blasts, payments float64 }

// times returns the same mix, n times as often.
func (r rates) times(n float64) rates {
	return rates{n * r.signups, n * r.statuses, n * r.configs, n * r.pages, n * r.imports, n * r.blasts, n * r.payments}
}

// mix is everything that people and owners do at a time, and what they were told.
type mix struct {
	s      *site
	t      *testing.T
	rates  rates
	client *http.Client
	key    string
	// signups is the list that people sign up on, with a webhook and a mail to everybody.
	// Blasts go to the club; imports go to bulk.
	signups, club, bulk string

	stop context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	rng  *rand.Rand
	next map[string]int
	// acks, imported, blasts and paid are what was acknowledged: signups, addresses,
	// subjects, accounts.
	acks     []chaos.Ack
	imported []string
	blasts   []string
	paid     []string
	answers  map[string]int
	took     []time.Duration // of signups, statuses and configs that were answered
}

func newMix(s *site, seed uint64, r rates) *mix {
	s.t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	m := &mix{
		s: s, t: s.t, rates: r, client: &http.Client{Transport: transport, Timeout: 10 * time.Second},
		rng: rand.New(rand.NewPCG(seed, 1)), next: map[string]int{}, answers: map[string]int{},
	}
	s.t.Cleanup(func() {
		m.end()
		transport.CloseIdleConnections()
	})
	m.key, m.signups = s.owner()
	template := s.post(http.StatusCreated, "messaging", "/v1/templates", m.key,
		`{"template_type":"signup_confirmation","subject_template":"Welcome","text_body_template":"Hi"}`)
	settings := fmt.Sprintf(`{"settings":{"webhook_url":"https://example.com/hook","email_templates":{"signup_confirmation":%q}}}`,
		template["template_id"])
	if status, got := m.ask(http.MethodPatch, "signup", "/v1/waitlists/"+m.signups, m.key, "", settings); status != http.StatusOK {
		s.t.Fatalf("settings: %d %v", status, got)
	}
	list := func(name string) string {
		got := s.post(http.StatusCreated, "signup", "/v1/waitlists", m.key, fmt.Sprintf(`{"name":%q}`, name))
		return got["waitlist_id"].(string)
	}
	m.club, m.bulk = list("Club"), list("Bulk")
	if !m.importTo(m.club, "club", club) {
		s.t.Fatal("the club was not imported")
	}
	m.imported = nil
	return m
}

// start lets the requests begin.
func (m *mix) start() {
	ctx, cancel := context.WithCancel(m.t.Context())
	m.stop = cancel
	for _, kind := range []struct {
		rate float64
		do   func()
	}{
		{m.rates.signups, m.signUp},
		{m.rates.statuses, m.look},
		{m.rates.configs, func() { m.read("signup", "/v1/public/waitlists/"+m.signups+"/config") }},
		{m.rates.pages, func() { m.read("pages", "/w/"+m.signups) }},
		{m.rates.imports, func() { m.importTo(m.bulk, "bulk", imports) }},
		{m.rates.blasts, m.blast},
		{m.rates.payments, m.pay},
	} {
		if kind.rate == 0 {
			continue
		}
		m.done.Go(func() {
			tick := time.NewTicker(time.Duration(float64(time.Second) / kind.rate))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					m.done.Go(kind.do)
				}
			}
		})
	}
}

// warmUp signs up so many people in a rush that the list has an index.
func (m *mix) warmUp() {
	m.t.Helper()
	usual := m.rates
	m.rates.signups = 150
	m.start()
	testenv.Within(m.t, patience, "the list has an index", func() bool { return m.acknowledged() >= warm })
	m.end()
	m.rates = usual
}

// end waits for the requests under way.
func (m *mix) end() {
	if m.stop != nil {
		m.stop()
	}
	m.done.Wait()
}

func (m *mix) acknowledged() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.acks)
}

// failed returns how many requests to a program got no answer or one of a failure.
func (m *mix) failed(program string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for answer, times := range m.answers {
		if who, status, _ := strings.Cut(answer, " "); who == program && (status == "0" || status >= "4") {
			n += times
		}
	}
	return n
}

// number counts what is asked for, by its kind.
func (m *mix) number(kind string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next[kind]++
	return m.next[kind]
}

// ask sends a request. The status is 0 if there was no answer. What killed programs and
// servers cannot explain fails the test.
func (m *mix) ask(method, program, path, key, idempotency, body string) (status int, got map[string]any) {
	req, err := http.NewRequestWithContext(context.WithoutCancel(m.t.Context()), method, m.s.url(program, path), strings.NewReader(body))
	if err != nil {
		m.t.Error(err)
		return 0, nil
	}
	req.Header.Set("X-Api-Key", key)
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	begin := time.Now()
	res, err := m.client.Do(req)
	var raw []byte
	if err == nil {
		status = res.StatusCode
		raw, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	if err != nil {
		status = 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers[fmt.Sprint(program, " ", status)]++
	switch {
	case status == 0, status >= 500, status == http.StatusTooManyRequests,
		// The first attempt is still under way.
		status == http.StatusConflict && idempotency != "":
		return status, nil
	case status >= 400:
		m.t.Errorf("%s %s: %d %s", method, path, status, raw)
		return status, nil
	}
	if program == "signup" {
		m.took = append(m.took, time.Since(begin))
	}
	if program == "pages" || len(raw) == 0 {
		return status, nil
	}
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&got); err != nil {
		m.t.Errorf("%s %s: %d %q: %v", method, path, status, raw, err)
	}
	return status, got
}

func (m *mix) read(program, path string) { m.ask(http.MethodGet, program, path, "", "", "") }

// signUp signs up somebody new, by the invitation of somebody else in one of three cases.
func (m *mix) signUp() {
	n := m.number("signup")
	a := chaos.Ack{Email: fmt.Sprintf("p%d@example.com", n)}
	body := map[string]string{"email": a.Email, "utm_source": origin}
	m.mu.Lock()
	if len(m.acks) > 0 && m.rng.IntN(3) == 0 {
		by := m.acks[m.rng.IntN(len(m.acks))]
		a.Referrer, body["referred_by_token"] = by.Email, by.Token
	}
	m.mu.Unlock()
	raw, err := json.Marshal(body)
	if err != nil {
		m.t.Error(err)
		return
	}
	status, got := m.ask(http.MethodPost, "signup", "/v1/public/waitlists/"+m.signups+"/signups", "", "", string(raw))
	if status != http.StatusCreated {
		return
	}
	position, _ := got["position"].(float64)
	total, _ := got["total_signups"].(float64)
	a.Token, _ = got["referral_token"].(string)
	a.Position, a.Total = int64(position), int64(total)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acks = append(m.acks, a)
}

// look asks for the status of somebody who was told to be on the list.
func (m *mix) look() {
	m.mu.Lock()
	if len(m.acks) == 0 {
		m.mu.Unlock()
		return
	}
	a := m.acks[m.rng.IntN(len(m.acks))]
	m.mu.Unlock()
	status, got := m.ask(http.MethodGet, "signup", "/v1/public/waitlists/"+m.signups+"/signups/"+a.Email, "", "", "")
	if status != http.StatusOK {
		return
	}
	position, _ := got["position"].(float64)
	if total, _ := got["total_signups"].(float64); position < 1 || position > total || int64(total) < a.Total {
		m.t.Errorf("%s, who was told %d, is at %v of %v", a.Email, a.Total, position, total)
	}
}

func (m *mix) importTo(list, kind string, n int) bool {
	batch := m.number(kind)
	var rows []map[string]string
	var emails []string
	for i := range n {
		emails = append(emails, fmt.Sprintf("%s%d.%d@example.com", kind, batch, i))
		rows = append(rows, map[string]string{"email": emails[i]})
	}
	raw, err := json.Marshal(map[string]any{"signups": rows})
	if err != nil {
		m.t.Error(err)
		return false
	}
	status, got := m.ask(http.MethodPost, "signup", "/v1/waitlists/"+list+"/import", m.key, "", string(raw))
	if status != http.StatusOK {
		return false
	}
	if got["imported"] != float64(n) {
		m.t.Errorf("import %d of %s: %v", batch, kind, got)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.imported = append(m.imported, emails...)
	return true
}

// again repeats a request of the owner until it is answered.
func (m *mix) again(do func() (int, map[string]any)) map[string]any {
	for range tries {
		if status, got := do(); status == http.StatusOK || status == http.StatusCreated {
			return got
		}
		if !pause(m.t.Context(), 100*time.Millisecond) {
			break
		}
	}
	m.t.Error("the owner got no answer")
	return nil
}

// blast writes to the club. The owner repeats the request until it is answered.
func (m *mix) blast() {
	n := m.number("blast")
	subject := fmt.Sprintf("News %d", n)
	body := fmt.Sprintf(`{"subject":%q,"text_body":"Hello"}`, subject)
	if got := m.again(func() (int, map[string]any) {
		return m.ask(http.MethodPost, "signup", "/v1/waitlists/"+m.club+"/blasts", m.key, subject, body)
	}); got == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blasts = append(m.blasts, subject)
}

// pay registers an account and pays for a plan.
func (m *mix) pay() {
	n := m.number("payment")
	email := fmt.Sprintf("payer%d@example.com", n)
	status, got := m.ask(http.MethodPost, "account", "/v1/auth/register", "", "",
		fmt.Sprintf(`{"email":%q,"password":"correct horse battery"}`, email))
	if status != http.StatusCreated {
		return // nobody knows the key of an account whose answer was lost
	}
	key, _ := got["api_key"].(string)
	got = m.again(func() (int, map[string]any) {
		return m.ask(http.MethodPost, "billing", "/v1/billing/checkout", key, "", `{"tier":"pro","interval":"monthly"}`)
	})
	page, _ := got["url"].(string)
	if page == "" {
		return
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(m.t.Context()), http.MethodPost, page,
		strings.NewReader(url.Values{"choice": {"pay"}}.Encode()))
	if err != nil {
		m.t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := m.client.Transport.RoundTrip(req)
	if err != nil {
		m.t.Errorf("pay: %v", err)
		return
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusSeeOther {
		m.t.Errorf("the payment page answers %d", res.StatusCode)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paid = append(m.paid, email)
}
