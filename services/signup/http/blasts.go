package http

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/rpc"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
)

const (
	// blastTimeout bounds a request for a blast: messaging answers within five seconds, and
	// other calls precede it.
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

// newBlast is the response to POST.
type newBlast struct {
	BlastID        string `json:"blast_id"`
	RecipientCount int64  `json:"recipient_count"`
	FailedCount    int64  `json:"failed_count"`
	Status         string `json:"status"`
}

func (h ownersHandler) createBlast(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		b, err := h.Admin.Blast(c.Request.Context(), authn.Actor(c), c.Param(paramID), raw)
		if err != nil {
			return err
		}
		res, err := h.Messaging.CreateBlast(c.Request.Context(), &messagingv1.CreateBlastRequest{
			WaitlistId: b.WaitlistID, OwnerId: b.OwnerID, Trial: b.Trial,
			AccountId: b.AccountID, CredentialId: b.CredentialID, Role: accessv1.Role(b.Role),
			Subject: b.Subject, HtmlBody: b.HTML, TextBody: b.Text,
			IdempotencyKey: idempotencyKey(c), Fingerprint: b.Fingerprint,
		}, rpc.Deadline(blastCall))
		if err != nil {
			return err
		}
		if res.GetReplayed() {
			c.Header("Idempotent-Replayed", "true")
		}
		made := res.GetBlast()
		httpapi.JSON(c, http.StatusOK, newBlast{
			BlastID: made.GetBlastId(), RecipientCount: made.GetRecipientCount(), FailedCount: made.GetFailedCount(), Status: made.GetStatus(),
		})
		return nil
	})
}

func (h ownersHandler) listBlasts(c *gin.Context) error {
	id, err := h.Admin.Blasts(c.Request.Context(), authn.Actor(c), c.Param(paramID))
	if err != nil {
		return err
	}
	res, err := h.Messaging.ListBlasts(c.Request.Context(), &messagingv1.ListBlastsRequest{WaitlistId: id})
	if err != nil {
		return err
	}
	out := make([]blast, len(res.GetBlasts()))
	for i, b := range res.GetBlasts() {
		out[i] = blast{
			BlastID: b.GetBlastId(), Subject: b.GetSubject(), SentAt: formatTime(b.GetSentAt().AsTime()),
			RecipientCount: b.GetRecipientCount(), FailedCount: b.GetFailedCount(), Status: b.GetStatus(),
		}
	}
	httpapi.JSON(c, http.StatusOK, map[string][]blast{"blasts": out})
	return nil
}
