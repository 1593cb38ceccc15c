package billing_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/billing"
)

func TestANewSubscriberPaysAtAPage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first := e.checkout(ann, plan(access.Basic))
	e.want(ann, access.Pro, access.Inactive) // the trial ends before the payment
	if e.accounts.customer[ann] == "" {
		t.Error("account did not get the customer")
	}
	if again := e.checkout(ann, plan(access.Basic)); again != first {
		t.Errorf("%+v, want the page that is open: %+v", again, first)
	}
	other := e.checkout(ann, plan(access.Advanced))
	if other == first || len(e.bank.Open) != 1 {
		t.Errorf("%d checkouts can be paid", len(e.bank.Open))
	}
	sub := e.bank.Pay(t, other.URL)
	e.event(sub.CustomerID)
	e.want(ann, access.Advanced, access.Active)
	if got := e.accounts.has[ann]; !got.ValidUntil.Equal(sub.CurrentPeriodEnd) || got.Trial {
		t.Errorf("%+v", got)
	}
	if len(e.bank.Keys("customer")) != 1 {
		t.Errorf("%d customers", len(e.bank.Keys("customer")))
	}
}

func TestAnOpenPageThatIsAboutToCloseIsNotGivenOut(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first := e.checkout(ann, plan(access.Basic))
	e.pass(24*time.Hour - 5*time.Minute)
	if again := e.checkout(ann, plan(access.Basic)); again == first || len(e.bank.Open) != 1 {
		t.Errorf("%+v, %d open", again, len(e.bank.Open))
	}
}

func TestASubscriberChangesThePlanAtOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.subscribed(ann, plan(access.Basic))
	for _, step := range []struct {
		plan   billing.Plan
		status access.Status
	}{
		{plan(access.Pro), access.Active},
		{billing.Plan{Tier: access.Pro, Interval: billing.Yearly}, access.Active},
		{plan(access.Basic), access.Active},
	} {
		out := e.checkout(ann, step.plan)
		if want := (billing.Checkout{Upgraded: true, Tier: step.plan.Tier, Status: step.status}); out != want {
			t.Errorf("%+v, want %+v", out, want)
		}
		e.want(ann, step.plan.Tier, step.status)
	}
	_, err := e.svc.Checkout(t.Context(), e.actor(ann), plan(access.Basic))
	e.wantCode(err, apierr.ValidationError)
	if f := apierr.From(err).Fields; len(f) != 1 || f[0].Field != "tier" {
		t.Errorf("%v", f)
	}

	if _, err := e.svc.Cancel(t.Context(), e.actor(ann)); err != nil {
		t.Fatal(err)
	}
	e.want(ann, access.Basic, access.Canceling)
	if out := e.checkout(ann, plan(access.Basic)); !out.Upgraded || out.Status != access.Active {
		t.Errorf("choosing the current plan did not undo the cancellation: %+v", out)
	}
	e.want(ann, access.Basic, access.Active)
	if _, err := e.svc.Cancel(t.Context(), e.actor(ann)); err != nil {
		t.Fatal(err)
	}
	if out := e.checkout(ann, plan(access.Pro)); !out.Upgraded || out.Status != access.Active || out.Tier != access.Pro {
		t.Errorf("another plan, too: %+v", out)
	}
}

func TestAPaymentThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.subscribed(ann, plan(access.Basic))
	e.bank.Declines = true
	if out := e.checkout(ann, plan(access.Pro)); out != (billing.Checkout{}) {
		t.Errorf("%+v", out)
	}
	e.want(ann, access.Basic, access.Active)
	e.bank.Declines = false
	if out := e.checkout(ann, plan(access.Pro)); !out.Upgraded {
		t.Errorf("%+v", out)
	}
}

func TestWhatTheProviderSaysDecides(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]access.Status{
		"active": access.Active, "past_due": access.Active, "trialing": access.Active,
		"unpaid": access.Inactive, "incomplete": access.Inactive, "incomplete_expired": access.Inactive, "canceled": access.Inactive,
		"paused": access.Inactive,
	} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			sub := e.subscribed(ann, plan(access.Advanced))
			e.bank.Set(sub.ID, func(s *billing.Subscription) { s.Status = status })
			e.event(sub.CustomerID)
			e.want(ann, access.Advanced, want)
			if want == access.Active {
				return
			}
			// The account can subscribe again. The old subscription does not come back.
			next := e.subscribed(ann, plan(access.Basic))
			list, _ := e.bank.Subscriptions(t.Context(), sub.CustomerID)
			for _, s := range list {
				if s.ID != next.ID && s.Status != "canceled" && s.Status != "incomplete_expired" {
					t.Errorf("%s stays %s", s.ID, s.Status)
				}
			}
		})
	}
}

