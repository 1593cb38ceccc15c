package access

import (
	"reflect"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
)

func TestEntitlementOverTime(t *testing.T) {
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	trial := Entitlement{Tier: Pro, Status: Trialing, ValidUntil: end, Trial: true}
	canceling := Entitlement{Tier: Advanced, Status: Canceling, ValidUntil: end}
	for _, tt := range []struct {
		name   string
		e      Entitlement
		now    time.Time
		status Status
		tier   Tier
		code   apierr.Code
	}{
		{"trial runs", trial, end.Add(-time.Nanosecond), Trialing, Pro, ""},
		{"trial has ended", trial, end, Inactive, Basic, apierr.TrialExpired},
		{"canceling", canceling, end.Add(cancelGrace - 1), Canceling, Advanced, ""},
		{"canceled", canceling, end.Add(cancelGrace), Inactive, Basic, apierr.Forbidden},
		{
			"active does not end by itself",
			Entitlement{Tier: Advanced, Status: Active, ValidUntil: end},
			end.AddDate(1, 0, 0), Active, Advanced, "",
		},
		{"inactive", Entitlement{Tier: Pro, Status: Inactive}, end, Inactive, Basic, apierr.Forbidden},
		{"active without end", Entitlement{Tier: Pro, Status: Active}, end, Active, Pro, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.e.At(tt.now).Status; got != tt.status {
				t.Errorf("status %s, want %s", got, tt.status)
			}
			if got := tt.e.At(tt.now).Tier; got != tt.e.Tier {
				t.Errorf("tier became %s", got)
			}
			if got := tt.e.EffectiveTier(tt.now); got != tt.tier {
				t.Errorf("effective tier %s, want %s", got, tt.tier)
			}
			if err := tt.e.Gate(tt.now); tt.code == "" && err != nil || tt.code != "" && !apierr.Is(err, tt.code) {
				t.Errorf("gate: %v, want %q", err, tt.code)
			}
		})
	}
}

func TestMemberGate(t *testing.T) {
	now := time.Now()
	pro := Entitlement{Tier: Pro, Status: Active}
	for _, tt := range []struct {
		name     string
		verified bool
		grant    Grant
		code     apierr.Code
	}{
		{"owner, not verified", false, Grant{Role: Owner, Entitlement: pro}, ""},
		{"owner on basic", true, Grant{Role: Owner, Entitlement: Entitlement{Tier: Basic, Status: Active}}, ""},
		{"member", true, Grant{Role: Viewer, Entitlement: pro}, ""},
		{"member, not verified", false, Grant{Role: Admin, Entitlement: pro}, apierr.EmailNotVerified},
		{"owner no longer on Pro", true, Grant{Role: Admin, Entitlement: Entitlement{Tier: Advanced, Status: Active}}, apierr.TierRequired},
		{"owner inactive", true, Grant{Role: Admin, Entitlement: Entitlement{Tier: Pro, Status: Inactive}}, apierr.Forbidden},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Actor{EmailVerified: tt.verified}.MemberGate(tt.grant, now)
			if tt.code == "" && err != nil || tt.code != "" && !apierr.Is(err, tt.code) {
				t.Errorf("%v, want %q", err, tt.code)
			}
		})
	}
}

func TestRequire(t *testing.T) {
	tiers := []Tier{"", Basic, Advanced, Pro}
	for i, have := range tiers {
		for j, want := range tiers[1:] {
			err := RequireTier(Entitlement{Tier: have}, want, "This")
			if ok := i >= j+1; ok != (err == nil) {
				t.Errorf("%q for %q: %v", have, want, err)
			}
		}
	}
	for role, ok := range map[Role]bool{0: false, Viewer: false, Admin: true, Owner: true} {
		if err := (Grant{Role: role}).RequireWrite(); ok != (err == nil) {
			t.Errorf("%s: %v", role, err)
		}
		if role != 0 && ParseRole(role.String()) != role {
			t.Errorf("%s does not parse back", role)
		}
	}
}

func TestActorCrossesTheWire(t *testing.T) {
	a := Actor{AccountID: "1", Email: "a@example.com", EmailVerified: true, APIKey: true, Grants: []Grant{
		{OwnerID: "1", OwnerEmail: "a@example.com", Role: Owner, Entitlement: Entitlement{
			Tier: Pro, Status: Trialing, Trial: true, Version: 3, ValidUntil: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		}},
		{OwnerID: "2", OwnerEmail: "b@example.com", Role: Viewer, Entitlement: Entitlement{Tier: Basic, Status: Active, Version: 1}},
	}}
	if got := ActorFromProto(a.Proto()); !reflect.DeepEqual(got, a) {
		t.Errorf("got %+v, want %+v", got, a)
	}
	for email, owner := range map[string]string{"": "1", " ": "1", "b@example.com": "2", " B@Example.com": "2", "c@example.com": "", "b": ""} {
		if g, err := a.GrantByEmail(email); g.OwnerID != owner || (err == nil) != (owner != "") {
			t.Errorf("grant by %q: %+v, %v", email, g, err)
		}
	}
	if _, ok := a.Grant("3"); ok {
		t.Error("a stranger's grant")
	}
}
