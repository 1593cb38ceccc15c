package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/apierr"
)

// The provider's subscription statuses that the domain distinguishes.
const (
	statusActive   = "active"
	statusPastDue  = "past_due"
	statusTrialing = "trialing"
	statusCanceled = "canceled"
	statusExpired  = "incomplete_expired"
)

// Subscription is a subscription at the provider.
type Subscription struct {
	ID, CustomerID string
	// AccountID is from the metadata that CreateSession writes. It is empty if the
	// subscription was created elsewhere.
	AccountID string
	// Status is the provider's word.
	Status string
	// ItemID is the line of the subscription that has the price.
	PriceID, ItemID   string
	CreatedAt         time.Time
	CurrentPeriodEnd  time.Time
	CancelAtPeriodEnd bool
	// CancelAt is when the subscription ends; zero if it renews.
	CancelAt time.Time
}

// busyRetry is the Retry-After for a busy account.
const busyRetry = 2 * time.Second

// entitles reports whether s entitles the account to its plan.
func (s Subscription) entitles() bool {
	return s.Status == statusActive || s.Status == statusPastDue || s.Status == statusTrialing
}

// ended reports whether s can never entitle again.
func (s Subscription) ended() bool { return s.Status == statusCanceled || s.Status == statusExpired }

// canceling reports whether s is going to end, and when.
func (s Subscription) canceling() (at time.Time, yes bool) {
	switch {
	case !s.CancelAt.IsZero():
		return s.CancelAt, true
	case s.CancelAtPeriodEnd:
		return s.CurrentPeriodEnd, true
	}
	return time.Time{}, false
}

// Session is an open hosted checkout.
type Session struct {
	ID, URL, PriceID string
	ExpiresAt        time.Time
}

// Customer is a customer at the provider.
type Customer struct {
	ID string
	// AccountID is from the metadata that CreateCustomer writes. It is empty if the
	// customer was created elsewhere.
	AccountID string
}

// NewSession are the parameters of a hosted checkout.
type NewSession struct {
	CustomerID, AccountID, PriceID string
	SuccessURL, CancelURL          string
}

// Quote is the cost of changing the price now, in the smallest unit.
type Quote struct {
	// Amount is negative for a credit.
	Amount int64
	// Due is the charge after existing credit is applied.
	Due      int64
	Currency string
}

// Price is a price at the provider.
type Price struct {
	ID string
	// Amount is in the smallest unit, per interval.
	Amount   int64
	Currency string
}

// Invoice is an invoice at the provider.
type Invoice struct {
	ID        string
	CreatedAt time.Time
	// Amount is in the smallest unit.
	Amount   int64
	Currency string
	// Status, Description, PDF and URL may be empty.
	Status, Description, PDF, URL string
}

// PaymentMethod is a card.
type PaymentMethod struct {
	Brand, Last4      string
	ExpMonth, ExpYear int64
}

// Provider is the payment provider. Calls with the same idempotency key take effect
// once. Errors are *ProviderError.
type Provider interface {
	CreateCustomer(ctx context.Context, key, accountID, email string) (id string, err error)
	Customer(ctx context.Context, id string) (Customer, error)
	// DeleteCustomer also ends the customer's subscriptions.
	DeleteCustomer(ctx context.Context, key, id string) error
	// Customers returns the page of customers after an id, newest first.
	Customers(ctx context.Context, after string) (page []Customer, more bool, err error)

	// Subscriptions returns all subscriptions of a customer, including ended ones.
	Subscriptions(ctx context.Context, customerID string) ([]Subscription, error)
	// ChangePlan changes the price, charges the difference immediately and resumes a
	// canceling subscription. If the charge fails, it changes nothing and returns
	// Card.
	ChangePlan(ctx context.Context, key string, sub Subscription, priceID string) error
	// SetCanceling cancels a subscription at the end of its period, or resumes it.
	SetCanceling(ctx context.Context, key string, sub Subscription, yes bool) error
	// Cancel ends a subscription immediately, without a final invoice.
	Cancel(ctx context.Context, key, id string) error
	// Refund refunds the payment of a subscription's newest invoice. It does nothing
	// if nothing was paid or everything was refunded.
	Refund(ctx context.Context, key, subscriptionID string) error

	// OpenSessions returns a customer's checkouts that can still be paid.
	OpenSessions(ctx context.Context, customerID string) ([]Session, error)
	CreateSession(ctx context.Context, key string, s NewSession) (Session, error)
	// ExpireSession returns Refused if the session was completed.
	ExpireSession(ctx context.Context, key, id string) error

	Quote(ctx context.Context, sub Subscription, priceID string) (Quote, error)
	Price(ctx context.Context, id string) (Price, error)
	// Invoices returns a customer's newest invoices, at most limit, newest first.
	Invoices(ctx context.Context, customerID string, limit int) ([]Invoice, error)
	// PaymentMethod returns nil if there is none.
	PaymentMethod(ctx context.Context, customerID string) (*PaymentMethod, error)
	Portal(ctx context.Context, key, customerID, returnURL string) (url string, err error)
}