func TestPricesThatAreNotSoldAnyMoreStillCount(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Basic))
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.PriceID = "p_old" })
	e.event(sub.CustomerID)
	e.want(ann, access.Pro, access.Active)
	// An unknown price in a subscription that billing started changes nothing.
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.PriceID, s.AccountID = "p_strange", ann })
	e.event(sub.CustomerID)
	e.want(ann, access.Pro, access.Active)
	// Billing ignores other products that are sold to the same customer.
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.PriceID, s.AccountID = "p_mug", "" })
	e.event(sub.CustomerID)
	e.want(ann, access.Pro, access.Inactive)
}

// A repeated click, also on another replica, has its effect once.
func TestACrowdOfClicksIsOneEffect(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	crowd := func(do func(b *billing.Billing, actor access.Actor) error) (failed int) {
		t.Helper()
		actor := e.actor(ann) // every request is authorized before the first one completes
		var all sync.WaitGroup
		var errs atomic.Int64
		for i := range 20 {
			all.Go(func() {
				b := e.svc
				if i%2 == 1 {
					b = e.other
				}
				if err := do(b, actor); err != nil {
					errs.Add(1)
					if !apierr.Is(err, apierr.ValidationError) {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		return int(errs.Load())
	}
	var urls sync.Map
	if failed := crowd(func(b *billing.Billing, actor access.Actor) error {
		out, err := b.Checkout(t.Context(), actor, plan(access.Basic))
		urls.Store(out.URL, true)
		return err
	}); failed != 0 {
		t.Errorf("%d checkouts failed", failed)
	}
	var url string
	n := 0
	urls.Range(func(k, _ any) bool { url, _ = k.(string); n++; return true })
	if n != 1 || len(e.bank.Keys("customer")) != 1 || len(e.bank.Keys("session")) != 1 || len(e.accounts.history[ann]) != 1 {
		t.Errorf("%d pages, %d customers, %d sessions, history %v", n, len(e.bank.Keys("customer")), len(e.bank.Keys("session")),
			e.accounts.history[ann])
	}
	e.event(e.bank.Pay(t, url).CustomerID)
	if failed := crowd(func(b *billing.Billing, actor access.Actor) error {
		_, err := b.Checkout(t.Context(), actor, plan(access.Pro))
		return err
	}); failed != 19 || len(e.bank.Keys("plan")) != 1 {
		t.Errorf("%d of 20 upgrades failed, %d effects", failed, len(e.bank.Keys("plan")))
	}
	if failed := crowd(func(b *billing.Billing, actor access.Actor) error {
		_, err := b.Cancel(t.Context(), actor)
		return err
	}); failed != 0 || len(e.bank.Keys("canceling")) != 1 {
		t.Errorf("%d of 20 cancellations failed, %d effects", failed, len(e.bank.Keys("canceling")))
	}
	e.want(ann, access.Pro, access.Canceling)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	_, err := e.svc.Cancel(t.Context(), e.actor(bob))
	e.wantCode(err, apierr.ValidationError)
	if out, err := e.svc.Cancel(t.Context(), e.actor(ann)); err != nil || !out.Immediately {
		t.Errorf("a trial: %+v, %v", out, err)
	}
	e.want(ann, access.Pro, access.Inactive)
	if gate := e.accounts.has[ann].Gate(e.now()); !apierr.Is(gate, apierr.Forbidden) {
		t.Errorf("after a canceled trial: %v", gate)
	}
	_, err = e.svc.Cancel(t.Context(), e.actor(ann))
	e.wantCode(err, apierr.ValidationError)

	sub := e.subscribed(ann, plan(access.Basic))
	for range 2 { // repeating it changes nothing
		out, err := e.svc.Cancel(t.Context(), e.actor(ann))
		if err != nil || out.Immediately || !out.EndsAt.Equal(sub.CurrentPeriodEnd) {
			t.Errorf("%+v, %v", out, err)
		}
	}
	e.want(ann, access.Basic, access.Canceling)
	if len(e.bank.Keys("canceling")) != 1 {
		t.Errorf("%d calls", len(e.bank.Keys("canceling")))
	}
	// An end date chosen in the provider's dashboard.
	e.bank.Set(sub.ID, func(s *billing.Subscription) {
		s.CancelAtPeriodEnd, s.CancelAt = false, s.CurrentPeriodEnd.AddDate(0, 0, -3)
	})
	if out, err := e.svc.Cancel(t.Context(), e.actor(ann)); err != nil || !out.EndsAt.Equal(sub.CurrentPeriodEnd.AddDate(0, 0, -3)) {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestStartTrial(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, id := range []string{ann, bob} { // during its trial, and after it
		_, err := e.svc.StartTrial(t.Context(), e.actor(id))
		e.wantCode(err, apierr.Conflict)
	}
	e.accounts.usedUp[bob] = false
	trial, err := e.svc.StartTrial(t.Context(), e.actor(bob))
	if err != nil || trial.Status != access.Trialing || trial.Tier != access.Pro || !trial.ValidUntil.Equal(e.now().AddDate(0, 0, 7)) {
		t.Errorf("%+v, %v", trial, err)
	}
	_, err = e.svc.StartTrial(t.Context(), e.actor(bob))
	e.wantCode(err, apierr.Conflict)
	if out, err := e.svc.Cancel(t.Context(), e.actor(bob)); err != nil || !out.Immediately {
		t.Errorf("%+v, %v", out, err)
	}
	e.subscribed(bob, plan(access.Basic))
	e.accounts.usedUp[bob] = false
	_, err = e.svc.StartTrial(t.Context(), e.actor(bob))
	e.wantCode(err, apierr.Conflict)
}

// Neither a subscription that ended long ago nor its late event ends a trial.
func TestATrialOutlivesEventsOfAnOldSubscription(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(bob, plan(access.Basic))
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.Status = "canceled" })
	e.event(sub.CustomerID)
	e.want(bob, access.Basic, access.Inactive)
	e.accounts.usedUp[bob] = false
	if _, err := e.svc.StartTrial(t.Context(), e.actor(bob)); err != nil {
		t.Fatal(err)
	}
	e.event(sub.CustomerID)
	e.want(bob, access.Pro, access.Trialing)
	// The same holds if billing never recorded the start of the subscription.
	if _, err := e.pool.Exec(t.Context(), `UPDATE subscriber
		SET tier = 'basic', status = 'inactive', trial = false, version = version - 1, push_entitlement = true`); err != nil {
		t.Fatal(err)
	}
	e.event(sub.CustomerID)
	e.want(bob, access.Pro, access.Trialing)
	if _, err := e.svc.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.want(bob, access.Pro, access.Trialing)
}

func TestPreview(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, id := range []string{ann, bob} {
		_, err := e.svc.Preview(t.Context(), e.actor(id), plan(access.Pro))
		e.wantCode(err, apierr.ValidationError)
	}
	e.checkout(bob, plan(access.Pro)) // a customer, but nothing paid
	_, err := e.svc.Preview(t.Context(), e.actor(bob), plan(access.Pro))
	e.wantCode(err, apierr.ValidationError)
	e.subscribed(bob, plan(access.Advanced))
	for want, p := range map[billing.Preview]billing.Plan{
		{Already: true, New: plan(access.Advanced)}: plan(access.Advanced),
		{
			Had: plan(access.Advanced), New: plan(access.Pro), Proration: usd(4000), Recurring: usd(5000), IsUpgrade: true,
			Charge: true,
		}: plan(access.Pro),
		{
			Had: plan(access.Advanced), New: plan(access.Basic), Proration: usd(-700),
			Recurring: usd(300),
		}: plan(access.Basic),
		{
			Had: plan(access.Advanced), New: yearly(access.Advanced), Proration: usd(9000), Recurring: usd(10000), IsUpgrade: true,
			Charge: true,
		}: yearly(access.Advanced),
		{
			Had: plan(access.Advanced), New: yearly(access.Basic), Proration: usd(2000), Recurring: usd(3000),
			Charge: true,
		}: yearly(access.Basic),
	} {
		if got, err := e.svc.Preview(t.Context(), e.actor(bob), p); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", p, got, err, want)
		}
	}
}

// A credit reduces the charge.
func TestPreviewCountsCredit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.subscribed(bob, plan(access.Advanced))
	for credit, charge := range map[int64]bool{3999: true, 4000: false, 9000: false} {
		e.bank.Credit = credit
		if got, err := e.svc.Preview(t.Context(), e.actor(bob), plan(access.Pro)); err != nil || got.Charge != charge ||
			got.Proration != usd(4000) {
			t.Errorf("credit of %d: %+v, %v", credit, got, err)
		}
	}
}

// TestAPriceThatIsMissing: a missing price does not make billing forget the customer.
func TestAPriceThatIsMissing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Advanced))
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.Status = "canceled" })
	e.event(sub.CustomerID)
	end := e.bank.Fail("session", false, &billing.ProviderError{Reason: billing.Missing, Call: "session"})
	for range 2 {
		_, err := e.svc.Checkout(t.Context(), e.actor(ann), plan(access.Pro))
		e.wantCode(err, apierr.ExternalServiceError)
	}
	end()
	if n := len(e.bank.Everyone); n != 1 {
		t.Errorf("%d customers", n)
	}
	if next := e.subscribed(ann, plan(access.Pro)); next.CustomerID != sub.CustomerID {
		t.Errorf("customer %s, want %s", next.CustomerID, sub.CustomerID)
	}
}

