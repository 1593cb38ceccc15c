package signup_test

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/signup/owners"
)

const news = `{"subject":"News","text_body":"We are live"}`

// accounts stands in for account, with one account.
type accounts struct {
	id       string
	verified bool
	err      error
}

// Verified implements owners.Accounts.
func (a accounts) Verified(_ context.Context, id string) (bool, error) {
	if id != a.id {
		return false, apierr.NotFoundf("There is no such account.")
	}
	return a.verified, a.err
}

// requiring is w's Admin where addresses must be verified, and a's account the owner.
func (w *world) requiring(a accounts) *owners.Admin {
	a.id = w.list.OwnerID
	return owners.NewAdmin(w.owners, w.svc, w.store, a, time.Now, slog.New(slog.DiscardHandler))
}

// paying returns an actor with a role at the world's owner, on Pro and verified unless change says otherwise.
func (w *world) paying(role access.Role, change func(*access.Actor, *access.Grant)) access.Actor {
	g := access.Grant{
		OwnerID: w.list.OwnerID, Role: role, Entitlement: access.Entitlement{Tier: access.Pro, Status: access.Active, Version: 1},
	}
	a := access.Actor{AccountID: w.list.OwnerID, CredentialID: "KEY", EmailVerified: true}
	if role != access.Owner {
		a.AccountID = uuid.NewString()
	}
	if change != nil {
		change(&a, &g)
	}
	a.Grants = []access.Grant{g}
	return a
}

// Each refusal takes precedence over the later ones in the list.
func TestTheOrderOfChecksOfABlast(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	list := w.list.ID
	basic := func(_ *access.Actor, g *access.Grant) { g.Entitlement.Tier = access.Basic }
	over := func(_ *access.Actor, g *access.Grant) {
		g.Entitlement.Status, g.Entitlement.Trial = access.Inactive, true
	}
	unverified := func(a *access.Actor, _ *access.Grant) { a.EmailVerified = false }
	free, strict, stricter := w.admin, w.requiring(accounts{verified: true}), w.requiring(accounts{})
	for _, tt := range []struct {
		name     string
		waitlist string
		actor    access.Actor
		admin    *owners.Admin
		body     string
		want     apierr.Code
		list     apierr.Code
	}{
		{"no waitlist", uuid.NewString(), w.paying(access.Owner, unverified), strict, "x", apierr.NotFound, apierr.NotFound},
		{"no id", "x", w.paying(access.Owner, unverified), strict, "x", apierr.NotFound, apierr.NotFound},
		{"a stranger", list, w.paying(access.Owner, func(a *access.Actor, g *access.Grant) {
			g.OwnerID, a.EmailVerified = uuid.NewString(), false
		}), strict, "x", apierr.Forbidden, apierr.Forbidden},
		{"not verified, and over", list, w.paying(access.Owner, func(a *access.Actor, g *access.Grant) {
			unverified(a, g)
			over(a, g)
		}), strict, "x", apierr.EmailNotVerified, apierr.TrialExpired},
		{"the owner not verified, and over", list, w.paying(access.Admin, over), stricter, "x", apierr.EmailNotVerified, apierr.TrialExpired},
		{"a member not verified", list, w.paying(access.Viewer, unverified), free, "x", apierr.EmailNotVerified, apierr.EmailNotVerified},
		{"trial over, viewer", list, w.paying(access.Viewer, over), strict, "x", apierr.TrialExpired, apierr.TrialExpired},
		{"viewer", list, w.paying(access.Viewer, nil), strict, "x", apierr.Forbidden, ""},
		{"bad body below Pro", list, w.paying(access.Owner, basic), free, "x", apierr.InvalidBody, apierr.TierRequired},
		{"invalid below Pro", list, w.paying(access.Owner, basic), free, `{}`, apierr.ValidationError, apierr.TierRequired},
		{"below Pro", list, w.paying(access.Owner, basic), free, news, apierr.TierRequired, apierr.TierRequired},
		{"not verified, not asked for", list, w.paying(access.Owner, unverified), free, news, "", ""},
		{"admin", list, w.paying(access.Admin, nil), strict, news, "", ""},
	} {
		_, err := tt.admin.Blast(t.Context(), tt.actor, tt.waitlist, []byte(tt.body))
		if code(err) != tt.want {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if _, err := tt.admin.Blasts(t.Context(), tt.actor, tt.waitlist); code(err) != tt.list {
			t.Errorf("%s: list: %v, want %q", tt.name, err, tt.list)
		}
	}
}

func code(err error) apierr.Code {
	if err == nil {
		return ""
	}
	return apierr.From(err).Code
}

func TestWhatABlastMustHave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	long := strings.Repeat("x", 512<<10)
	for body, want := range map[string]string{
		news: "",
		`{"subject":"` + strings.Repeat("ä", 998) + `","html_body":"<p>","text_body":null}`: "",
		`{"subject":"a","html_body":"` + long + `"}`:                                        "",
		`{"text_body":"a"}`:                                              "subject",
		`{"subject":null,"text_body":"a"}`:                               "subject",
		`{"subject":"","text_body":"a"}`:                                 "subject",
		`{"subject":" ","text_body":"a"}`:                                "subject",
		`{"subject":7,"text_body":"a"}`:                                  "subject",
		`{"subject":"` + strings.Repeat("ä", 999) + `","text_body":"a"}`: "subject",
		`{"subject":"a\nb","text_body":"a"}`:                             "subject",
		`{"subject":"a\rb","text_body":"a"}`:                             "subject",
		`{"subject":"a"}`:                                                "html_body",
		`{"subject":"a","html_body":"","text_body":""}`:                  "html_body",
		`{"subject":"a","html_body":7}`:                                  "html_body",
		`{"subject":"a","html_body":"a","text_body":7}`:                  "text_body",
		`{"subject":"a","html_body":"` + long + `x"}`:                    "html_body",
		`{"subject":"a","text_body":"` + long + `x"}`:                    "text_body",
		`{"subject":"a","html_body":"a\u0000"}`:                          "html_body",
		`{}`:                                                             "subject html_body",
		`{"subject":"a","text_body":"a","send_at":null,"draft":null}`:    "",
		`{"subject":"a","text_body":"a","send_at":"2026-12-01T09:00:00Z","segment":"x","filter":{},"test":true,"test_to":[],"draft":false}`: "" +
			"send_at segment filter test test_to draft",
		`{"subject":"a\nb","html_body":"` + long + `x","text_body":` + "7}": "subject html_body text_body",
	} {
		_, err := w.admin.Blast(t.Context(), w.owner, w.list.ID, []byte(body))
		if got := strings.Join(fields(err), " "); got != want || (err == nil) != (want == "") {
			t.Errorf("%.60s…: %v, want %q", body, err, want)
		}
	}
}

