// Package http serves /v1/billing.
package http

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/billing"
)

const (
	webhookPath = "/v1/billing/webhook"
	// timeout bounds a request. A request makes several provider calls, and a call
	// that charges a card takes seconds.
	timeout = 32 * time.Second
	// maxSignature bounds the signature header, in bytes.
	maxSignature = 4 << 10
)

// Exempt reports whether a request is exempt from the global rate limit. The webhook
// is exempt, because losing a payment event is worse than serving one more request.
func Exempt(method, path string) bool { return method == http.MethodPost && path == webhookPath }

// Webhook verifies and parses the provider's events.
type Webhook interface {
	Event(raw []byte, signature string) (billing.Event, error)
}

type handler struct {
	svc     *billing.Billing
	webhook Webhook
}

// Routes adds the routes to an engine from package httpapi.
func Routes(e gin.IRouter, svc *billing.Billing, accounts authn.Authorizer, webhook Webhook) {
	h := handler{svc, webhook}
	e.POST(webhookPath, httpapi.H(h.receive))

	// None of these requires a subscription: an account without one subscribes here.
	g := e.Group("/v1/billing", authn.Middleware(accounts), httpapi.Timeout(timeout))
	g.POST("/checkout", httpapi.H(h.checkout))
	g.POST("/preview", httpapi.H(h.preview))
	g.POST("/start-trial", httpapi.H(h.startTrial))
	g.POST("/cancel", httpapi.H(h.cancel))
	g.POST("/portal", httpapi.H(h.portal))
	g.GET("/info", httpapi.H(h.info))
}

// plan reads the tier and the interval from the body.
func plan(c *gin.Context) (billing.Plan, error) {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return billing.Plan{}, err
	}
	o, err := body.Parse(raw)
	if err != nil {
		return billing.Plan{}, err
	}
	p := billing.Plan{Tier: access.Tier(o.RequiredString("tier", 0)), Interval: billing.Monthly}
	if !o.Failed("tier") && !p.Tier.Valid() {
		o.Fail("tier", "Choose basic, advanced or pro.")
	}
	if s, ok := o.String("interval", 0); ok {
		if p.Interval = billing.Interval(s); !p.Interval.Valid() {
			o.Fail("interval", "Choose monthly or yearly.")
		}
	}
	return p, o.Err()
}

func (h handler) checkout(c *gin.Context) error {
	p, err := plan(c)
	if err != nil {
		return err
	}
	out, err := h.svc.Checkout(c.Request.Context(), authn.Actor(c), p)
	if err != nil {
		return err
	}
	switch {
	case out.URL != "":
		httpapi.JSON(c, http.StatusOK, struct {
			URL string `json:"url"`
		}{out.URL})
	case out.Upgraded:
		httpapi.JSON(c, http.StatusOK, struct {
			Upgraded bool          `json:"upgraded"`
			Tier     access.Tier   `json:"tier"`
			Status   access.Status `json:"status"`
		}{true, out.Tier, out.Status})
	default:
		httpapi.JSON(c, http.StatusOK, struct {
			Upgraded      bool `json:"upgraded"`
			PaymentFailed bool `json:"payment_failed"`
		}{false, true})
	}
	return nil
}

func (h handler) preview(c *gin.Context) error {
	p, err := plan(c)
	if err != nil {
		return err
	}
	out, err := h.svc.Preview(c.Request.Context(), authn.Actor(c), p)
	if err != nil {
		return err
	}
	if out.Already {
		httpapi.JSON(c, http.StatusOK, struct {
			Already bool        `json:"already_on_plan"`
			Tier    access.Tier `json:"actual_tier"`
		}{true, out.New.Tier})
		return nil
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Current            access.Tier `json:"current_plan"`
		New                access.Tier `json:"new_plan"`
		Proration          int64       `json:"proration_amount"`
		ProrationFormatted string      `json:"proration_formatted"`
		Recurring          int64       `json:"new_recurring_price"`
		RecurringFormatted string      `json:"new_recurring_formatted"`
		IsUpgrade          bool        `json:"is_upgrade"`
		Charge             bool        `json:"immediate_charge"`
	}{
		out.Had.Tier, out.New.Tier, out.Proration.Amount, out.Proration.String(), out.Recurring.Amount, out.Recurring.String(),
		out.IsUpgrade, out.Charge,
	})
	return nil
}