// TestAHiddenCustomerComesBack: after a time with another secret key, the subscription
// goes on and earlier payments are not refunded.
func TestAHiddenCustomerComesBack(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Advanced))
	end := e.bank.Fail("fetch", false, &billing.ProviderError{Reason: billing.Missing, Call: "fetch"})
	if out := e.checkout(ann, plan(access.Pro)); out.URL == "" {
		t.Fatalf("%+v", out)
	}
	end()
	e.want(ann, access.Advanced, access.Inactive)
	e.event(sub.CustomerID)
	e.want(ann, access.Advanced, access.Active)
	if _, err := e.bank.CreateCustomer(t.Context(), "other", ann, ""); err != nil {
		t.Fatal(err)
	}
	other := e.bank.Subscribe(e.bank.Everyone[len(e.bank.Everyone)-1].ID, "p_bm")
	e.event(other.CustomerID)
	e.want(ann, access.Advanced, access.Active)
	if len(e.bank.Refunded) != 1 || e.bank.Refunded[0] != other.ID {
		t.Errorf("refunded %v, want %s", e.bank.Refunded, other.ID)
	}
}

// TestNoChangeWhileAPaymentIsOpen: the provider credits the rest of a period even if
// it was never paid.
func TestNoChangeWhileAPaymentIsOpen(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Advanced))
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.Status = "past_due" })
	for _, p := range []billing.Plan{plan(access.Basic), plan(access.Pro), yearly(access.Advanced)} {
		if out := e.checkout(ann, p); out != (billing.Checkout{}) {
			t.Errorf("%s: %+v", p, out)
		}
	}
	if n := len(e.bank.Keys("plan")); n != 0 {
		t.Errorf("%d changes", n)
	}
	e.want(ann, access.Advanced, access.Active)
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.Status = "active" })
	if out := e.checkout(ann, plan(access.Basic)); !out.Upgraded {
		t.Errorf("%+v", out)
	}
}

