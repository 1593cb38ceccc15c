package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/apierr"
)

// The provider's words for the state of a subscription that are told apart.
const (
	statusActive   = "active"
	statusPastDue  = "past_due"
	statusTrialing = "trialing"
	statusCanceled = "canceled"
	statusExpired  = "incomplete_expired"
)

// Subscription is one as the provider shows it.
type Subscription struct {
	ID, CustomerID string
	// AccountID is what we wrote to it; empty: somebody else made it.
	AccountID string
	// Status is the provider's word.
	Status string
	// PriceID is what is paid, ItemID the line of the subscription that says so.
	PriceID, ItemID   string
	CreatedAt         time.Time
	CurrentPeriodEnd  time.Time
	CancelAtPeriodEnd bool
	// CancelAt is when it ends, zero where it goes on.
	CancelAt time.Time
}

// busyRetry is the Retry-After while too much is under way.
const busyRetry = 2 * time.Second

// entitles reports whether s gives the account its plan.
func (s Subscription) entitles() bool {
	return s.Status == statusActive || s.Status == statusPastDue || s.Status == statusTrialing
}

// ended reports whether s can never give anything any more.
func (s Subscription) ended() bool { return s.Status == statusCanceled || s.Status == statusExpired }

// canceling reports whether s ends, and when.
func (s Subscription) canceling() (at time.Time, yes bool) {
	switch {
	case !s.CancelAt.IsZero():
		return s.CancelAt, true
	case s.CancelAtPeriodEnd:
		return s.CurrentPeriodEnd, true
	}
	return time.Time{}, false
}

// Session is a hosted checkout that is open.
type Session struct {
	ID, URL, PriceID string
	ExpiresAt        time.Time
}

// Customer is one as the provider shows it.
type Customer struct {
	ID string
	// AccountID is what we wrote to it; empty: it is none of ours.
	AccountID string
}

// NewSession asks for a hosted checkout.
type NewSession struct {
	CustomerID, AccountID, PriceID string
	SuccessURL, CancelURL          string
}

// Quote is what a change of price would cost now.
type Quote struct {
	// Amount is in the smallest unit; negative: a credit.
	Amount int64
	// Due is what of it is charged, after the credit that there is.
	Due      int64
	Currency string
}

// Price is one as the provider shows it.
type Price struct {
	ID string
	// Amount is in the smallest unit, for each interval.
	Amount   int64
	Currency string
}

// Invoice is one as the provider shows it.
type Invoice struct {
	ID        string
	CreatedAt time.Time
	// Amount is in the smallest unit.
	Amount   int64
	Currency string
	// Status, Description, PDF and URL may be empty.
	Status, Description, PDF, URL string
}

// PaymentMethod is the card that is charged.
type PaymentMethod struct {
	Brand, Last4      string
	ExpMonth, ExpYear int64
}

// Provider is the payment provider. A key, where there is one, makes a
// repetition have its effect once. Errors are *ProviderError.
type Provider interface {
	CreateCustomer(ctx context.Context, key, accountID, email string) (id string, err error)
	Customer(ctx context.Context, id string) (Customer, error)
	// DeleteCustomer ends the customer's subscriptions, too.
	DeleteCustomer(ctx context.Context, key, id string) error
	// Customers returns a page of customers after an id, the newest first.
	Customers(ctx context.Context, after string) (page []Customer, more bool, err error)

	// Subscriptions are all of a customer, those that have ended too.
	Subscriptions(ctx context.Context, customerID string) ([]Subscription, error)
	// ChangePlan moves to another price, charging the difference at once, and lets
	// the subscription go on where it was to end. Where the charge fails nothing
	// has changed, and the error is Card.
	ChangePlan(ctx context.Context, key string, sub Subscription, priceID string) error
	// SetCanceling has a subscription end with its period, or go on.
	SetCanceling(ctx context.Context, key string, sub Subscription, yes bool) error
	// Cancel ends a subscription at once, without a last invoice.
	Cancel(ctx context.Context, key, id string) error
	// Refund gives back what the newest invoice of a subscription took; nothing
	// where nothing was paid or all was given back.
	Refund(ctx context.Context, key, subscriptionID string) error

	// OpenSessions are a customer's checkouts that can still be paid.
	OpenSessions(ctx context.Context, customerID string) ([]Session, error)
	CreateSession(ctx context.Context, key string, s NewSession) (Session, error)
	// ExpireSession is Refused where the session was completed.
	ExpireSession(ctx context.Context, key, id string) error

	Quote(ctx context.Context, sub Subscription, priceID string) (Quote, error)
	Price(ctx context.Context, id string) (Price, error)
	// Invoices are a customer's, the newest first, at most limit.
	Invoices(ctx context.Context, customerID string, limit int) ([]Invoice, error)
	// PaymentMethod is nil where there is none.
	PaymentMethod(ctx context.Context, customerID string) (*PaymentMethod, error)
	Portal(ctx context.Context, key, customerID, returnURL string) (url string, err error)
}

// Reason is why the provider did not do what was asked for.
type Reason int

// The reasons.
const (
	// Away: it could not be reached, failed or took too long. Whether what was
	// asked for has happened is not known.
	Away Reason = iota
	// Throttled: too many calls. Nothing has happened.
	Throttled
	// Card: a payment was refused.
	Card
	// Missing: there is no such object.
	Missing
	// KeyReused: the idempotency key belongs to another wish.
	KeyReused
	// Refused: it takes the call for wrong.
	Refused
)

// String is for logs and metrics.
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

// ProviderError is what a Provider returns. Its text has nothing that a log must
// not have.
type ProviderError struct {
	Reason Reason
	// Answered: Away, but an answer came. The same key gets it again.
	Answered bool
	// Call, Code and RequestID say what failed, in the provider's words.
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

// because reports whether err is the provider's, for that reason.
func because(err error, r Reason) bool {
	e, ok := errors.AsType[*ProviderError](err)
	return ok && e.Reason == r
}

// outward is err as the contract has it.
func outward(err error) error {
	e, ok := errors.AsType[*ProviderError](err)
	switch {
	case !ok && errors.Is(err, ErrBusy):
		return apierr.New(apierr.RateLimited, "Too much is under way. Please try again later.").WithRetryAfter(busyRetry).WithCause(err)
	case !ok:
		return err
	}
	switch e.Reason {
	case Card:
		return apierr.New(apierr.PaymentRequired, "The payment was refused. Please check your card.").WithCause(err)
	case Throttled:
		return apierr.New(apierr.RateLimited, "The payment provider is busy. Please try again later.").
			WithRetryAfter(max(e.RetryAfter, time.Second)).WithCause(err)
	case Away, Missing, KeyReused, Refused:
	}
	return apierr.New(apierr.ExternalServiceError, "The payment provider does not answer. Please try again later.").
		WithRetryAfter(e.RetryAfter).WithCause(err)
}
