package waitlist

import (
	"context"
	"net/http"
	"time"
)

// NewBlast is a mail to everybody on a waitlist who has not opted out. It needs a body.
type NewBlast struct {
	Subject string `json:"subject"`
	HTML    string `json:"html_body,omitempty"`
	Text    string `json:"text_body,omitempty"`
}

// Blast is a mail to a waitlist and how far it is.
type Blast struct {
	ID         string    `json:"blast_id"`
	Subject    string    `json:"subject"`
	SentAt     time.Time `json:"sent_at"`
	Recipients int64     `json:"recipient_count"`
	Failed     int64     `json:"failed_count"`
	// Status is queued, sending, sent or failed.
	Status string `json:"status"`
}

// NewTemplate is the content of a template. In a change, empty fields stay as they are.
type NewTemplate struct {
	// Type is signup_confirmation, referral_milestone, offboarding or blast.
	Type    string `json:"template_type,omitempty"`
	Name    string `json:"name,omitempty"`
	Subject string `json:"subject_template,omitempty"`
	HTML    string `json:"html_body_template,omitempty"`
	Text    string `json:"text_body_template,omitempty"`
}

// Template is a template of mails. Lists leave out the bodies.
type Template struct {
	ID        string    `json:"template_id"`
	Type      string    `json:"template_type"`
	Name      string    `json:"name"`
	Subject   string    `json:"subject_template"`
	HTML      string    `json:"html_body_template"`
	Text      string    `json:"text_body_template"`
	CreatedAt time.Time `json:"created_at"`
}

// SendBlast sends a mail to a waitlist. It returns at once; Blasts shows how far it is.
func (c *Client) SendBlast(ctx context.Context, list string, b NewBlast) (Blast, error) {
	out, err := do[Blast](ctx, c, request{method: http.MethodPost, path: path("waitlists", list, "blasts"), body: b, key: true})
	out.Subject = b.Subject
	return out, err
}

// Blasts returns the blasts to a waitlist.
func (c *Client) Blasts(ctx context.Context, list string) ([]Blast, error) {
	out, err := get[struct {
		Blasts []Blast `json:"blasts"`
	}](ctx, c, path("waitlists", list, "blasts"), nil)
	return out.Blasts, err
}

// CreateTemplate makes a template. It is not sent again after a lost connection, since
// that might make two.
func (c *Client) CreateTemplate(ctx context.Context, t NewTemplate) (Template, error) {
	return do[Template](ctx, c, request{method: http.MethodPost, path: path("templates"), body: t})
}

// Templates returns the account's templates without their bodies.
func (c *Client) Templates(ctx context.Context) ([]Template, error) {
	out, err := get[struct {
		Templates []Template `json:"templates"`
	}](ctx, c, path("templates"), nil)
	return out.Templates, err
}

// Template returns a template with its bodies.
func (c *Client) Template(ctx context.Context, id string) (Template, error) {
	return get[Template](ctx, c, path("templates", id), nil)
}

// ChangeTemplate changes the fields that are not empty.
func (c *Client) ChangeTemplate(ctx context.Context, id string, t NewTemplate) error {
	return c.call(ctx, request{method: http.MethodPatch, path: path("templates", id), body: t, again: true}, nil)
}

// DeleteTemplate deletes a template. Waitlists that used it stop sending its mails.
func (c *Client) DeleteTemplate(ctx context.Context, id string) error {
	return c.delete(ctx, path("templates", id))
}
