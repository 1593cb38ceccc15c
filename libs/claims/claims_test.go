package claims_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/claims"
	"waitlist.internal/libs/claims/claimstest"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/testenv"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// as returns what a service asks with, at the service that target names.
func as(t *testing.T, id *rpc.Identity, callee, target string) claims.Owners {
	t.Helper()
	conn, err := rpc.Dial(target, id, callee)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	switch callee {
	case "account":
		return claims.Owners{Accounts: accountv1.NewAccountServiceClient(conn)}
	case "signup":
		return claims.Owners{Waitlists: signupv1.NewSignupServiceClient(conn)}
	}
	return claims.Owners{Templates: messagingv1.NewMessagingServiceClient(conn)}
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		caller, callee string
		claim          func(id string) *eventv1.Event
	}{
		{"billing", "account", func(id string) *eventv1.Event {
			return &eventv1.Event{Payload: &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: id}}}
		}},
		{"notifier", "signup", func(id string) *eventv1.Event {
			return &eventv1.Event{Payload: &eventv1.Event_WaitlistDeleted{WaitlistDeleted: &eventv1.WaitlistDeleted{WaitlistId: id}}}
		}},
		{"signup", "messaging", func(id string) *eventv1.Event {
			return &eventv1.Event{Payload: &eventv1.Event_TemplateDeleted{TemplateDeleted: &eventv1.TemplateDeleted{TemplateId: id}}}
		}},
	} {
		t.Run(tt.callee, func(t *testing.T) {
			t.Parallel()
			id, err := rpc.NewIdentity(tt.caller, bytes.Repeat([]byte("k"), 32))
			if err != nil {
				t.Fatal(err)
			}
			facts := claimstest.Serve(t, tt.callee, rpc.Keys{tt.caller: {id.Public()}})
			owners := as(t, id, tt.callee, facts.Target)
			there, gone := uuid.NewString(), uuid.NewString()
			facts.Add(there)
			if err := owners.Confirm(t.Context(), tt.claim(there)); !errors.Is(err, kafka.ErrRefuted) {
				t.Errorf("the deletion of what exists: %v", err)
			}
			if err := owners.Confirm(t.Context(), tt.claim(gone)); err != nil {
				t.Errorf("a true deletion: %v", err)
			}
			// Nobody answers: that is neither, and waiting helps.
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := as(t, id, tt.callee, "127.0.0.1:1").Confirm(ctx, tt.claim(gone)); !outage.Is(err) || errors.Is(err, kafka.ErrRefuted) {
				t.Errorf("without an answer: %v", err)
			}
		})
	}
}

// An event about a plan has the account's plan as its effect, whatever it says.
func TestPlansAreAskedFor(t *testing.T) {
	t.Parallel()
	id, err := rpc.NewIdentity("signup", bytes.Repeat([]byte("k"), 32))
	if err != nil {
		t.Fatal(err)
	}
	facts := claimstest.Serve(t, "account", rpc.Keys{"signup": {id.Public()}})
	facts.Plan = &accessv1.Entitlement{Tier: "basic", Status: "active", Version: 7}
	there := uuid.NewString()
	facts.Add(there)
	owners := as(t, id, "account", facts.Target)
	for account, version := range map[string]int64{there: 7, uuid.NewString(): 0} {
		e := &eventv1.EntitlementChanged{
			AccountId: account, Entitlement: &accessv1.Entitlement{Tier: "pro", Status: "active", Version: 1 << 40},
		}
		err := owners.Confirm(t.Context(), &eventv1.Event{Payload: &eventv1.Event_EntitlementChanged{EntitlementChanged: e}})
		if got := e.GetEntitlement(); err != nil || got.GetVersion() != version || got.GetTier() == "pro" {
			t.Errorf("%v, %v; want version %d", got, err, version)
		}
	}
}
