package stripe

import (
	"encoding/json"
	"errors"
	"time"

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

// Event verifies and parses the raw body of an event, of any version of Stripe's API: it
// reads only what they share. It returns INVALID_TOKEN if the signature does not match or
// is older than five minutes, and INVALID_BODY if it signs no event.
func (w *Webhook) Event(raw []byte, signature string) (billing.Event, error) {
	var err error
	for _, secret := range w.secrets {
		if err = webhook.ValidatePayloadWithTolerance(raw, signature, secret, tolerance); err == nil {
			break
		}
	}
	if err != nil {
		return billing.Event{}, apierr.New(apierr.InvalidToken, "The signature is not valid.").WithCause(err)
	}
	var ev struct {
		ID   string `json:"id"`
		Type string `json:"type"`
		Data *struct {
			Object struct {
				Object   string          `json:"object"`
				ID       string          `json:"id"`
				Customer json.RawMessage `json:"customer"`
			} `json:"object"`
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &ev); err != nil || ev.ID == "" || len(ev.ID) > maxID || ev.Data == nil {
		return billing.Event{}, apierr.New(apierr.InvalidBody, "The body is not an event.").WithCause(err)
	}
	about := ev.Data.Object
	out := billing.Event{ID: ev.ID, Type: ev.Type}
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
