package http

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/rpc"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
)

const (
	// blastTimeout bounds a request for a blast: the messaging service answers within
	// five seconds, and other calls precede it.
	blastTimeout = 10 * time.Second
	// blastCall bounds the call to messaging within it.
	blastCall = 9 * time.Second
)

// blast is a blast in the list.
type blast struct {
	BlastID        string `json:"blast_id"`
	Subject        string `json:"subject"`
	SentAt         string `json:"sent_at"`
	RecipientCount int64  `json:"recipient_count"`
	FailedCount    int64  `json:"failed_count"`
	Status         string `json:"status"`
}

// newBlast is a blast in the response to POST.
type newBlast struct {
	BlastID        string `json:"blast_id"`
	RecipientCount int64  `json:"recipient_count"`
	FailedCount    int64  `json:"failed_count"`
	Status         string `json:"status"`
}

// blastRoutes adds the routes of blasts to the waitlists' group.
func (h handler) blastRoutes(g gin.IRouter) {
	g.POST("/:waitlist_id/blasts", httpapi.Timeout(blastTimeout), httpapi.H(h.createBlast))
	g.GET("/:waitlist_id/blasts", httpapi.H(h.listBlasts))
}

func (h handler) createBlast(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	raw, unread := httpapi.ReadBody(c, httpapi.DefaultBodyLimit)
	res, err := h.messaging.CreateBlast(c.Request.Context(), &messagingv1.CreateBlastRequest{
		Actor: authn.Actor(c).Proto(), WaitlistId: id, IdempotencyKey: header(c, "Idempotency-Key"), Body: raw,
	}, rpc.Deadline(blastCall))
	if err != nil {
		return bodyError(err, unread)
	}
	if res.GetReplayed() {
		c.Header("Idempotent-Replayed", "true")
	}
	b := res.GetBlast()
	httpapi.JSON(c, http.StatusOK, newBlast{
		BlastID: b.GetBlastId(), RecipientCount: b.GetRecipientCount(), FailedCount: b.GetFailedCount(), Status: b.GetStatus(),
	})
	return nil
}

func (h handler) listBlasts(c *gin.Context) error {
	id, err := waitlistID(c)
	if err != nil {
		return err
	}
	res, err := h.messaging.ListBlasts(c.Request.Context(), &messagingv1.ListBlastsRequest{Actor: authn.Actor(c).Proto(), WaitlistId: id})
	if err != nil {
		return err
	}
	out := make([]blast, len(res.GetBlasts()))
	for i, b := range res.GetBlasts() {
		out[i] = blast{
			BlastID: b.GetBlastId(), Subject: b.GetSubject(), SentAt: timestamp(b.GetSentAt()),
			RecipientCount: b.GetRecipientCount(), FailedCount: b.GetFailedCount(), Status: b.GetStatus(),
		}
	}
	httpapi.JSON(c, http.StatusOK, map[string][]blast{"blasts": out})
	return nil
}