func usd(amount int64) billing.Money       { return billing.Money{Amount: amount, Currency: "usd"} }
func yearly(tier access.Tier) billing.Plan { return billing.Plan{Tier: tier, Interval: billing.Yearly} }

func TestInfoAndPortal(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	if info, err := e.svc.Info(t.Context(), e.actor(ann)); err != nil || len(info.Invoices) != 0 || info.Method != nil {
		t.Errorf("%+v, %v", info, err)
	}
	_, err := e.svc.Portal(t.Context(), e.actor(ann))
	e.wantCode(err, apierr.ValidationError)
	e.checkout(ann, plan(access.Basic))
	e.bank.Bills = []billing.Invoice{{ID: "in_1", Amount: 300, Currency: "usd"}}
	e.bank.Card = &billing.PaymentMethod{Brand: "visa", Last4: "4242"}
	if info, err := e.svc.Info(t.Context(), e.actor(ann)); err != nil || len(info.Invoices) != 1 || info.Method == nil {
		t.Errorf("%+v, %v", info, err)
	}
	if url, err := e.svc.Portal(t.Context(), e.actor(ann)); err != nil || url == "" {
		t.Errorf("%q, %v", url, err)
	}
}

func TestEachEventHasItsEffectOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.bank.Pay(t, e.checkout(ann, plan(access.Basic)).URL)
	ev := billing.Event{ID: "evt_x", CustomerID: sub.CustomerID}
	end := e.bank.Fail("fetch", false, away(true))
	err := e.svc.Take(t.Context(), ev)
	e.wantCode(err, apierr.ExternalServiceError)
	end()
	before := e.bank.Fetches
	for range 5 {
		if err := e.svc.Take(t.Context(), ev); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.bank.Fetches - before; n != 1 {
		t.Errorf("%d fetches for one event", n)
	}
	e.want(ann, access.Basic, access.Active)
	// Billing accepts and ignores events about no account or an unknown customer.
	for _, customer := range []string{"", "cus_unknown"} {
		if err := e.svc.Take(t.Context(), billing.Event{ID: "evt_" + customer, CustomerID: customer}); err != nil {
			t.Error(err)
		}
	}
	if n := e.count("SELECT count(*) FROM provider_event"); n != 3 {
		t.Errorf("%d events are kept", n)
	}
}

