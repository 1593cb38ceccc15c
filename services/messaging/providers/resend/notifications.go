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
	"waitlist.internal/services/messaging/mails"
)

const (
	// minSecret is the shortest signing secret, in bytes.
	minSecret = 16
	// maxNotificationID limits the length of a notification's id, which is stored.
	maxNotificationID = 256
	// permanent is the type of bounces that suppress an address.
	permanent = "permanent"
)

// Suppressor stores suppressed addresses.
type Suppressor interface {
	// Suppress suppresses addresses, once per notification.
	Suppress(ctx context.Context, notificationID string, reason mails.SuppressionReason, emails []string) error
}

// Notifications processes Resend's notifications: it suppresses addresses that bounce permanently, and
// addresses of people who complain.
type Notifications struct {
	webhooks api.WebhooksSvc
	secrets  []string
	store    Suppressor
}

// NewNotifications returns Notifications that accept signatures by any of secrets (whsec_…), so that a
// secret can be replaced.
func NewNotifications(secrets []string, store Suppressor) (*Notifications, error) {
	if len(secrets) == 0 {
		return nil, errors.New("set at least one signing secret")
	}
	for _, s := range secrets {
		if key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_")); err != nil || len(key) < minSecret {
			return nil, errors.New("write each signing secret as whsec_ followed by at least 16 bytes in base64")
		}
	}
	return &Notifications{webhooks: api.NewClient("").Webhooks, secrets: secrets, store: store}, nil
}

// notification contains the relevant fields of a notification.
type notification struct {
	Type string `json:"type"`
	Data struct {
		To     []string `json:"to"`
		Bounce struct {
			Type string `json:"type"`
		} `json:"bounce"`
	} `json:"data"`
}

// Take processes one notification. The error is INVALID_TOKEN unless it was signed with one of the
// secrets within the last five minutes. A repeated notification has no effect.
func (n *Notifications) Take(ctx context.Context, header http.Header, raw []byte) error {
	id := header.Get("Svix-Id")
	if len(id) > maxNotificationID || !n.signed(id, header, raw) {
		return apierr.New(apierr.InvalidToken, "The signature is not valid.")
	}
	var sent notification
	if err := json.Unmarshal(raw, &sent); err != nil {
		return apierr.New(apierr.InvalidBody, "The body is not a notification.").WithCause(err)
	}
	var reason mails.SuppressionReason
	switch {
	case sent.Type == api.EventEmailComplained:
		reason = mails.Complained
	case sent.Type == api.EventEmailBounced && strings.EqualFold(sent.Data.Bounce.Type, permanent):
		reason = mails.Bounced
	default:
		return nil
	}
	var emails []string
	for _, to := range sent.Data.To {
		a, err := stdmail.ParseAddress(to)
		if err != nil {
			continue // not an address that we send to
		}
		if email, err := emailaddr.Parse(a.Address); err == nil {
			emails = append(emails, email)
		}
	}
	if len(emails) == 0 {
		return nil
	}
	if err := n.store.Suppress(ctx, id, reason, emails); err != nil {
		return fmt.Errorf("store a notification: %w", err)
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
