package resend

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	stdmail "net/mail"
	"strings"

	api "github.com/resend/resend-go/v3"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/services/messaging"
)

const (
	// minSecret is the shortest signing secret, in bytes.
	minSecret = 16
	// maxNotificationID bounds what is kept of a notification.
	maxNotificationID = 256
	// permanent is the type of bounces after which an address is given up.
	permanent = "permanent"
)

// Suppressor keeps addresses that are not to be mailed any more.
type Suppressor interface {
	// Suppress does so once for each notification.
	Suppress(ctx context.Context, notificationID string, reason messaging.SuppressionReason, emails []string) error
}

// Notifications takes what Resend tells of the mails it was given: addresses
// that bounced for good, and those of people who complained, get no mail any more.
type Notifications struct {
	webhooks api.WebhooksSvc
	secrets  []string
	store    Suppressor
}

// NewNotifications returns Notifications that are signed with one of some secrets
// (whsec_…): two while one replaces the other.
func NewNotifications(secrets []string, store Suppressor) (*Notifications, error) {
	if len(secrets) == 0 {
		return nil, errors.New("resend: a signing secret is required")
	}
	for _, s := range secrets {
		if key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_")); err != nil || len(key) < minSecret {
			return nil, errors.New("resend: a signing secret must be whsec_ and at least 16 bytes in base64")
		}
	}
	return &Notifications{webhooks: api.NewClient("").Webhooks, secrets: secrets, store: store}, nil
}

// notification is what counts of one.
type notification struct {
	Type string `json:"type"`
	Data struct {
		To     []string `json:"to"`
		Bounce struct {
			Type string `json:"type"`
		} `json:"bounce"`
	} `json:"data"`
}

// Take takes one notification, as it was sent. One that is not signed with our
// secret, or not within the last five minutes, is INVALID_TOKEN. The same one again
// does nothing.
func (n *Notifications) Take(ctx context.Context, header http.Header, raw []byte) error {
	id := header.Get("Svix-Id")
	if len(id) > maxNotificationID || !n.signed(id, header, raw) {
		return apierr.New(apierr.InvalidToken, "The signature is not valid.")
	}
	var sent notification
	if err := json.Unmarshal(raw, &sent); err != nil {
		return apierr.New(apierr.InvalidBody, "The body is no notification.").WithCause(err)
	}
	var reason messaging.SuppressionReason
	switch {
	case sent.Type == api.EventEmailComplained:
		reason = messaging.Complained
	case sent.Type == api.EventEmailBounced && strings.EqualFold(sent.Data.Bounce.Type, permanent):
		reason = messaging.Bounced
	default:
		return nil
	}
	var emails []string
	for _, to := range sent.Data.To {
		a, err := stdmail.ParseAddress(to)
		if err != nil {
			continue // we sent nothing to such a one
		}
		if email, err := emailaddr.Parse(a.Address); err == nil {
			emails = append(emails, email)
		}
	}
	if len(emails) == 0 {
		return nil
	}
	if err := n.store.Suppress(ctx, id, reason, emails); err != nil {
		return fmt.Errorf("take a notification: %w", err)
	}
	return nil
}

func (n *Notifications) signed(id string, header http.Header, raw []byte) bool {
	for _, secret := range n.secrets {
		if n.webhooks.Verify(&api.VerifyWebhookOptions{
			Payload: string(raw), WebhookSecret: secret,
			Headers: api.WebhookHeaders{Id: id, Timestamp: header.Get("Svix-Timestamp"), Signature: header.Get("Svix-Signature")},
		}) == nil {
			return true
		}
	}
	return false
}