// If a customer pays for two subscriptions anyway, billing refunds the later one.
func TestASecondSubscriptionIsRefunded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first := e.subscribed(ann, plan(access.Basic))
	second := e.bank.Subscribe(first.CustomerID, "p_pm")
	// After a crash between the two steps, the second step is still due.
	end := e.bank.Fail("cancel", false, errors.New("killed"))
	if err := e.svc.Take(t.Context(), billing.Event{ID: "evt_two", CustomerID: first.CustomerID}); err == nil {
		t.Error("no error")
	}
	end()
	e.event(first.CustomerID)
	e.want(ann, access.Basic, access.Active)
	list, _ := e.bank.Subscriptions(t.Context(), first.CustomerID)
	if len(list) != 2 || list[0].Status != "active" || list[1].Status != "canceled" || !slices.Equal(e.bank.Refunded, []string{second.ID}) {
		t.Errorf("%+v, refunded %v", list, e.bank.Refunded)
	}
}

func TestAnswersThatGetLost(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	// The customer was created but the response was lost. The same key finds it.
	end := e.bank.Fail("customer", true, away(false))
	_, err := e.svc.Checkout(t.Context(), e.actor(ann), plan(access.Basic))
	e.wantCode(err, apierr.ExternalServiceError)
	key := e.lastKey("customer")
	e.want(ann, access.Pro, access.Trialing) // the trial goes on
	end()
	e.subscribed(ann, plan(access.Basic))
	if e.lastKey("customer") != key || len(e.bank.Everyone) != 1 {
		t.Errorf("%d customers", len(e.bank.Everyone))
	}

	// The provider opened a page but the response was lost and the page expired. Its key
	// cannot be used again.
	if _, err := e.svc.Checkout(t.Context(), e.actor(bob), plan(access.Basic)); err != nil {
		t.Fatal(err)
	}
	end = e.bank.Fail("session", true, away(false))
	_, err = e.svc.Checkout(t.Context(), e.actor(bob), plan(access.Pro))
	e.wantCode(err, apierr.ExternalServiceError)
	end()
	clear(e.bank.Open)
	e.subscribed(bob, plan(access.Pro))

	// The plan changed but the response was lost. The provider's state counts.
	end = e.bank.Fail("plan", true, away(false))
	out := e.checkout(ann, plan(access.Pro))
	end()
	if !out.Upgraded {
		t.Errorf("%+v", out)
	}
	e.want(ann, access.Pro, access.Active)

	// The plan did not change. The next attempt reuses the key while the first one may
	// still take effect, and takes another key after a response, which the old key
	// would repeat.
	end = e.bank.Fail("plan", false, away(false))
	_, err = e.svc.Checkout(t.Context(), e.actor(ann), plan(access.Basic))
	e.wantCode(err, apierr.ExternalServiceError)
	key = e.lastKey("plan")
	_, _ = e.svc.Checkout(t.Context(), e.actor(ann), plan(access.Basic))
	if e.lastKey("plan") != key {
		t.Error("another key while the first attempt may still take effect")
	}
	end()
	end = e.bank.Fail("plan", false, away(true))
	_, _ = e.svc.Checkout(t.Context(), e.actor(ann), plan(access.Basic))
	end()
	if out := e.checkout(ann, plan(access.Basic)); !out.Upgraded || e.lastKey("plan") == key {
		t.Errorf("%+v, the key of an answer that failed again: %t", out, e.lastKey("plan") == key)
	}
	e.want(ann, access.Basic, access.Active)

	// Each change back and forth has its own key.
	seen := map[string]bool{}
	for range 3 {
		for _, tier := range []access.Tier{access.Pro, access.Basic} {
			if out := e.checkout(ann, plan(tier)); !out.Upgraded || seen[e.lastKey("plan")] {
				t.Fatalf("%+v", out)
			}
			seen[e.lastKey("plan")] = true
		}
	}
}

func TestFailuresOfTheProviderAreTheContracts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.subscribed(ann, plan(access.Basic))
	for reason, want := range map[billing.Reason]apierr.Code{
		billing.Away: apierr.ExternalServiceError, billing.Refused: apierr.ExternalServiceError,
		billing.Throttled: apierr.RateLimited, billing.Card: apierr.PaymentRequired,
	} {
		end := e.bank.Fail("", false, &billing.ProviderError{Reason: reason, RetryAfter: 3 * time.Second})
		actor := e.actor(ann)
		for name, do := range map[string]func() error{
			"checkout": func() error { _, err := e.svc.Checkout(t.Context(), actor, plan(access.Pro)); return err },
			"preview":  func() error { _, err := e.svc.Preview(t.Context(), actor, plan(access.Pro)); return err },
			"cancel":   func() error { _, err := e.svc.Cancel(t.Context(), actor); return err },
			"info":     func() error { _, err := e.svc.Info(t.Context(), actor); return err },
			"portal":   func() error { _, err := e.svc.Portal(t.Context(), actor); return err },
		} {
			err := do()
			if !apierr.Is(err, want) {
				t.Errorf("%s, %s: %v", name, reason, err)
			}
			if want == apierr.RateLimited && apierr.From(err).RetryAfter != 3*time.Second {
				t.Errorf("%s: Retry-After %s", name, apierr.From(err).RetryAfter)
			}
		}
		end()
	}
	e.want(ann, access.Basic, access.Active)
}

