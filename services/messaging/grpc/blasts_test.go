package grpc_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/testenv"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/grpc"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
)

// three is a waitlist with three people.
type three struct {
	blasts.Lists
	waitlistID string
}

// Numbers implements blasts.Lists.
func (l three) Numbers(_ context.Context, waitlistID string, after int64, limit int) ([]int64, error) {
	if waitlistID != l.waitlistID || after > 0 {
		return nil, apierr.NotFoundf("There is no such waitlist.")
	}
	return []int64{1, 2, 3}[:min(limit, 3)], nil
}

// TestBlasts: every field of a request has its effect.
func TestBlasts(t *testing.T) {
	t.Parallel()
	const (
		list, owner = "0193d4a2-5c1e-7a41-8000-00000000000a", "0193d4a2-5c1e-7a41-8000-00000000000b"
		account     = "0193d4a2-5c1e-7a41-8000-00000000000c"
	)
	ctx, pool := t.Context(), testenv.Migrated(t, messaging.Name, 2, postgres.Migrations)
	srv := grpc.NewServer(blasts.New(blasts.Config{
		Store: postgres.NewBlasts(pool, time.Now), Lists: three{waitlistID: list}, Limits: mails.Limits{MailsPerOwner: 5, MailsOnTrial: 2},
		Wake: func() {}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Wait: time.Millisecond,
	}), nil)
	request := func(trial bool, key, fingerprint string) *messagingv1.CreateBlastRequest {
		return &messagingv1.CreateBlastRequest{
			WaitlistId: list, OwnerId: owner, Trial: trial, AccountId: account, CredentialId: "KEY", Role: accessv1.Role_ROLE_ADMIN,
			Subject: "News", HtmlBody: "<p>Live", TextBody: "Live", IdempotencyKey: key, Fingerprint: []byte(fingerprint),
		}
	}
	if _, err := srv.CreateBlast(ctx, request(true, "", "")); !apierr.Is(err, apierr.RateLimited) {
		t.Errorf("too many for a trial: %v", err)
	}
	res, err := srv.CreateBlast(ctx, request(false, "key", "a"))
	if err != nil || res.GetReplayed() {
		t.Fatal(res, err)
	}
	id := res.GetBlast().GetBlastId()
	again, err := srv.CreateBlast(ctx, request(false, "key", "a"))
	if err != nil || !again.GetReplayed() || again.GetBlast().GetBlastId() != id {
		t.Errorf("the same: %v, %v", again, err)
	}
	if _, err := srv.CreateBlast(ctx, request(false, "key", "b")); !apierr.Is(err, apierr.Conflict) {
		t.Errorf("another with its key: %v", err)
	}
	var stored string
	if err := pool.QueryRow(ctx, `SELECT concat_ws(' ', waitlist_id, owner_id, subject, html_body, text_body) FROM blast WHERE id = $1`, id).
		Scan(&stored); err != nil || stored != list+" "+owner+" News <p>Live Live" {
		t.Errorf("stored: %q, %v", stored, err)
	}
	trail, err := (&audit.Table{Pool: pool}).Entries(ctx, audit.Query{OwnerID: owner, Limit: 9})
	if err != nil || len(trail) != 1 {
		t.Fatal(trail, err)
	}
	e := trail[0]
	if e.Actor != account || e.Credential != "KEY" || e.Role != access.Admin || e.Action != audit.BlastCreated || e.Target != id {
		t.Errorf("audit: %+v", e)
	}
	got, err := srv.ListBlasts(ctx, &messagingv1.ListBlastsRequest{WaitlistId: list})
	if err != nil || len(got.GetBlasts()) != 1 || got.GetBlasts()[0].GetBlastId() != id || got.GetBlasts()[0].GetSubject() != "News" {
		t.Errorf("list: %v, %v", got, err)
	}
}
