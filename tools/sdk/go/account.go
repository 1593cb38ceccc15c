package waitlist

import (
	"context"
	"net/http"
	"time"
)

// Profile is the account of the credentials.
type Profile struct {
	Email     string `json:"email"`
	HasAPIKey bool   `json:"has_api_key"`
	// Tier is basic, advanced or pro; Status trialing, active, canceling or inactive.
	Tier         string     `json:"subscription_tier"`
	Status       string     `json:"subscription_status"`
	TrialEndsAt  *time.Time `json:"trial_ends_at"`
	HasUsedTrial bool       `json:"has_used_trial"`
}

// Member is a member of the account's team.
type Member struct {
	Email string `json:"email"`
	// Role is admin or viewer.
	Role      string    `json:"role"`
	InvitedAt time.Time `json:"invited_at"`
}

// Domain is a domain that mails are sent from.
type Domain struct {
	Name string `json:"domain"`
	// Status is pending, verified or failed.
	Status    string    `json:"verification_status"`
	CreatedAt time.Time `json:"created_at"`
}

// DNSRecord proves a domain.
type DNSRecord struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	Purpose string `json:"purpose"`
	// TTL is in seconds.
	TTL int `json:"ttl"`
}

// Profile returns the account.
func (c *Client) Profile(ctx context.Context) (Profile, error) {
	return get[Profile](ctx, c, path("auth", "me"), nil)
}

// Invite invites somebody into the account's team as admin or viewer.
// It is not sent again after a lost answer: somebody invited already is a DUPLICATE.
func (c *Client) Invite(ctx context.Context, email, role string) (Member, error) {
	return do[Member](ctx, c, request{
		method: http.MethodPost, path: path("team", "invite"), body: map[string]string{"email": email, "role": role},
	})
}

// Team returns the account's team.
func (c *Client) Team(ctx context.Context) ([]Member, error) {
	out, err := get[struct {
		Members []Member `json:"members"`
	}](ctx, c, path("team"), nil)
	return out.Members, err
}

// RemoveMember removes somebody from the team at once.
func (c *Client) RemoveMember(ctx context.Context, email string) error {
	return c.delete(ctx, path("team", email))
}

// AddDomain begins to verify a domain and returns the records that prove it.
func (c *Client) AddDomain(ctx context.Context, domain string) ([]DNSRecord, error) {
	var out struct {
		Records []DNSRecord `json:"dns_records"`
	}
	err := c.call(ctx, request{
		method: http.MethodPost, path: path("domains", "verify"), body: map[string]string{"domain": domain}, again: true,
	}, &out)
	return out.Records, err
}

// Domains returns the account's domains.
func (c *Client) Domains(ctx context.Context) ([]Domain, error) {
	out, err := get[struct {
		Domains []Domain `json:"domains"`
	}](ctx, c, path("domains"), nil)
	return out.Domains, err
}

// CheckDomain looks for a domain's records now and returns its status.
func (c *Client) CheckDomain(ctx context.Context, domain string) (status string, err error) {
	out, err := get[struct {
		Status string `json:"status"`
	}](ctx, c, path("domains", domain, "status"), nil)
	return out.Status, err
}

// RemoveDomain removes a domain.
func (c *Client) RemoveDomain(ctx context.Context, domain string) error {
	return c.delete(ctx, path("domains", domain))
}