func (h handler) startTrial(c *gin.Context) error {
	trial, err := h.svc.StartTrial(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Status   access.Status `json:"status"`
		Tier     access.Tier   `json:"tier"`
		TrialEnd int64         `json:"trial_end"`
	}{trial.Status, trial.Tier, trial.ValidUntil.Unix()})
	return nil
}

func (h handler) cancel(c *gin.Context) error {
	out, err := h.svc.Cancel(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	if out.Immediately {
		httpapi.JSON(c, http.StatusOK, struct {
			Status      access.Status `json:"status"`
			Immediately bool          `json:"canceled_immediately"`
		}{access.Inactive, true})
		return nil
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Status      access.Status `json:"status"`
		Immediately bool          `json:"canceled_immediately"`
		CancelAt    int64         `json:"cancel_at"`
		PeriodEnd   int64         `json:"current_period_end"`
	}{access.Canceling, false, out.EndsAt.Unix(), out.EndsAt.Unix()})
	return nil
}

func (h handler) portal(c *gin.Context) error {
	url, err := h.svc.Portal(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		URL string `json:"url"`
	}{url})
	return nil
}

// invoice is an invoice of the API.
type invoice struct {
	ID              string  `json:"id"`
	Date            int64   `json:"date"`
	Amount          int64   `json:"amount"`
	AmountFormatted string  `json:"amount_formatted"`
	Status          *string `json:"status"`
	Description     *string `json:"description"`
	PDF             *string `json:"invoice_pdf"`
	URL             *string `json:"hosted_invoice_url"`
}

type paymentMethod struct {
	Brand    string `json:"brand"`
	Last4    string `json:"last4"`
	ExpMonth int64  `json:"exp_month"`
	ExpYear  int64  `json:"exp_year"`
}

func (h handler) info(c *gin.Context) error {
	info, err := h.svc.Info(c.Request.Context(), authn.Actor(c))
	if err != nil {
		return err
	}
	out := struct {
		Invoices      []invoice      `json:"invoices"`
		PaymentMethod *paymentMethod `json:"payment_method"`
	}{Invoices: make([]invoice, 0, len(info.Invoices))}
	for _, in := range info.Invoices {
		out.Invoices = append(out.Invoices, invoice{
			ID: in.ID, Date: in.CreatedAt.Unix(), Amount: in.Amount,
			AmountFormatted: billing.Money{Amount: in.Amount, Currency: in.Currency}.String(),
			Status:          orNull(in.Status), Description: orNull(in.Description), PDF: orNull(in.PDF), URL: orNull(in.URL),
		})
	}
	if m := info.Method; m != nil {
		out.PaymentMethod = &paymentMethod{m.Brand, m.Last4, m.ExpMonth, m.ExpYear}
	}
	httpapi.JSON(c, http.StatusOK, out)
	return nil
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// receive processes a webhook event, which its signature authenticates. It has the
// default timeout of the engine, because the provider sends failed events again.
func (h handler) receive(c *gin.Context) error {
	raw, err := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	if err != nil {
		return err
	}
	signature := c.GetHeader("Stripe-Signature")
	if len(signature) > maxSignature {
		return apierr.New(apierr.InvalidToken, "The signature is not valid.")
	}
	ev, err := h.webhook.Event(raw, signature)
	if err != nil {
		return err
	}
	if err := h.svc.Take(context.WithoutCancel(c.Request.Context()), ev); err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		Received bool `json:"received"`
	}{true})
	return nil
}
