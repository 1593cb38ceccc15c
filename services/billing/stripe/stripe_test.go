package stripe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stripe/stripe-go/v76/webhook"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/billing"
	"waitlist.internal/services/billing/stripe"
)

// answers serves one response to every call and records the requests.
type answers struct {
	*httptest.Server
	mu    sync.Mutex
	asked []*http.Request
	count atomic.Int64
}

func serve(t *testing.T, answer http.HandlerFunc) *answers {
	t.Helper()
	a := &answers{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		a.mu.Lock()
		a.asked = append(a.asked, r)
		a.mu.Unlock()
		a.count.Add(1)
		answer(w, r)
	}))
	t.Cleanup(a.Close)
	return a
}

func refuse(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Header().Set("Request-Id", "req_1")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func TestFailuresAreToldApart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer   http.HandlerFunc
		reason   billing.Reason
		answered bool
		retry    time.Duration
		calls    int64
	}{
		"card":           {refuse(402, `{"error":{"type":"card_error","code":"card_declined","message":"no"}}`), billing.Card, false, 0, 1},
		"no card":        {refuse(402, `{"error":{"type":"invalid_request_error","message":"no"}}`), billing.Card, false, 0, 1},
		"no card at all": {refuse(400, `{"error":{"type":"invalid_request_error","code":"resource_missing"}}`), billing.Card, false, 0, 1},
		"throttled": {
			refuse(429, `{"error":{"type":"invalid_request_error","code":"rate_limit"}}`, "Retry-After", "7"),
			billing.Throttled, false, 7 * time.Second, 1,
		},
		"missing": {refuse(404, `{"error":{"type":"invalid_request_error","code":"resource_missing"}}`), billing.Missing, false, 0, 1},
		"missing param": {
			refuse(400, `{"error":{"type":"invalid_request_error","code":"resource_missing","param":"customer"}}`),
			billing.Missing, false, 0, 1,
		},
		"key reused": {refuse(400, `{"error":{"type":"idempotency_error"}}`), billing.KeyReused, false, 0, 1},
		"under way":  {refuse(409, `{"error":{"type":"idempotency_error"}}`), billing.Away, false, 0, 2},
		"wrong": {
			refuse(400, `{"error":{"type":"invalid_request_error","message":"ann@example.com"}}`), billing.Refused,
			false, 0, 1,
		},
		"wrong key":         {refuse(401, `{"error":{"type":"invalid_request_error"}}`), billing.Refused, false, 0, 1},
		"broken":            {refuse(500, `{"error":{"type":"api_error"}}`), billing.Away, true, 0, 1},
		"broken on the way": {refuse(502, `<html>`), billing.Away, false, 0, 2},
		"cut":               {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, billing.Away, false, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := serve(t, tc.answer)
			err := provider(t, a.URL).SetCanceling(t.Context(), "key-1", billing.Subscription{ID: "sub_1"}, true)
			e, ok := errors.AsType[*billing.ProviderError](err)
			if !ok || e.Reason != tc.reason || e.Answered != tc.answered || e.RetryAfter != tc.retry {
				t.Errorf("%#v", err)
			}
			if strings.Contains(err.Error(), "ann@example.com") {
				t.Errorf("an address in %q", err)
			}
			if n := a.count.Load(); n != tc.calls {
				t.Errorf("%d calls, want %d", n, tc.calls)
			}
			for _, r := range a.asked {
				if got := r.Header.Get("Idempotency-Key"); got != "key-1" {
					t.Errorf("key %q", got)
				}
			}
		})
	}
}

