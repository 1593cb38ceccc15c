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
	// tolerance is the maximum age of a signature.
	tolerance = 300 * time.Second
	// maxID bounds the bytes of an event's id.
	maxID = 255
)

// Webhook verifies and parses Stripe's events.
type Webhook struct{ secrets []string }

// NewWebhook returns a Webhook that accepts events signed with any of the secrets.
// There are two during a rotation.
func NewWebhook(secrets []string) (*Webhook, error) {
	if len(secrets) == 0 {
		return nil, errors.New("there is no signing secret")
	}
	for _, s := range secrets {
		if len(s) < 8 {
			return nil, errors.New("a signing secret has fewer than 8 characters")
		}
	}
	return &Webhook{secrets}, nil
}

// Event verifies and parses the raw body of an event. It returns INVALID_TOKEN if the
// signature does not match, is older than five minutes, or signs no valid event.
func (w *Webhook) Event(raw []byte, signature string) (billing.Event, error) {
	var ev api.Event
	var err error
	for _, secret := range w.secrets {
		ev, err = webhook.ConstructEventWithOptions(raw, signature, secret, webhook.ConstructEventOptions{
			// Event reads only the customer, which is the same in all API versions.
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
		return billing.Event{}, apierr.New(apierr.InvalidToken, "The event has no valid object.").
			WithCause(fmt.Errorf("parse an event's object: %w", err))
	}
	out := billing.Event{ID: ev.ID, Type: string(ev.Type)}
	if about.Object == "customer" {
		out.CustomerID = about.ID
		return out, nil
	}
	// The customer is either an id or an expanded object.
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