func TestAccountIsToldWhenItIsBack(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.subscribed(ann, plan(access.Basic))
	e.accounts.mu.Lock()
	e.accounts.away = true
	e.accounts.mu.Unlock()
	if out := e.checkout(ann, plan(access.Pro)); !out.Upgraded { // the change was paid
		t.Errorf("%+v", out)
	}
	e.want(ann, access.Basic, access.Active)
	e.accounts.mu.Lock()
	e.accounts.away = false
	e.accounts.mu.Unlock()
	e.pass(11 * time.Second)
	e.run(e.svc.RunPushes, func() bool {
		return e.count("SELECT count(*) FROM subscriber WHERE push_at IS NULL AND NOT push_entitlement") == 1
	})
	e.want(ann, access.Pro, access.Active)
}

// Account may have a higher version. Billing then assigns one above it.
func TestVersionsRiseAboveWhatAccountHas(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Basic))
	e.accounts.mu.Lock()
	had := e.accounts.has[ann]
	e.accounts.has[ann] = access.Entitlement{Tier: access.Pro, Status: access.Inactive, Version: had.Version + 7}
	e.accounts.mu.Unlock()
	r, err := e.svc.Reconcile(t.Context())
	if err != nil || r.Repaired != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	e.want(ann, access.Basic, access.Active)
	if v := e.accounts.has[ann].Version; v <= had.Version+7 {
		t.Errorf("version %d", v)
	}
	// A request raises the version at once because it carries the one that it was
	// authorized with.
	e.accounts.mu.Lock()
	e.accounts.has[ann] = access.Entitlement{Tier: access.Pro, Status: access.Inactive, Version: had.Version + 20}
	e.accounts.mu.Unlock()
	_, err = e.svc.Checkout(t.Context(), e.actor(ann), plan(access.Basic))
	e.wantCode(err, apierr.ValidationError)
	e.want(ann, access.Basic, access.Active)
	pushes := e.accounts.pushes
	e.event(sub.CustomerID)
	if e.accounts.pushes != pushes {
		t.Error("account got an entitlement that it already has")
	}
}

func TestACanceledSubscriptionEndsWithoutAWord(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Basic))
	if _, err := e.svc.Cancel(t.Context(), e.actor(ann)); err != nil {
		t.Fatal(err)
	}
	e.bank.Fail("", false, away(false))
	e.pass(sub.CurrentPeriodEnd.Sub(e.now()) + 59*time.Minute)
	e.want(ann, access.Basic, access.Canceling)
	e.pass(2 * time.Minute)
	e.want(ann, access.Basic, access.Inactive)
	// RunChecks pushes the new status to account.
	e.run(e.svc.RunChecks, func() bool {
		e.accounts.mu.Lock()
		defer e.accounts.mu.Unlock()
		return e.accounts.has[ann].Status == access.Inactive
	})
}

func TestAMissedRenewalOrEndIsSeen(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Basic))
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.Status = "canceled" })
	e.pass(sub.CurrentPeriodEnd.Sub(e.now()) + 3*time.Hour)
	e.run(e.svc.RunChecks, func() bool { return e.count("SELECT count(*) FROM subscriber WHERE check_at IS NULL") == 1 })
	e.want(ann, access.Basic, access.Inactive)
}

func TestADeletedAccountEndsAtTheProvider(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Basic))
	e.remove(ann)
	done := func() bool { return e.count("SELECT count(*) FROM deletion WHERE due_at IS NULL") == 1 }
	// Billing retries until it succeeds.
	end := e.bank.Fail("forget", false, away(false))
	tried := len(e.bank.Keys("forget"))
	e.run(e.svc.RunDeletions, func() bool { return len(e.bank.Keys("forget")) > tried })
	if done() {
		t.Error("the deletion completed without its effects")
	}
	end()
	e.pass(2 * time.Minute)
	e.run(e.svc.RunDeletions, done)
	list, _ := e.bank.Subscriptions(t.Context(), sub.CustomerID)
	if !e.bank.Deleted[sub.CustomerID] || list[0].Status != "canceled" || len(e.bank.Refunded) != 0 {
		t.Errorf("%+v, refunded %v", list, e.bank.Refunded)
	}
	if n := e.count(`SELECT (SELECT count(*) FROM subscriber) + (SELECT count(*) FROM operation)
		+ (SELECT count(*) FROM deletion WHERE deletion::text LIKE '%' || $1 || '%')
		+ (SELECT count(*) FROM known_subscription k WHERE k::text LIKE '%' || $1 || '%')`, ann); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	// A request that was authorized before the deletion is rejected.
	_, err := e.svc.Checkout(t.Context(), access.Actor{AccountID: ann}, plan(access.Pro))
	e.wantCode(err, apierr.AuthenticationRequired)
}

