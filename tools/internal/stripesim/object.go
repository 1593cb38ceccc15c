package stripesim

import (
	"encoding/json"
	"time"
)

const day = 24 * time.Hour

// Statuses of a subscription.
const (
	active            = "active"
	trialing          = "trialing"
	pastDue           = "past_due"
	unpaid            = "unpaid"
	incomplete        = "incomplete"
	incompleteExpired = "incomplete_expired"
	canceled          = "canceled"
)

// object is anything with an id.
type object interface{ ident() string }

// ref is the id of another object, which can be expanded; an empty ref is null in JSON.
type ref string

// MarshalJSON implements json.Marshaler.
func (r ref) MarshalJSON() ([]byte, error) {
	if r == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(r))
}

// stamp is a time in epoch seconds; 0 is null in JSON.
type stamp int64

// MarshalJSON implements json.Marshaler.
func (t stamp) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(int64(t))
}

// Fields tagged sim are internal to the simulator: they are saved but not shown.

type customer struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Balance     int64             `json:"balance"` // a negative balance is credit
	Created     int64             `json:"created"`
	Currency    ref               `json:"currency"`
	Delinquent  bool              `json:"delinquent"`
	Deleted     bool              `json:"deleted,omitempty"`
	Description ref               `json:"description"`
	Email       ref               `json:"email"`
	Settings    customerSettings  `json:"invoice_settings"`
	Livemode    bool              `json:"livemode"`
	Metadata    map[string]string `json:"metadata"`
	Name        ref               `json:"name"`
	Phone       ref               `json:"phone"`
	TestClock   ref               `json:"test_clock"`
}

type customerSettings struct {
	DefaultPaymentMethod ref `json:"default_payment_method"`
}