// TestWhatABlastIs: messaging gets the mail, and who asked for it in whose name.
func TestWhatABlastIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	over := time.Now().Add(time.Hour)
	trial := w.paying(access.Admin, func(_ *access.Actor, g *access.Grant) {
		g.Entitlement.Status, g.Entitlement.Trial, g.Entitlement.ValidUntil = access.Trialing, true, over
	})
	const body = `{"subject":"News","html_body":"<p>Live","text_body":"Live"}`
	got, err := w.admin.Blast(t.Context(), trial, strings.ToUpper(w.list.ID), []byte(body))
	want := owners.NewBlast{
		WaitlistID: w.list.ID, OwnerID: w.list.OwnerID, Trial: true, AccountID: trial.AccountID, CredentialID: "KEY", Role: access.Admin,
		Subject: "News", HTML: "<p>Live", Text: "Live", Fingerprint: got.Fingerprint,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	again, err := w.admin.Blast(t.Context(), w.owner, w.list.ID, []byte(body))
	if err != nil || !slices.Equal(again.Fingerprint, got.Fingerprint) || again.Trial || again.Role != access.Owner {
		t.Errorf("the owner's, behind the trial: %+v, %v", again, err)
	}
	other, err := w.admin.Blast(t.Context(), w.owner, w.list.ID, []byte(news))
	if err != nil || slices.Equal(other.Fingerprint, got.Fingerprint) || other.HTML != "" {
		t.Errorf("another: %+v, %v", other, err)
	}
	if id, err := w.admin.Blasts(t.Context(), trial, strings.ToUpper(w.list.ID)); err != nil || id != w.list.ID {
		t.Errorf("the list: %q, %v", id, err)
	}
}

// A member cannot send in the name of an owner whose address is not verified. The owner's own address is known without asking.
func TestOwnersOfBlastsAreVerified(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	away := errors.New("away")
	for _, tt := range []struct {
		role  access.Role
		owner accounts
		want  string
	}{
		{access.Admin, accounts{verified: true}, ""},
		{access.Admin, accounts{}, "The waitlist's owner has to verify their email address first."},
		{access.Owner, accounts{err: away}, ""},
	} {
		_, err := w.requiring(tt.owner).Blast(t.Context(), w.paying(tt.role, nil), w.list.ID, []byte(news))
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s, %+v: %v, want %q", tt.role, tt.owner, err, tt.want)
		}
	}
	_, err := w.requiring(accounts{err: away}).Blast(t.Context(), w.paying(access.Admin, nil), w.list.ID, []byte(news))
	if !errors.Is(err, away) {
		t.Error(err)
	}
}
