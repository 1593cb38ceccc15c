package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/token"
	waitlist "waitlist.internal/tools/sdk/go"
)

// judge is a transport that holds every exchange against the contract.
type judge struct {
	t        testing.TB
	contract *Contract
	// invalid allows requests to violate the contract.
	invalid bool
}

// RoundTrip implements http.RoundTripper.
func (j judge) RoundTrip(req *http.Request) (*http.Response, error) {
	var sent []byte
	if req.Body != nil {
		var err error
		if sent, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(sent))
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	_, _, err = j.contract.Check(req.Context(), Exchange{
		Request: req, RequestBody: sent, Status: res.StatusCode, Header: res.Header, ResponseBody: got,
		InvalidRequest: j.invalid,
	})
	if err != nil {
		j.t.Errorf("%s %s → %d %s: %v", req.Method, req.URL.Path, res.StatusCode, clip(got), err)
	}
	res.Body = io.NopCloser(bytes.NewReader(got))
	return res, nil
}

// testSDK drives the Go client through everything that it can do.
func testSDK(t *testing.T, d *deployment) {
	ctx := t.Context()
	connect := func(invalid bool, options ...waitlist.Option) *waitlist.Client {
		t.Helper()
		judged := &http.Client{Transport: judge{t, d.contract, invalid}}
		c, err := waitlist.New(d.server.URL+"/v1", append(options, waitlist.HTTPClient(judged))...)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	o := d.owner(t)
	public, owner := connect(false), connect(false, waitlist.APIKey(o.key))

	profile, err := owner.Profile(ctx)
	must(err)
	if profile.Email != o.email || profile.Tier != "pro" || profile.Status != "trialing" || profile.TrialEndsAt == nil {
		t.Errorf("%+v", profile)
	}
	made, err := owner.CreateWaitlist(ctx, "Launch", waitlist.Settings{"headline": "Soon", "referral_boost": 1})
	must(err)
	list := made.ID
	all, err := owner.Waitlists(ctx)
	must(err)
	if len(all) != 1 || all[0].ID != list || all[0].Role != "" {
		t.Errorf("%+v", all)
	}
	changed, err := owner.ChangeWaitlist(ctx, list, "Launch!", waitlist.Settings{"subheadline": "Very soon"})
	must(err)
	if changed.Name != "Launch!" || changed.Settings["headline"] != "Soon" || changed.Settings["subheadline"] != "Very soon" {
		t.Errorf("%+v", changed)
	}

	form, err := public.Form(ctx, list)
	must(err)
	if form.Headline != "Soon" || form.ReferralBoost != 1 || form.SignupCount != nil || form.Status != "open" {
		t.Errorf("%+v", form)
	}
	// An address with every character that a path has to escape.
	ann, bob := "ann+a/b%20@example.com", "bob@example.com"
	first, err := public.SignUp(ctx, list, waitlist.NewSignup{Email: "first@example.com"})
	must(err)
	place, err := public.SignUp(ctx, list, waitlist.NewSignup{Email: ann, FirstName: "Ann", UTMSource: "news"})
	must(err)
	if first.Position != 1 || place.Position != 2 || place.Total != 2 || place.ReferralToken == "" {
		t.Errorf("%+v, %+v", first, place)
	}
	_, err = public.SignUp(ctx, list, waitlist.NewSignup{Email: bob, ReferredBy: place.ReferralToken})
	must(err)
	if place, err = public.Place(ctx, list, ann); err != nil || place.Position != 1 || place.ReferralCount != 1 || place.ReferralToken != "" {
		t.Errorf("%+v, %v", place, err)
	}
	if n, shown, err := public.Count(ctx, list); err != nil || shown || n != 0 {
		t.Errorf("%d %v %v", n, shown, err)
	}
	leaders, err := public.Leaderboard(ctx, list, 5)
	must(err)
	if len(leaders) == 0 || leaders[0] != (waitlist.Leader{Rank: 1, ReferralCount: 1}) {
		t.Errorf("%+v", leaders)
	}
	anns := token.SignupSubject(list, d.number(t, list, ann))
	must(public.Verify(ctx, list, ann, d.links.Mint(token.VerifySignup, anns, time.Now().Add(time.Hour))))

	must(public.MailLink(ctx, list, ann))

	testSDKOwner(t, owner, list, ann)

	deleting, err := public.Unsubscribe(ctx, list, bob, d.unsubscribeToken(t, list, bob))
	must(err)
	must(public.DeleteMyData(ctx, list, bob, deleting))
	if _, err := public.Place(ctx, list, bob); !waitlist.Is(err, waitlist.NotFound) {
		t.Errorf("found somebody deleted: %v", err)
	}
	must(owner.DeleteWaitlist(ctx, list))

	var refused *waitlist.Error
	_, err = public.Waitlists(ctx)
	if !errors.As(err, &refused) || refused.Code != waitlist.AuthenticationRequired || refused.RequestID == "" {
		t.Errorf("without credentials: %v", err)
	}
	_, err = connect(true, waitlist.APIKey(o.key)).CreateWaitlist(ctx, "x", waitlist.Settings{"referral_boost": -1})
	if !errors.As(err, &refused) || len(refused.Fields) != 1 || refused.Fields[0].Field != "settings.referral_boost" {
		t.Errorf("a mistake: %v", err)
	}
}

// testSDKOwner drives what only owners do.
func testSDKOwner(t *testing.T, owner *waitlist.Client, list, ann string) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var rows []waitlist.ImportRow
	for i := range 250 {
		rows = append(rows, waitlist.ImportRow{Email: fmt.Sprintf("i%d@example.com", i)})
	}
	imported, err := owner.Import(ctx, list, append(rows, waitlist.ImportRow{Email: "nobody"}))
	must(err)
	if imported.Imported != 250 || len(imported.Errors) != 1 || imported.Errors[0].Row != 251 {
		t.Errorf("%+v", imported)
	}
	n := int64(0)
	for s, err := range owner.Signups(ctx, list) {
		must(err)
		if n++; s.Position != n {
			t.Fatalf("%s is at %d, the iteration at %d", s.Email, s.Position, n)
		}
		if s.Email == ann && (s.FirstName != "Ann" || s.UTM["utm_source"] != "news" || !s.EmailVerified) {
			t.Errorf("%+v", s)
		}
	}
	if n != 253 {
		t.Errorf("%d signups", n)
	}
	if at, err := owner.MoveSignup(ctx, list, "i249@example.com", 2); err != nil || at != 2 {
		t.Errorf("%d, %v", at, err)
	}
	must(owner.RemoveSignup(ctx, list, "i248@example.com"))
	if err := owner.RemoveSignup(ctx, list, "i248@example.com"); !waitlist.Is(err, waitlist.NotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if err := owner.CreditSignup(ctx, list, ann); err == nil {
		t.Error("a credit that nobody withheld")
	}
	stats, err := owner.Stats(ctx, list)
	must(err)
	if stats.TotalSignups != 253 || stats.ReferralSignups != 1 {
		t.Errorf("%+v", stats)
	}
	file, err := owner.Export(ctx, list)
	must(err)
	lines, err := csv.NewReader(file).ReadAll()
	must(err)
	must(file.Close())
	if len(lines) != 253 {
		t.Errorf("%d lines", len(lines))
	}
	if _, err := owner.Analytics(ctx, list, 7); err != nil {
		t.Error(err)
	}
	if _, err := owner.Origins(ctx, list); err != nil {
		t.Error(err)
	}

	template, err := owner.CreateTemplate(ctx, waitlist.NewTemplate{Type: "offboarding", Subject: "Bye", Text: "Bye {{first_name}}"})
	must(err)
	must(owner.ChangeTemplate(ctx, template.ID, waitlist.NewTemplate{Name: "Farewell"}))
	template, err = owner.Template(ctx, template.ID)
	must(err)
	templates, err := owner.Templates(ctx)
	must(err)
	if template.Name != "Farewell" || template.Text != "Bye {{first_name}}" || len(templates) != 1 {
		t.Errorf("%+v, %+v", template, templates)
	}
	must(owner.DeleteTemplate(ctx, template.ID))

	blast, err := owner.SendBlast(ctx, list, waitlist.NewBlast{Subject: "News", Text: "Soon"})
	must(err)
	blasts, err := owner.Blasts(ctx, list)
	must(err)
	if blast.Recipients != 252 || len(blasts) != 1 || blasts[0].ID != blast.ID || blasts[0].Subject != "News" {
		t.Errorf("%+v, %+v", blast, blasts)
	}

	domain := strings.ToLower(rand.Text()[:12]) + ".example.com"
	records, err := owner.AddDomain(ctx, domain)
	must(err)
	domains, err := owner.Domains(ctx)
	must(err)
	status, err := owner.CheckDomain(ctx, domain)
	must(err)
	if len(records) == 0 || len(domains) != 1 || domains[0].Name != domain || status != "pending" {
		t.Errorf("%+v, %+v, %s", records, domains, status)
	}
	must(owner.RemoveDomain(ctx, domain))

	member, err := owner.Invite(ctx, "member"+address(""), "viewer")
	must(err)
	team, err := owner.Team(ctx)
	must(err)
	if len(team) != 1 || team[0].Email != member.Email || team[0].Role != "viewer" {
		t.Errorf("%+v", team)
	}
	must(owner.RemoveMember(ctx, member.Email))
}
