package notifier

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// timeLayout is the API's format: UTC with milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z"

// discordColor is #6366f1 as a decimal number.
const discordColor = 6513393

// url returns the URL for d, or the reason why d is not sent.
func (n Notice) url(d Delivery) (url, why string) {
	switch {
	case n.URLs[d.Channel] == "":
		return "", "channel is off"
	case d.Channel == Webhook && !slices.Contains(n.WebhookEvents, d.Event):
		return "", "event is off"
	}
	return n.URLs[d.Channel], ""
}

// message returns the request body of d.
func message(d Delivery, n Notice) ([]byte, error) {
	var body any
	switch {
	case d.Channel == Webhook:
		body = webhookMessage(d, n)
	case d.Channel == Slack && d.Event == SignupCreated:
		body = slackMessage(d, n)
	case d.Channel == Discord && d.Event == SignupCreated:
		body = discordMessage(d, n)
	default:
		return nil, fmt.Errorf("no message for %s on %s", d.Event, d.Channel)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

func timestamp(t time.Time) string { return t.UTC().Format(timeLayout) }

type webhookBody struct {
	Event      Event  `json:"event"`
	WaitlistID string `json:"waitlist_id"`
	Timestamp  string `json:"timestamp"`
	Data       any    `json:"data"`
}

type createdData struct {
	Email         string `json:"email"`
	FirstName     string `json:"first_name"`
	LastName      string `json:"last_name"`
	Position      int64  `json:"position"`
	ReferralToken string `json:"referral_token"`
}

type creditedData struct {
	Email         string `json:"email"`
	ReferralCount int64  `json:"referral_count"`
	Position      int64  `json:"position"`
}

func webhookMessage(d Delivery, n Notice) webhookBody {
	b := webhookBody{Event: d.Event, WaitlistID: d.WaitlistID, Timestamp: timestamp(d.OccurredAt)}
	if d.Event == ReferralCredited {
		b.Data = creditedData{Email: n.Email, ReferralCount: d.ReferralCount, Position: n.Position}
	} else {
		b.Data = createdData{Email: n.Email, FirstName: n.FirstName, LastName: n.LastName, Position: d.Position, ReferralToken: n.ReferralToken}
	}
	return b
}

type slackText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type slackBlock struct {
	Type string    `json:"type"`
	Text slackText `json:"text"`
}

type slackBody struct {
	Text   string       `json:"text"`
	Blocks []slackBlock `json:"blocks"`
}

func slackMessage(d Delivery, n Notice) slackBody {
	email := escapeSlack(n.Email)
	return slackBody{
		Text: fmt.Sprintf("New signup on waitlist %s: %s", d.WaitlistID, email),
		Blocks: []slackBlock{{Type: "section", Text: slackText{
			Type: "mrkdwn",
			Text: fmt.Sprintf("*New Signup*\nWaitlist: %s\nEmail: %s\nPosition: #%d", d.WaitlistID, email, d.Position),
		}}},
	}
}

type discordEmbed struct {
	Title       string `json:"title"`
	Description string `json:"description"`
	Color       int    `json:"color"`
	Timestamp   string `json:"timestamp"`
}

type discordBody struct {
	Embeds []discordEmbed `json:"embeds"`
}

func discordMessage(d Delivery, n Notice) discordBody {
	return discordBody{Embeds: []discordEmbed{{
		Title:       "New Signup",
		Description: fmt.Sprintf("Email: %s\nPosition: #%d", escapeDiscord(n.Email), d.Position),
		Color:       discordColor, Timestamp: timestamp(d.OccurredAt),
	}}}
}

// escapeSlack replaces the three characters that begin Slack's markup, links and
// mentions by entities. Slack has no other entities.
func escapeSlack(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}

// escapeDiscord puts a backslash before each character that may begin Markdown or a
// mention in an embed. The @ of an address begins neither there.
func escapeDiscord(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune("\\*_~`|<[", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
