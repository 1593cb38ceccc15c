package waitlist

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ListedWaitlist is a waitlist in the list of those that the account may see.
type ListedWaitlist struct {
	ID          string    `json:"waitlist_id"`
	Name        string    `json:"name"`
	SignupCount int64     `json:"signup_count"`
	CreatedAt   time.Time `json:"created_at"`
	// Role is owner, admin or viewer; "" for callers that are in no team, and in the answer
	// to CreateWaitlist.
	Role string `json:"role"`
}

// Waitlist is a waitlist with all its settings.
type Waitlist struct {
	ID          string    `json:"waitlist_id"`
	Name        string    `json:"name"`
	Settings    Settings  `json:"settings"`
	SignupCount int64     `json:"signup_count"`
	CreatedAt   time.Time `json:"created_at"`
}

// Settings are the settings of a waitlist by the names of the REST interface, such as
// referral_boost. In a request, settings that are missing stay as they are.
type Settings map[string]any

// Signup is somebody on a waitlist, as its owner sees them.
type Signup struct {
	Email         string            `json:"email"`
	FirstName     string            `json:"first_name"`
	LastName      string            `json:"last_name"`
	Phone         string            `json:"phone"`
	Position      int64             `json:"position"`
	ReferralToken string            `json:"referral_token"`
	ReferralCount int64             `json:"referral_count"`
	ReferredBy    string            `json:"referred_by"`
	UTM           map[string]string `json:"utm"`
	Answers       map[string]any    `json:"custom_answers"`
	EmailVerified bool              `json:"email_verified"`
	EmailOptOut   bool              `json:"email_opt_out"`
	OptOutAt      *time.Time        `json:"email_opt_out_at"`
	// DeviceType is desktop, mobile, tablet or "".
	DeviceType string    `json:"device_type"`
	CreatedAt  time.Time `json:"created_at"`
	// Flagged says why the referral guard doubts the signup; "": it does not.
	Flagged string `json:"flagged"`
}

// Stats are the counters of a waitlist.
type Stats struct {
	TotalSignups    int64     `json:"total_signups"`
	ReferralSignups int64     `json:"referral_signups"`
	CreatedAt       time.Time `json:"created_at"`
}

// ImportRow is somebody to import.
type ImportRow struct {
	Email     string `json:"email"`
	FirstName string `json:"first_name,omitempty"`
	LastName  string `json:"last_name,omitempty"`
	Phone     string `json:"phone,omitempty"`
}

// Imported is the result of an import.
type Imported struct {
	Imported int64 `json:"imported"`
	Skipped  int64 `json:"skipped"`
	// Errors are the first 50 rows without a valid address; rows count from 1.
	Errors []struct {
		Row     int64  `json:"row"`
		Email   string `json:"email"`
		Message string `json:"error"`
	} `json:"errors"`
}

// Analytics are sums by day (2006-01-02, UTC).
type Analytics struct {
	Views           map[string]int64   `json:"views_by_day"`
	Signups         map[string]int64   `json:"signups_by_day"`
	ReferralSignups map[string]int64   `json:"referral_signups_by_day"`
	ConversionRates map[string]float64 `json:"conversion_rate_by_day"`
	TopReferrers    []struct {
		Email         string `json:"email"`
		FirstName     string `json:"first_name"`
		ReferralCount int64  `json:"referral_count"`
	} `json:"top_referrers"`
}

// UTMCount is how many signups came with a value.
type UTMCount struct {
	Value string `json:"value"`
	Count int64  `json:"count"`
}

// Origins are where signups came from, the most frequent first.
type Origins struct {
	Sources   []UTMCount `json:"by_source"`
	Mediums   []UTMCount `json:"by_medium"`
	Campaigns []UTMCount `json:"by_campaign"`
}

// CreateWaitlist makes a waitlist. settings may be nil.
func (c *Client) CreateWaitlist(ctx context.Context, name string, settings Settings) (ListedWaitlist, error) {
	body := map[string]any{"name": name}
	if settings != nil {
		body["settings"] = settings
	}
	return do[ListedWaitlist](ctx, c, request{method: http.MethodPost, path: path("waitlists"), body: body, key: true})
}

// Waitlists returns the waitlists that the account may see.
func (c *Client) Waitlists(ctx context.Context) ([]ListedWaitlist, error) {
	out, err := get[struct {
		Waitlists []ListedWaitlist `json:"waitlists"`
	}](ctx, c, path("waitlists"), nil)
	return out.Waitlists, err
}

