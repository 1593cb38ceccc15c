package stripe

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	api "github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/webhook"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/billing"
)

const (
	// tolerance is how old a signature may be.
	tolerance = 300 * time.Second
	// maxID bounds what is kept of an event.
	maxID = 255
)

// Webhook tells Stripe's events from those of others.
type Webhook struct{ secrets []string }

// NewWebhook returns a Webhook for events signed with one of some secrets: two
// while one replaces the other.
func NewWebhook(secrets []string) (*Webhook, error) {
	if len(secrets) == 0 {
		return nil, errors.New("a signing secret is required")
	}
	for _, s := range secrets {
		if len(s) < 8 {
			return nil, errors.New("a signing secret must have 8 characters or more")
		}
	}
	return &Webhook{secrets}, nil
}

// Event reads an event as it was sent. INVALID_TOKEN where its signature is none
// of ours, or older than five minutes.
func (w *Webhook) Event(raw []byte, signature string) (billing.Event, error) {
	var ev api.Event
	var err error
	for _, secret := range w.secrets {
		ev, err = webhook.ConstructEventWithOptions(raw, signature, secret, webhook.ConstructEventOptions{
			// Only whom it is about is read, in which all versions agree.
			Tolerance: tolerance, IgnoreAPIVersionMismatch: true,
		})
		if err == nil {
			break
		}
	}
	if err != nil || ev.ID == "" || len(ev.ID) > maxID || ev.Data == nil {
		return billing.Event{}, apierr.New(apierr.InvalidToken, "The signature is not valid.").WithCause(err)
	}
	var about struct {
		Object   string          `json:"object"`
		ID       string          `json:"id"`
		Customer json.RawMessage `json:"customer"`
	}
	if err := json.Unmarshal(ev.Data.Raw, &about); err != nil {
		return billing.Event{}, apierr.New(apierr.InvalidToken, "The event is not understood.").WithCause(fmt.Errorf("read an event's object: %w", err))
	}
	out := billing.Event{ID: ev.ID, Type: string(ev.Type)}
	if about.Object == "customer" {
		out.CustomerID = about.ID
		return out, nil
	}
	// Either an id, or the customer as a whole.
	if json.Unmarshal(about.Customer, &out.CustomerID) != nil {
		var whole struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(about.Customer, &whole) == nil {
			out.CustomerID = whole.ID
		}
	}
	return out, nil
}