// Reason is why a call to the provider failed.
type Reason int

// The reasons.
const (
	// Away means that the provider was unreachable, failed or timed out. The call may
	// have taken effect.
	Away Reason = iota
	// Throttled means that there were too many calls. The call had no effect.
	Throttled
	// Card means that a payment was declined.
	Card
	// Missing means that there is no such object.
	Missing
	// KeyReused means that the idempotency key belongs to a different call.
	KeyReused
	// Refused means that the provider rejected the call as invalid.
	Refused
)

// String returns the reason for logs and metrics.
func (r Reason) String() string {
	switch r {
	case Away:
		return "away"
	case Throttled:
		return "throttled"
	case Card:
		return "card"
	case Missing:
		return "missing"
	case KeyReused:
		return "key_reused"
	case Refused:
		return "refused"
	default:
		return "unknown"
	}
}

// ProviderError is the error of a Provider. Its text is safe to log.
type ProviderError struct {
	Reason Reason
	// Answered is set if the provider responded although it is Away. The same key
	// gets the same response again.
	Answered bool
	// Call is the name of the call. Code and RequestID are the provider's.
	Call, Code, RequestID string
	RetryAfter            time.Duration
	Err                   error
}

// Error implements error.
func (e *ProviderError) Error() string {
	s := fmt.Sprintf("payment provider: %s: %s", e.Call, e.Reason)
	if e.Code != "" {
		s += " (" + e.Code + ")"
	}
	if e.RequestID != "" {
		s += " in " + e.RequestID
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *ProviderError) Unwrap() error { return e.Err }

// because reports whether err is a ProviderError with a reason.
func because(err error, r Reason) bool {
	e, ok := errors.AsType[*ProviderError](err)
	return ok && e.Reason == r
}

// outward returns err as an error of the API.
func outward(err error) error {
	e, ok := errors.AsType[*ProviderError](err)
	switch {
	case !ok && errors.Is(err, ErrBusy):
		return apierr.New(apierr.RateLimited, "Your account is busy with another change. Please try again later.").
			WithRetryAfter(busyRetry).WithCause(err)
	case !ok:
		return err
	}
	switch e.Reason {
	case Card:
		return apierr.New(apierr.PaymentRequired, "The payment was declined. Please check your card.").WithCause(err)
	case Throttled:
		return apierr.New(apierr.RateLimited, "The payment provider is busy. Please try again later.").
			WithRetryAfter(max(e.RetryAfter, time.Second)).WithCause(err)
	case Away:
		return apierr.New(apierr.ExternalServiceError, "The payment provider is not responding. Please try again later.").
			WithRetryAfter(e.RetryAfter).WithCause(err)
	case Missing, KeyReused, Refused:
	}
	return apierr.New(apierr.ExternalServiceError, "The payment provider rejected the request. If this happens again, contact support.").
		WithRetryAfter(e.RetryAfter).WithCause(err)
}