// Waitlist returns a waitlist.
func (c *Client) Waitlist(ctx context.Context, id string) (Waitlist, error) {
	return get[Waitlist](ctx, c, path("waitlists", id), nil)
}

// ChangeWaitlist changes the name unless that is "", and the settings that are given.
func (c *Client) ChangeWaitlist(ctx context.Context, id, name string, settings Settings) (Waitlist, error) {
	body := map[string]any{}
	if name != "" {
		body["name"] = name
	}
	if settings != nil {
		body["settings"] = settings
	}
	return do[Waitlist](ctx, c, request{method: http.MethodPatch, path: path("waitlists", id), body: body, again: true})
}

// DeleteWaitlist deletes a waitlist with everything on it.
func (c *Client) DeleteWaitlist(ctx context.Context, id string) error {
	return c.delete(ctx, path("waitlists", id))
}

// Signups returns everybody on a waitlist in the order of the queue, a page of 100 at a
// time. Everybody who is on it throughout comes exactly once, whoever moves meanwhile.
// After an error the sequence ends.
func (c *Client) Signups(ctx context.Context, list string) iter.Seq2[Signup, error] {
	return func(yield func(Signup, error) bool) {
		query := url.Values{"limit": {"100"}}
		for {
			page, err := get[struct {
				Signups []Signup `json:"signups"`
				LastKey *string  `json:"last_key"`
			}](ctx, c, path("waitlists", list, "signups"), query)
			if err != nil {
				yield(Signup{}, err)
				return
			}
			for _, s := range page.Signups {
				if !yield(s, nil) {
					return
				}
			}
			if page.LastKey == nil {
				return
			}
			query.Set("last_key", *page.LastKey)
		}
	}
}

// RemoveSignup removes somebody from a waitlist.
func (c *Client) RemoveSignup(ctx context.Context, list, email string) error {
	return c.delete(ctx, path("waitlists", list, "signups", email))
}

// MoveSignup moves somebody to a position, 1 being the front, and returns where they
// stand then: at the end of a shorter queue.
func (c *Client) MoveSignup(ctx context.Context, list, email string, position int64) (int64, error) {
	out, err := do[struct {
		Position int64 `json:"position"`
	}](ctx, c, request{
		method: http.MethodPatch, path: path("waitlists", list, "signups", email, "position"),
		body: map[string]int64{"position": position}, again: true,
	})
	return out.Position, err
}

// CreditSignup gives the referrer of a signup the credit that was withheld.
func (c *Client) CreditSignup(ctx context.Context, list, email string) error {
	return c.call(ctx, request{
		method: http.MethodPatch, path: path("waitlists", list, "signups", email), body: map[string]bool{"credit": true}, again: true,
	}, nil)
}

// Stats returns the counters of a waitlist.
func (c *Client) Stats(ctx context.Context, list string) (Stats, error) {
	return get[Stats](ctx, c, path("waitlists", list, "stats"), nil)
}

// Export returns a waitlist as CSV. The caller reads and closes it; a body that ends
// early ends with an error.
func (c *Client) Export(ctx context.Context, list string) (io.ReadCloser, error) {
	res, err := c.send(ctx, request{method: http.MethodGet, path: path("waitlists", list, "export")})
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Import adds up to 100,000 people in the given order at the end of the queue. People
// who are on the list already are skipped, so that an import that failed midway can be
// sent again. After a lost answer, Skipped counts those whom the earlier attempt added.
func (c *Client) Import(ctx context.Context, list string, rows []ImportRow) (Imported, error) {
	return do[Imported](ctx, c, request{
		method: http.MethodPost, path: path("waitlists", list, "import"), body: map[string][]ImportRow{"signups": rows}, again: true,
	})
}

// Analytics returns sums of the last days: 7, 30 or 90.
func (c *Client) Analytics(ctx context.Context, list string, days int) (Analytics, error) {
	return get[Analytics](ctx, c, path("waitlists", list, "analytics"), url.Values{"range": {strconv.Itoa(days) + "d"}})
}

// Origins returns where the signups of a waitlist came from.
func (c *Client) Origins(ctx context.Context, list string) (Origins, error) {
	return get[Origins](ctx, c, path("waitlists", list, "analytics", "utm"), nil)
}