type product struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Active   bool              `json:"active"`
	Created  int64             `json:"created"`
	Livemode bool              `json:"livemode"`
	Metadata map[string]string `json:"metadata"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Updated  int64             `json:"updated"`
}

type price struct {
	ID            string            `json:"id"`
	Object        string            `json:"object"`
	Active        bool              `json:"active"`
	BillingScheme string            `json:"billing_scheme"`
	Created       int64             `json:"created"`
	Currency      string            `json:"currency"`
	Livemode      bool              `json:"livemode"`
	LookupKey     ref               `json:"lookup_key"`
	Metadata      map[string]string `json:"metadata"`
	Nickname      ref               `json:"nickname"`
	Product       ref               `json:"product"`
	Recurring     recurring         `json:"recurring"`
	TaxBehavior   string            `json:"tax_behavior"`
	Type          string            `json:"type"`
	UnitAmount    int64             `json:"unit_amount"`
	UnitDecimal   string            `json:"unit_amount_decimal"`
}

type recurring struct {
	Interval      string `json:"interval"`
	IntervalCount int64  `json:"interval_count"`
	UsageType     string `json:"usage_type"`
}

type card struct {
	Brand       string `json:"brand"`
	Country     string `json:"country"`
	ExpMonth    int    `json:"exp_month"`
	ExpYear     int    `json:"exp_year"`
	Fingerprint string `json:"fingerprint"`
	Funding     string `json:"funding"`
	Last4       string `json:"last4"`
}

type paymentMethod struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Billing  billingDetails    `json:"billing_details"`
	Card     card              `json:"card"`
	Created  int64             `json:"created"`
	Customer ref               `json:"customer"`
	Livemode bool              `json:"livemode"`
	Metadata map[string]string `json:"metadata"`
	Type     string            `json:"type"`
	Sim      cardState         `json:"sim"`
}

type billingDetails struct {
	Email ref `json:"email"`
	Name  ref `json:"name"`
}

// cardState says how a card behaves: it pays Left more times, or always if Left is negative.
type cardState struct {
	Left int `json:"left"`
}

type session struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	AmountSubtotal   int64             `json:"amount_subtotal"`
	AmountTotal      int64             `json:"amount_total"`
	CancelURL        ref               `json:"cancel_url"`
	ClientReference  ref               `json:"client_reference_id"`
	Created          int64             `json:"created"`
	Currency         string            `json:"currency"`
	Customer         ref               `json:"customer"`
	CustomerDetails  *customerDetails  `json:"customer_details"`
	CustomerEmail    ref               `json:"customer_email"`
	ExpiresAt        int64             `json:"expires_at"`
	Invoice          ref               `json:"invoice"`
	LineItems        *list             `json:"line_items,omitempty"`
	Livemode         bool              `json:"livemode"`
	Metadata         map[string]string `json:"metadata"`
	Mode             string            `json:"mode"`
	PaymentIntent    ref               `json:"payment_intent"`
	PaymentStatus    string            `json:"payment_status"`
	Status           string            `json:"status"`
	Subscription     ref               `json:"subscription"`
	SuccessURL       ref               `json:"success_url"`
	URL              ref               `json:"url"`
	PaymentMethodTyp []string          `json:"payment_method_types"`
	Sim              sessionPlan       `json:"sim"`
}

type customerDetails struct {
	Email ref `json:"email"`
	Name  ref `json:"name"`
}

// sessionPlan describes the subscription that a completed session creates.
type sessionPlan struct {
	Price     string            `json:"price"`
	Quantity  int64             `json:"quantity"`
	Metadata  map[string]string `json:"metadata"` // the subscription's
	TrialDays int64             `json:"trial_days"`
	TrialEnd  int64             `json:"trial_end"`
}

type subscription struct {
	ID                   string               `json:"id"`
	Object               string               `json:"object"`
	BillingCycleAnchor   int64                `json:"billing_cycle_anchor"`
	CancelAt             stamp                `json:"cancel_at"`
	CancelAtPeriodEnd    bool                 `json:"cancel_at_period_end"`
	CanceledAt           stamp                `json:"canceled_at"`
	CancellationDetails  cancellation         `json:"cancellation_details"`
	CollectionMethod     string               `json:"collection_method"`
	Created              int64                `json:"created"`
	Currency             string               `json:"currency"`
	CurrentPeriodEnd     int64                `json:"current_period_end"`
	CurrentPeriodStart   int64                `json:"current_period_start"`
	Customer             ref                  `json:"customer"`
	DefaultPaymentMethod ref                  `json:"default_payment_method"`
	Description          ref                  `json:"description"`
	EndedAt              stamp                `json:"ended_at"`
	Items                list                 `json:"items"`
	LatestInvoice        ref                  `json:"latest_invoice"`
	Livemode             bool                 `json:"livemode"`
	Metadata             map[string]string    `json:"metadata"`
	PendingUpdate        *pendingUpdate       `json:"pending_update"`
	StartDate            int64                `json:"start_date"`
	Status               string               `json:"status"`
	TestClock            ref                  `json:"test_clock"`
	TrialEnd             stamp                `json:"trial_end"`
	TrialStart           stamp                `json:"trial_start"`
	Sim                  subscriptionInternal `json:"sim"`
}

type cancellation struct {
	Comment  ref `json:"comment"`
	Feedback ref `json:"feedback"`
	Reason   ref `json:"reason"`
}

type pendingUpdate struct {
	BillingCycleAnchor stamp              `json:"billing_cycle_anchor"`
	ExpiresAt          int64              `json:"expires_at"`
	Items              []subscriptionItem `json:"subscription_items"`
}

type subscriptionItem struct {
	ID           string            `json:"id"`
	Object       string            `json:"object"`
	Created      int64             `json:"created"`
	Metadata     map[string]string `json:"metadata"`
	Price        price             `json:"price"`
	Quantity     int64             `json:"quantity"`
	Subscription string            `json:"subscription"`
}

// subscriptionInternal holds the subscription's one item, the extra lines of its next invoice and the number of periods so
// far.
type subscriptionInternal struct {
	Item    subscriptionItem `json:"item"`
	Pending []line           `json:"pending"`
	// Periods is the number of periods begun since the anchor. Every period starts on the anchor's day of the month.
	Periods int `json:"periods"`
}

type invoice struct {
	ID                 string            `json:"id,omitempty"`
	Object             string            `json:"object"`
	AmountDue          int64             `json:"amount_due"`
	AmountPaid         int64             `json:"amount_paid"`
	AmountRemaining    int64             `json:"amount_remaining"`
	AttemptCount       int64             `json:"attempt_count"`
	Attempted          bool              `json:"attempted"`
	AutoAdvance        bool              `json:"auto_advance"`
	BillingReason      string            `json:"billing_reason"`
	Charge             ref               `json:"charge"`
	CollectionMethod   string            `json:"collection_method"`
	Created            int64             `json:"created"`
	Currency           string            `json:"currency"`
	Customer           ref               `json:"customer"`
	CustomerEmail      ref               `json:"customer_email"`
	DefaultPayment     ref               `json:"default_payment_method"`
	Description        ref               `json:"description"`
	EndingBalance      *int64            `json:"ending_balance"`
	HostedURL          ref               `json:"hosted_invoice_url"`
	PDF                ref               `json:"invoice_pdf"`
	Lines              list              `json:"lines"`
	Livemode           bool              `json:"livemode"`
	Metadata           map[string]string `json:"metadata"`
	NextPaymentAttempt stamp             `json:"next_payment_attempt"`
	Number             ref               `json:"number"`
	Paid               bool              `json:"paid"`
	PaymentIntent      ref               `json:"payment_intent"`
	PeriodEnd          int64             `json:"period_end"`
	PeriodStart        int64             `json:"period_start"`
	StartingBalance    int64             `json:"starting_balance"`
	Status             string            `json:"status"`
	Transitions        transitions       `json:"status_transitions"`
	Subscription       ref               `json:"subscription"`
	ProrationDate      int64             `json:"subscription_proration_date,omitempty"`
	Subtotal           int64             `json:"subtotal"`
	Tax                *int64            `json:"tax"`
	TestClock          ref               `json:"test_clock"`
	Total              int64             `json:"total"`
	Sim                invoiceInternal   `json:"sim"`
}

type transitions struct {
	FinalizedAt           stamp `json:"finalized_at"`
	MarkedUncollectibleAt stamp `json:"marked_uncollectible_at"`
	PaidAt                stamp `json:"paid_at"`
	VoidedAt              stamp `json:"voided_at"`
}

// invoiceInternal holds an invoice's lines and the number of failed attempts to collect it.
type invoiceInternal struct {
	Lines []line `json:"lines"`
	Tries int    `json:"tries"`
}

type line struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Amount           int64             `json:"amount"`
	Currency         string            `json:"currency"`
	Description      string            `json:"description"`
	Discountable     bool              `json:"discountable"`
	Livemode         bool              `json:"livemode"`
	Metadata         map[string]string `json:"metadata"`
	Period           period            `json:"period"`
	Price            price             `json:"price"`
	Proration        bool              `json:"proration"`
	Quantity         int64             `json:"quantity"`
	Subscription     ref               `json:"subscription"`
	SubscriptionItem ref               `json:"subscription_item"`
	Type             string            `json:"type"`
}

// period is a time span in epoch seconds.
type period struct {
	End   int64 `json:"end"`
	Start int64 `json:"start"`
}

type paymentIntent struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Amount           int64             `json:"amount"`
	AmountReceived   int64             `json:"amount_received"`
	Created          int64             `json:"created"`
	Currency         string            `json:"currency"`
	Customer         ref               `json:"customer"`
	Description      ref               `json:"description"`
	Invoice          ref               `json:"invoice"`
	LastPaymentError *apiError         `json:"last_payment_error"`
	LatestCharge     ref               `json:"latest_charge"`
	Livemode         bool              `json:"livemode"`
	Metadata         map[string]string `json:"metadata"`
	PaymentMethod    ref               `json:"payment_method"`
	Status           string            `json:"status"`
}

type charge struct {
	ID             string            `json:"id"`
	Object         string            `json:"object"`
	Amount         int64             `json:"amount"`
	AmountCaptured int64             `json:"amount_captured"`
	AmountRefunded int64             `json:"amount_refunded"`
	Captured       bool              `json:"captured"`
	Created        int64             `json:"created"`
	Currency       string            `json:"currency"`
	Customer       ref               `json:"customer"`
	Description    ref               `json:"description"`
	FailureCode    ref               `json:"failure_code"`
	FailureMessage ref               `json:"failure_message"`
	Invoice        ref               `json:"invoice"`
	Livemode       bool              `json:"livemode"`
	Metadata       map[string]string `json:"metadata"`
	Paid           bool              `json:"paid"`
	PaymentIntent  ref               `json:"payment_intent"`
	PaymentMethod  ref               `json:"payment_method"`
	Refunded       bool              `json:"refunded"`
	Status         string            `json:"status"`
}

type refund struct {
	ID            string            `json:"id"`
	Object        string            `json:"object"`
	Amount        int64             `json:"amount"`
	Charge        ref               `json:"charge"`
	Created       int64             `json:"created"`
	Currency      string            `json:"currency"`
	Metadata      map[string]string `json:"metadata"`
	PaymentIntent ref               `json:"payment_intent"`
	Reason        ref               `json:"reason"`
	Status        string            `json:"status"`
}

type portal struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Created   int64  `json:"created"`
	Customer  string `json:"customer"`
	Livemode  bool   `json:"livemode"`
	ReturnURL ref    `json:"return_url"`
	URL       string `json:"url"`
}

type testClock struct {
	ID           string `json:"id"`
	Object       string `json:"object"`
	Created      int64  `json:"created"`
	DeletesAfter int64  `json:"deletes_after"`
	FrozenTime   int64  `json:"frozen_time"`
	Livemode     bool   `json:"livemode"`
	Name         ref    `json:"name"`
	Status       string `json:"status"`
}

type event struct {
	ID              string       `json:"id"`
	Object          string       `json:"object"`
	APIVersion      string       `json:"api_version"`
	Created         int64        `json:"created"`
	Data            eventData    `json:"data"`
	Livemode        bool         `json:"livemode"`
	PendingWebhooks int          `json:"pending_webhooks"`
	Request         eventRequest `json:"request"`
	Type            string       `json:"type"`
}

type eventData struct {
	Object json.RawMessage `json:"object"`
}

type eventRequest struct {
	ID             ref `json:"id"`
	IdempotencyKey ref `json:"idempotency_key"`
}

// deleted is the answer to the deletion of an object.
type deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// list is a page of objects.
type list struct {
	Object  string `json:"object"`
	Data    any    `json:"data"`
	HasMore bool   `json:"has_more"`
	URL     string `json:"url"`
}

func (o *customer) ident() string      { return o.ID }
func (o *product) ident() string       { return o.ID }
func (o *price) ident() string         { return o.ID }
func (o *paymentMethod) ident() string { return o.ID }
func (o *session) ident() string       { return o.ID }
func (o *subscription) ident() string  { return o.ID }
func (o *invoice) ident() string       { return o.ID }
func (o *paymentIntent) ident() string { return o.ID }
func (o *charge) ident() string        { return o.ID }
func (o *refund) ident() string        { return o.ID }
func (o *portal) ident() string        { return o.ID }
func (o *testClock) ident() string     { return o.ID }
func (o *event) ident() string         { return o.ID }
