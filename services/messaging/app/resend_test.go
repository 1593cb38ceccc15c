package app_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/providers/resendtest"
)

func TestMailsGoThroughResend(t *testing.T) {
	cfg, _, env := environ(t)
	api := &resendtest.Server{APIKey: "re_key"}
	h := httptest.NewServer(api)
	defer h.Close()
	a, _ := start(
		t,
		append(
			env,
			"MAIL_PROVIDER=resend",
			"RESEND_API_KEY=re_key",
			"RESEND_URL="+h.URL,
			"MAIL_FROM=Waitlist <no-reply@example.org>",
			"RESEND_WEBHOOK_SECRETS="+resendtest.Secret,
		),
	)
	w := kafka.NewWriter(cfg)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	ev := message(
		t,
		kafka.AccountsTopic,
		&eventv1.Event{Payload: &eventv1.Event_PasswordResetRequested{PasswordResetRequested: &eventv1.PasswordResetRequested{
			AccountId: uuid.NewString(), Email: "owner@example.com", Generation: 1, ExpiresAt: timestamppb.New(time.Now().Add(time.Hour)),
		}}},
	)
	testenv.Eventually(t, "written", func() bool { return w.WriteMessages(t.Context(), ev) == nil })
	testenv.Eventually(t, "a mail", func() bool { return len(api.Emails()) > 0 })
	if got := api.Emails()[0]; got.To[0] != "owner@example.com" || got.From != `"Waitlist" <no-reply@example.org>` ||
		got.Subject != "Reset your password" ||
		got.HTML == "" ||
		got.Text == "" {
		t.Errorf("%+v", got)
	}
	for _, tc := range []struct {
		secret string
		status int
	}{{resendtest.Secret, http.StatusNoContent}, {"whsec_bm90IG91cnMgYXQgYWxsLCBidXQgbG9uZyBlbm91Z2g=", http.StatusBadRequest}} {
		r, err := resendtest.Notification(
			"/v1/domains/notifications/resend",
			tc.secret,
			"msg_1",
			"email.bounced",
			"Permanent",
			time.Now(),
			"gone@example.com",
		)
		if err != nil {
			t.Fatal(err)
		}
		rec := httptest.NewRecorder()
		a.Handler().ServeHTTP(rec, r.WithContext(t.Context()))
		if rec.Code != tc.status {
			t.Errorf("%d %s, want %d", rec.Code, rec.Body, tc.status)
		}
	}
}
