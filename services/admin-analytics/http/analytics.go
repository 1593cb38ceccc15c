package http

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
)

// analyticsRoutes adds the routes of analytics to the waitlists' group.
func (h handler) analyticsRoutes(g gin.IRouter) {
	g.GET("/:waitlist_id/analytics", httpapi.H(h.series))
	g.GET("/:waitlist_id/analytics/utm", httpapi.H(h.origins))
}

// series has a waitlist's sums by date.
type series struct {
	WaitlistID      string             `json:"waitlist_id"`
	Range           string             `json:"range"`
	Views           map[string]int64   `json:"views_by_day"`
	Signups         map[string]int64   `json:"signups_by_day"`
	ReferralSignups map[string]int64   `json:"referral_signups_by_day"`
	ConversionRate  map[string]float64 `json:"conversion_rate_by_day"`
	TopReferrers    []referrer         `json:"top_referrers"`
}

type referrer struct {
	Email         string `json:"email"`
	FirstName     string `json:"first_name"`
	ReferralCount int64  `json:"referral_count"`
}

func (h handler) series(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	req := &signupv1.AuthorizeAnalyticsRequest{Actor: authn.Actor(c).Proto(), WaitlistId: id, Referrers: adminanalytics.TopReferrers}
	word, days, ok := adminanalytics.ParseRange(httpapi.Query(c, "range"))
	if !ok {
		req.InvalidParameter, req.InvalidMessage = "range", "Choose 7d, 30d or 90d."
	}
	res, err := h.signups.AuthorizeAnalytics(c.Request.Context(), req)
	if err != nil {
		return err
	}
	list, err := h.analytics.Series(c.Request.Context(), id, days)
	if err != nil {
		return err
	}
	out := series{
		WaitlistID: id, Range: word,
		Views: make(map[string]int64, days), Signups: make(map[string]int64, days),
		ReferralSignups: make(map[string]int64, days), ConversionRate: make(map[string]float64, days),
		TopReferrers: make([]referrer, 0, len(res.GetTopReferrers())),
	}
	for _, d := range list {
		date := d.Day.Format(time.DateOnly)
		out.Views[date], out.Signups[date], out.ReferralSignups[date] = d.Views, d.Signups, d.ReferralSignups
		out.ConversionRate[date] = d.Conversion()
	}
	for _, r := range res.GetTopReferrers() {
		out.TopReferrers = append(out.TopReferrers, referrer{r.GetEmail(), r.GetFirstName(), r.GetReferralCount()})
	}
	httpapi.JSON(c, http.StatusOK, out)
	return nil
}

// origin is a value of a UTM field.
type origin struct {
	Value string `json:"value"`
	Count int64  `json:"count"`
}

func (h handler) origins(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	if _, err := h.signups.AuthorizeAnalytics(c.Request.Context(), &signupv1.AuthorizeAnalyticsRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id,
	}); err != nil {
		return err
	}
	o, err := h.analytics.Origins(c.Request.Context(), id)
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		WaitlistID string   `json:"waitlist_id"`
		BySource   []origin `json:"by_source"`
		ByMedium   []origin `json:"by_medium"`
		ByCampaign []origin `json:"by_campaign"`
	}{id, shownOrigins(o.Sources), shownOrigins(o.Mediums), shownOrigins(o.Campaigns)})
	return nil
}

// shownOrigins returns an empty list, which is not null in JSON, for no origins.
func shownOrigins(in []adminanalytics.Origin) []origin {
	out := make([]origin, len(in))
	for i, o := range in {
		out[i] = origin(o)
	}
	return out
}