func TestWhatIsPaidForADeletedAccountIsRefunded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	old := e.subscribed(ann, plan(access.Basic))
	e.bank.Set(old.ID, func(s *billing.Subscription) { s.Status = "canceled" })
	url := e.checkout(ann, plan(access.Pro)).URL
	e.remove(ann)
	late := e.bank.Pay(t, url) // before billing closes the page
	e.run(e.svc.RunDeletions, func() bool { return e.count("SELECT count(*) FROM deletion WHERE due_at IS NULL") == 1 })
	if !slices.Equal(e.bank.Refunded, []string{late.ID}) {
		t.Errorf("refunded %v, want %s", e.bank.Refunded, late.ID)
	}
	// The provider may report a payment after the deletion is complete.
	later := e.bank.Subscribe(late.CustomerID, "p_pm")
	e.event(late.CustomerID)
	if !slices.Equal(e.bank.Refunded, []string{late.ID, later.ID}) {
		t.Errorf("refunded %v, want %s, too", e.bank.Refunded, later.ID)
	}
	// The same holds if no event reports the payment.
	latest := e.bank.Subscribe(late.CustomerID, "p_pm")
	if _, err := e.svc.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(e.bank.Refunded, latest.ID) || slices.Contains(e.bank.Refunded, old.ID) {
		t.Errorf("refunded %v", e.bank.Refunded)
	}
}

// The event of a deletion may arrive after the event of a payment.
func TestWhatIsPaidBeforeADeletionIsHeardOfIsRefunded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	had := e.subscribed(ann, plan(access.Basic))
	e.bank.Set(had.ID, func(s *billing.Subscription) { s.Status = "canceled" })
	url := e.checkout(ann, plan(access.Pro)).URL
	deletedAt := e.now()
	e.pass(time.Second)
	late := e.bank.Pay(t, url)
	e.event(late.CustomerID)
	e.removeAt(ann, deletedAt)
	e.run(e.svc.RunDeletions, func() bool { return e.count("SELECT count(*) FROM deletion WHERE due_at IS NULL") == 1 })
	if !slices.Equal(e.bank.Refunded, []string{late.ID}) {
		t.Errorf("refunded %v, want %s", e.bank.Refunded, late.ID)
	}
}

func TestTheReconcilerMendsWhatWasMissed(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.bank.Pay(t, e.checkout(ann, plan(access.Basic)).URL) // the event is lost
	// A process created bob's customer and died before it recorded it.
	end := e.bank.Fail("customer", true, errors.New("killed"))
	_, _ = e.svc.Checkout(t.Context(), e.actor(bob), plan(access.Basic))
	end()
	bobs := e.bank.Everyone[1]
	// ann has a second customer. Another customer belongs to another installation, and
	// one has no account.
	e.bank.Everyone = append(e.bank.Everyone,
		billing.Customer{ID: "cus_twin", AccountID: ann}, billing.Customer{
			ID:        "cus_far",
			AccountID: "0197f0c4-6d0e-7cc1-a2a3-0000000000ff",
		}, billing.Customer{ID: "cus_none"})
	twins := e.bank.Subscribe("cus_twin", "p_pm")
	r, err := e.svc.Reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (billing.Report{Customers: 4, Accounts: 2, Repaired: 0, Adopted: 1, Removed: 1, Strange: 1}); r != want {
		// The removal of the second customer already corrects ann's entitlement.
		t.Errorf("%+v, want %+v", r, want)
	}
	e.want(ann, access.Basic, access.Active)
	if e.accounts.customer[bob] != bobs.ID || e.accounts.customer[ann] != sub.CustomerID {
		t.Errorf("customers %v", e.accounts.customer)
	}
	if !e.bank.Deleted["cus_twin"] || e.bank.Deleted["cus_far"] || e.bank.Deleted["cus_none"] || !slices.Equal(e.bank.Refunded,
		[]string{twins.ID}) {
		t.Errorf("deleted %v, refunded %v", e.bank.Deleted, e.bank.Refunded)
	}
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.PriceID = "p_pm" })
	if r, err = e.svc.Reconcile(t.Context()); err != nil || r.Repaired != 1 || r.Adopted+r.Removed+r.Failed != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	e.want(ann, access.Pro, access.Active)
	if r, err = e.svc.Reconcile(t.Context()); err != nil || r.Repaired != 0 {
		t.Errorf("a second run finds %+v, %v", r, err)
	}
	e.bank.Fail("fetch", false, away(true))
	if r, err = e.svc.Reconcile(t.Context()); err != nil || r.Failed != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestTheReconcilerRunsOnceInAWhileInOneProcess(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.bank.Pay(t, e.checkout(ann, plan(access.Basic)).URL)
	before := e.bank.Fetches
	both := func(ctx context.Context) error {
		var all sync.WaitGroup
		all.Go(func() { _ = e.other.RunReconciliations(ctx) })
		err := e.svc.RunReconciliations(ctx)
		all.Wait()
		return err
	}
	e.run(both, func() bool {
		e.accounts.mu.Lock()
		defer e.accounts.mu.Unlock()
		return e.accounts.has[ann].Status == access.Active
	})
	if n := e.bank.Fetches - before; n != 1 {
		t.Errorf("%d fetches", n)
	}
	e.bank.Set(sub.ID, func(s *billing.Subscription) { s.Status = "canceled" })
	e.pass(61 * time.Minute)
	e.run(both, func() bool {
		e.accounts.mu.Lock()
		defer e.accounts.mu.Unlock()
		return e.accounts.has[ann].Status == access.Inactive
	})
}

