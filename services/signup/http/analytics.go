package http

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	analyticsv1 "waitlist.internal/proto/gen/waitlist/analytics/v1"
)

// series holds a waitlist's analytics by day, each map with every day of the range.
type series struct {
	WaitlistID      string             `json:"waitlist_id"`
	Range           string             `json:"range"`
	Views           map[string]int64   `json:"views_by_day"`
	Signups         map[string]int64   `json:"signups_by_day"`
	ReferralSignups map[string]int64   `json:"referral_signups_by_day"`
	ConversionRate  map[string]float64 `json:"conversion_rate_by_day"`
	TopReferrers    []referrer         `json:"top_referrers"`
}

// referrer is a signup that referred others.
type referrer struct {
	Email         string `json:"email"`
	FirstName     string `json:"first_name"`
	ReferralCount int64  `json:"referral_count"`
}

func (h ownersHandler) series(c *gin.Context) error {
	a, err := h.Admin.Analytics(c.Request.Context(), authn.Actor(c), c.Param(paramID), httpapi.Query(c, "range"))
	if err != nil {
		return err
	}
	res, err := h.Analytics.GetSeries(c.Request.Context(), &analyticsv1.GetSeriesRequest{WaitlistId: a.WaitlistID, Days: a.Days})
	if err != nil {
		return err
	}
	out := series{
		WaitlistID: a.WaitlistID, Range: a.Range,
		Views: make(map[string]int64, a.Days), Signups: make(map[string]int64, a.Days),
		ReferralSignups: make(map[string]int64, a.Days), ConversionRate: make(map[string]float64, a.Days),
		TopReferrers: make([]referrer, 0, len(a.TopReferrers)),
	}
	for _, d := range res.GetDays() {
		out.Views[d.GetDay()], out.Signups[d.GetDay()], out.ReferralSignups[d.GetDay()] = d.GetViews(), d.GetSignups(), d.GetReferralSignups()
		out.ConversionRate[d.GetDay()] = d.GetConversionRate()
	}
	for _, r := range a.TopReferrers {
		out.TopReferrers = append(out.TopReferrers, referrer(r))
	}
	httpapi.JSON(c, http.StatusOK, out)
	return nil
}

type origin struct {
	Value string `json:"value"`
	Count int64  `json:"count"`
}

func (h ownersHandler) origins(c *gin.Context) error {
	id, err := h.Admin.Origins(c.Request.Context(), authn.Actor(c), c.Param(paramID))
	if err != nil {
		return err
	}
	res, err := h.Analytics.GetOrigins(c.Request.Context(), &analyticsv1.GetOriginsRequest{WaitlistId: id})
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		WaitlistID string   `json:"waitlist_id"`
		BySource   []origin `json:"by_source"`
		ByMedium   []origin `json:"by_medium"`
		ByCampaign []origin `json:"by_campaign"`
	}{id, originsOf(res.GetSources()), originsOf(res.GetMediums()), originsOf(res.GetCampaigns())})
	return nil
}

func originsOf(in []*analyticsv1.Origin) []origin {
	out := make([]origin, len(in))
	for i, o := range in {
		out[i] = origin{o.GetValue(), o.GetCount()}
	}
	return out
}
