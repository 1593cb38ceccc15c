package http

import (
	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
)

// OwnersRoutes adds /v1/waitlists to an engine of package httpapi.
func OwnersRoutes(e gin.IRouter, b Backends) {
	h := ownersHandler{b}
	g := e.Group("/v1/waitlists", authn.Middleware(b.Accounts))
	g.POST("", httpapi.H(h.create))
	g.GET("", httpapi.H(h.list))
	g.GET("/:waitlist_id", httpapi.H(h.get))
	g.PATCH("/:waitlist_id", httpapi.H(h.update))
	g.DELETE("/:waitlist_id", httpapi.H(h.remove))
	g.GET("/:waitlist_id/signups", httpapi.H(h.listSignups))
	g.DELETE("/:waitlist_id/signups/:email", httpapi.H(h.removeSignup))
	g.PATCH("/:waitlist_id/signups/:email", httpapi.H(h.creditSignup))
	g.PATCH("/:waitlist_id/signups/:email/position", httpapi.H(h.moveSignup))
	g.GET("/:waitlist_id/stats", httpapi.H(h.stats))
	g.GET("/:waitlist_id/analytics", httpapi.H(h.series))
	g.GET("/:waitlist_id/analytics/utm", httpapi.H(h.origins))
	g.POST("/:waitlist_id/blasts", httpapi.Timeout(blastTimeout), httpapi.H(h.createBlast))
	g.GET("/:waitlist_id/blasts", httpapi.H(h.listBlasts))
	transferHandler{
		accounts: b.Accounts, transfers: b.Admin, stall: stallTimeout, recheck: recheckEvery,
	}.routes(e)
}