func TestACustomerThatWasDeletedThereIsMadeAnew(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sub := e.subscribed(ann, plan(access.Basic))
	if err := e.bank.DeleteCustomer(t.Context(), "", sub.CustomerID); err != nil {
		t.Fatal(err)
	}
	e.event(sub.CustomerID)
	e.want(ann, access.Basic, access.Inactive)
	if next := e.subscribed(ann, plan(access.Pro)); next.CustomerID == sub.CustomerID {
		t.Error("the same customer")
	}
	if e.accounts.customer[ann] == sub.CustomerID {
		t.Error("account did not get the new customer")
	}
}

// A session that was opened before outlives its customer, and cannot be paid.
func TestASessionOfADeletedCustomerIsNotReused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	dead := e.checkout(ann, plan(access.Basic)).URL
	customer := e.bank.Everyone[len(e.bank.Everyone)-1].ID
	if err := e.bank.DeleteCustomer(t.Context(), "", customer); err != nil {
		t.Fatal(err)
	}
	if out := e.checkout(ann, plan(access.Basic)); out.URL == dead || out.URL == "" {
		t.Errorf("%q after %q", out.URL, dead)
	}
	if next := e.subscribed(ann, plan(access.Basic)); next.CustomerID == customer {
		t.Error("the same customer")
	}
}

func TestMoney(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]billing.Money{
		"$10.00":         {Amount: 1000, Currency: "usd"},
		"$0.05":          {Amount: 5, Currency: "USD"},
		"$0.00":          {Currency: "usd"},
		"-$47.00":        {Amount: -4700, Currency: "usd"},
		"$1,234,567.89":  {Amount: 123456789, Currency: "usd"},
		"¥1,000":         {Amount: 1000, Currency: "jpy"},
		"-¥500":          {Amount: -500, Currency: "jpy"},
		"€5.00":          {Amount: 500, Currency: "eur"},
		"£5.00":          {Amount: 500, Currency: "gbp"},
		"₩5,000":         {Amount: 5000, Currency: "krw"},
		"MGA\u00a05,000": {Amount: 5000, Currency: "mga"},
		"KWD\u00a01.234": {Amount: 1234, Currency: "kwd"},
		"ISK\u00a05":     {Amount: 500, Currency: "isk"},
		"1.00 XX":        {Amount: 100, Currency: "xx"},
	} {
		if got := m.String(); got != want {
			t.Errorf("%+v is %q, want %q", m, got, want)
		}
	}
}

func TestParsePrices(t *testing.T) {
	t.Parallel()
	good := []string{"basic.monthly=a", "basic.yearly=b", "advanced.monthly=c", "advanced.yearly=d", "pro.monthly=e", "pro.yearly=f"}
	p, err := billing.ParsePrices(append(slices.Clone(good), "pro.monthly=old"))
	if err != nil || p.Sold(plan(access.Pro)) != "e" {
		t.Errorf("%v, %v", p, err)
	}
	if got, ok := p.Plan("old"); !ok || got != plan(access.Pro) {
		t.Errorf("%v, %t", got, ok)
	}
	for name, list := range map[string][]string{
		"one is missing": good[1:], "no tier": append(slices.Clone(good), "gold.monthly=x"), "no interval": append(slices.Clone(good),
			"pro.daily=x"),
		"twice": append(slices.Clone(good), "pro.yearly=a"), "no price": append(slices.Clone(good), "pro.yearly="), "nonsense": {"x"},
		"nothing": nil,
	} {
		if _, err := billing.ParsePrices(list); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