// A quote is the amount to charge now. A credit reduces it.
func TestQuotes(t *testing.T) {
	t.Parallel()
	end := time.Unix(2_000_000_000, 0)
	for balance, due := range map[int64]int64{0: 4500, -4499: 1, -4500: 0, -9000: 0} {
		a := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"currency":"usd","starting_balance":%d,"lines":{"data":[
				{"amount":-1000,"proration":true,"period":{"start":%[2]d}},{"amount":5000,"proration":true,"period":{"start":%[2]d}},
				{"amount":500,"period":{"start":%[3]d}},{"amount":7000,"period":{"start":%[2]d}}]}}`, balance, end.Unix(), end.Unix()-1)
		})
		q, err := provider(t, a.URL).Quote(t.Context(), billing.Subscription{
			ID: "sub_1", CustomerID: "cus_1", ItemID: "si_1",
			CurrentPeriodEnd: end,
		}, "price_2")
		if want := (billing.Quote{Amount: 4500, Due: due, Currency: "usd"}); err != nil || q != want {
			t.Errorf("balance %d: %+v, %v; want %+v", balance, q, err, want)
		}
	}
}

func TestTimeIsBounded(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	a := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	defer close(hang)
	p, err := stripe.New(stripe.Config{
		SecretKey: "sk_test_123", URL: a.URL, Timeout: 50 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	start := time.Now()
	if _, err := p.Price(t.Context(), "price_1"); err == nil || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
}

// While the provider is unavailable, calls fail without waiting. A rejected call does
// not count as an outage.
func TestTheBreakerSparesWhoIsAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			refuse(503, `{"error":{"type":"api_error"}}`)(w, r)
			return
		}
		refuse(404, `{"error":{"code":"resource_missing"}}`)(w, r)
	})
	registry := prometheus.NewRegistry()
	var log bytes.Buffer
	p, err := stripe.New(stripe.Config{
		SecretKey: "sk_test_secret", URL: a.URL, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Registerer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 20 {
		_, _ = p.Customer(t.Context(), "cus_1")
	}
	if n := a.count.Load(); n != 20 {
		t.Errorf("%d calls while it refuses, want 20", n)
	}
	away.Store(true)
	for range 20 {
		_, err = p.Customer(t.Context(), "cus_1")
	}
	if e, ok := errors.AsType[*billing.ProviderError](err); !ok || e.Reason != billing.Away || e.RetryAfter == 0 {
		t.Errorf("%v", err)
	}
	if n := a.count.Load() - 20; n != 10 { // five calls of two attempts
		t.Errorf("%d calls while it is away, want 10", n)
	}
	if !strings.Contains(log.String(), "payment provider does not answer") || strings.Contains(log.String(), "sk_test") {
		t.Errorf("log:\n%s", &log)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := fmt.Sprint(families)
	for _, want := range []string{"billing_provider_call_duration_seconds", "billing_provider_breaker_open", "away", "missing"} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

// At most 32 calls run at once. Further calls wait.
func TestCallsUnderWayAreBounded(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	let := make(chan struct{})
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-let
		refuse(404, `{"error":{"code":"resource_missing"}}`)(w, r)
	})
	p := provider(t, a.URL)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var crowd sync.WaitGroup
	var busy atomic.Int64
	for range 50 {
		crowd.Go(func() {
			_, err := p.Customer(ctx, "cus_1")
			if e, ok := errors.AsType[*billing.ProviderError](err); ok && e.Code == "busy" {
				busy.Add(1)
			}
		})
	}
	crowd.Wait()
	close(let)
	if most.Load() > 32 || busy.Load() != 18 {
		t.Errorf("%d at once, %d turned away", most.Load(), busy.Load())
	}
}

const (
	secret    = "whsec_one_of_the_two"
	newSecret = "whsec_the_other_one"
)

func TestEventsAreStripesAlone(t *testing.T) {
	t.Parallel()
	w, err := stripe.NewWebhook([]string{newSecret, secret})
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"id":"evt_1","type":"invoice.paid","api_version":"2030-01-01",` +
		`"data":{"object":{"object":"invoice","id":"in_1","customer":"cus_1"}}}`)
	sign := func(key string, at time.Time) string {
		return webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: key, Timestamp: at}).Header
	}
	for _, key := range []string{secret, newSecret} {
		ev, err := w.Event(body, sign(key, time.Now()))
		if err != nil || ev != (billing.Event{ID: "evt_1", Type: "invoice.paid", CustomerID: "cus_1"}) {
			t.Errorf("%+v, %v", ev, err)
		}
	}
	for name, signature := range map[string]string{
		"none":     "",
		"nonsense": "t=1,v1=zz",
		"strange":  sign("whsec_somebody_else", time.Now()),
		"too old":  sign(secret, time.Now().Add(-301*time.Second)),
	} {
		if _, err := w.Event(body, signature); !apierr.Is(err, apierr.InvalidToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := sign(secret, time.Now())
	for i := range body {
		tampered := bytes.Clone(body)
		tampered[i] ^= 1
		if _, err := w.Event(tampered, good); !apierr.Is(err, apierr.InvalidToken) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	if _, err := w.Event(body, sign(secret, time.Now().Add(-290*time.Second))); err != nil {
		t.Errorf("within the tolerance: %v", err)
	}
	if _, err := stripe.NewWebhook(nil); err == nil {
		t.Error("no secret is needed")
	}
}

func TestEventsSayWhomTheyAreAbout(t *testing.T) {
	t.Parallel()
	w, err := stripe.NewWebhook([]string{secret})
	if err != nil {
		t.Fatal(err)
	}
	for object, want := range map[string]string{
		`{"object":"customer","id":"cus_1"}`:                        "cus_1",
		`{"object":"subscription","id":"sub_1","customer":"cus_2"}`: "cus_2",
		`{"object":"invoice","customer":{"id":"cus_3","x":1}}`:      "cus_3",
		`{"object":"price","id":"price_1"}`:                         "",
		`{"object":"charge","customer":null}`:                       "",
		`{"object":"charge","customer":5}`:                          "",
	} {
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{
			Payload: []byte(`{"id":"evt_1","type":"x","data":{"object":` + object + `}}`), Secret: secret,
		})
		if ev, err := w.Event(signed.Payload, signed.Header); err != nil || ev.CustomerID != want {
			t.Errorf("%s: %+v, %v", object, ev, err)
		}
	}
	// Versions before 2017-05-25 name the request by its id alone; what comes in versions to come is not known.
	for _, other := range []string{`"api_version":"2016-07-06","request":"req_1"`, `"api_version":"2030-01-01","created":{},"livemode":"no"`} {
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{
			Payload: []byte(`{"id":"evt_1","type":"x",` + other + `,"data":{"object":{"object":"customer","id":"cus_1"}}}`), Secret: secret,
		})
		if ev, err := w.Event(signed.Payload, signed.Header); err != nil || ev.CustomerID != "cus_1" || ev.Type != "x" {
			t.Errorf("%s: %+v, %v", other, ev, err)
		}
	}
	for _, broken := range []string{`{}`, `[]`, `{"id":"evt_1"}`, `{"id":"` + strings.Repeat("x", 256) + `","data":{"object":{}}}`} {
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(broken), Secret: secret})
		if _, err := w.Event(signed.Payload, signed.Header); !apierr.Is(err, apierr.InvalidBody) {
			t.Errorf("%s: %v", broken, err)
		}
	}
}

// Any input is either an event or rejected with an error.
func FuzzSignature(f *testing.F) {
	w, err := stripe.NewWebhook([]string{secret})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{}`), "t=1,v1=00")
	f.Add([]byte(`{"id":"evt_1"}`), "t=x,v1=,v1")
	f.Fuzz(func(t *testing.T, body []byte, signature string) {
		if ev, err := w.Event(body, signature); !apierr.Is(err, apierr.InvalidToken) {
			t.Errorf("%+v, %v", ev, err)
		}
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: secret})
		if ev, err := w.Event(signed.Payload, signed.Header); err != nil && !apierr.Is(err, apierr.InvalidBody) || err == nil && ev.ID == "" {
			t.Errorf("signed: %+v, %v", ev, err)
		}
	})
}

func TestNeedsAKeyAndAnAddress(t *testing.T) {
	t.Parallel()
	for _, cfg := range []stripe.Config{{}, {SecretKey: "sk", URL: "nowhere"}, {SecretKey: "sk", URL: "ftp://x"}} {
		if _, err := stripe.New(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}
