package postgres_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/seal"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/kafka"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/waitlist"
)

// ownersEnv is the owners' side on a database of the test's own.
type ownersEnv struct {
	*owners.Owners
	store *postgres.Waitlists
	pool  *pgxpool.Pool
	// templates are messaging's.
	templates *templates
	// woken counts commits with events.
	woken atomic.Int64
	mu    sync.Mutex
	now   time.Time
}

func newOwners(t *testing.T) *ownersEnv {
	t.Helper()
	o := &ownersEnv{pool: database(t), templates: &templates{}, now: time.Date(2026, 3, 1, 12, 0, 0, 123_456_789, time.UTC)}
	o.store = postgres.NewWaitlists(o.pool, func() { o.woken.Add(1) }, o.clock)
	o.Owners = owners.NewOwners(o.store, secrets(t), o.templates, owners.Bounds{}, o.clock)
	return o
}

func (o *ownersEnv) clock() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now
}

func (o *ownersEnv) advance(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = o.now.Add(d)
}

// account returns an actor with an own account of the given tier.
func account(tier access.Tier) access.Actor {
	id := uuid.NewString()
	email := id + "@example.com"
	return access.Actor{AccountID: id, Email: email, EmailVerified: true, Grants: []access.Grant{{
		OwnerID: id, OwnerEmail: email, Role: access.Owner,
		Entitlement: access.Entitlement{Tier: tier, Status: access.Active, Version: 1},
	}}}
}

// join makes actor a member of owner's team.
func join(actor *access.Actor, owner access.Actor, role access.Role) {
	g := owner.Grants[0]
	g.Role = role
	actor.Grants = append(actor.Grants, g)
}

func create(t *testing.T, o *ownersEnv, actor access.Actor, body string) owners.OwnedWaitlist {
	t.Helper()
	w, _, err := o.Create(t.Context(), actor, "", []byte(body), "")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func want(t *testing.T, err error, code apierr.Code) {
	t.Helper()
	if code == "" && err == nil {
		return
	}
	if !apierr.Is(err, code) {
		t.Helper()
		t.Fatalf("got %v, want %s", err, code)
	}
}

func settings(t *testing.T, w owners.OwnedWaitlist) waitlist.Settings {
	t.Helper()
	var s waitlist.Settings
	if err := json.Unmarshal(w.SettingsJSON, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCreateGetUpdateList(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	first := create(t, o, ada, `{"name":"  Launch  ","settings":{"headline":"Hi","webhook_url":"https://a.example/x"},"unknown":1}`)
	if first.Name != "Launch" || first.SignupCount != 0 || first.Role != access.Owner || first.OwnerID != ada.AccountID {
		t.Fatalf("%+v", first)
	}
	if want := o.now.Truncate(time.Millisecond); !first.CreatedAt.Equal(want) {
		t.Fatalf("created at %s, want %s", first.CreatedAt, want)
	}
	if id, err := uuid.Parse(first.ID); err != nil || id.Version() != 7 {
		t.Fatalf("id %s is no UUIDv7", first.ID)
	}
	second := create(t, o, ada, `{"name":"Second","settings":null}`)

	got, err := o.Get(t.Context(), ada, strings.ToUpper(first.ID))
	want(t, err, "")
	if s := settings(t, got); got.ID != first.ID || s.Headline != "Hi" || s.WebhookURL != "https://a.example/x" || s.ReferralBoost != 1 {
		t.Fatalf("%+v", s)
	}
	changed, err := o.Update(t.Context(), ada, first.ID, []byte(`{"settings":{"referral_boost":3,"headline":null}}`))
	want(t, err, "")
	if s := settings(t, changed); changed.Name != "Launch" || changed.Version != 2 || s.Headline != "" || s.ReferralBoost != 3 ||
		s.WebhookURL != "https://a.example/x" {
		t.Fatalf("%+v %+v", changed, s)
	}
	changed, err = o.Update(t.Context(), ada, first.ID, []byte(`{"name":" Renamed ","settings":null}`))
	want(t, err, "")
	if changed.Name != "Renamed" || changed.Version != 3 || !changed.CreatedAt.Equal(first.CreatedAt) {
		t.Fatalf("%+v", changed)
	}
	for _, same := range []string{
		`{}`, `{"name":null}`,
		`{"name":"Renamed","settings":{"referral_boost":3,"webhook_url":"https://a.example/x","headline":""}}`,
	} {
		changed, err = o.Update(t.Context(), ada, first.ID, []byte(same))
		want(t, err, "")
		if changed.Version != 3 {
			t.Fatalf("%s made version %d", same, changed.Version)
		}
	}
	if _, err := o.pool.Exec(t.Context(), `
		INSERT INTO change (waitlist_id, no, nonce, live, total, credited, last_number, first_number)
		VALUES ($1, 1, 0, 1, 1, 0, 1, 1), ($1, 2, 0, 6, 7, 0, 7, 2)`, first.ID); err != nil {
		t.Fatal(err)
	}
	list, err := o.List(t.Context(), ada)
	want(t, err, "")
	if len(list) != 2 || list[0].ID != first.ID || list[1].ID != second.ID || list[0].SignupCount != 7 || list[1].SignupCount != 0 {
		t.Fatalf("%+v", list)
	}
	var stored string
	if err := o.pool.QueryRow(t.Context(), `SELECT settings::text FROM waitlist WHERE id = $1`, first.ID).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stored, "a.example") || strings.Contains(stored, "show_social_proof") {
		t.Fatalf("stored %s", stored)
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	w := create(t, o, ada, `{"name":"x"}`)
	long := strings.Repeat("ü", 200)
	create(t, o, ada, `{"name":"`+long+`"}`)
	for _, tt := range []struct {
		name, body string
		code       apierr.Code
		fields     []string
		patch      bool
	}{
		{"no body", ``, apierr.InvalidBody, nil, true},
		{"no JSON", `{`, apierr.InvalidBody, nil, true},
		{"no object", `[]`, apierr.InvalidBody, nil, true},
		{"no name", `{}`, apierr.ValidationError, []string{"name"}, false},
		{"null name", `{"name":null}`, apierr.ValidationError, []string{"name"}, false},
		{"blank name", `{"name":" \t "}`, apierr.ValidationError, []string{"name"}, true},
		{"empty name", `{"name":""}`, apierr.ValidationError, []string{"name"}, true},
		{"name of the wrong type", `{"name":5}`, apierr.ValidationError, []string{"name"}, true},
		{"name with U+0000", `{"name":"a\u0000"}`, apierr.ValidationError, []string{"name"}, true},
		{"name too long", `{"name":"` + long + `a"}`, apierr.ValidationError, []string{"name"}, true},
		{"settings of the wrong type", `{"name":"x","settings":[]}`, apierr.ValidationError, []string{"settings"}, true},
		{
			"name and setting", `{"name":"","settings":{"referral_boost":0,"hide_branding":true}}`, apierr.ValidationError,
			[]string{"name", "settings.referral_boost"},
			true,
		},
		{"gated", `{"name":"y","settings":{"headline":"x","hide_branding":true}}`, apierr.TierRequired, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			check := func(err error) {
				t.Helper()
				want(t, err, tt.code)
				var got []string
				for _, f := range apierr.From(err).Fields {
					got = append(got, f.Field)
				}
				if !slices.Equal(got, tt.fields) {
					t.Fatalf("fields %v, want %v", got, tt.fields)
				}
			}
			_, _, err := o.Create(t.Context(), ada, "", []byte(tt.body), "")
			check(err)
			if tt.patch {
				_, err := o.Update(t.Context(), ada, w.ID, []byte(tt.body))
				check(err)
			}
		})
	}
}

func TestRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	w := create(t, o, ada, `{"name":"x","settings":{"headline":"A"}}`)
	for _, body := range []string{
		`{"settings":{"headline":"B","referral_boost":0}}`, `{"settings":{"headline":"B","hide_position":true}}`,
		`{"name":"","settings":{"headline":"B"}}`,
	} {
		if _, err := o.Update(t.Context(), ada, w.ID, []byte(body)); err == nil {
			t.Fatalf("%s is accepted", body)
		}
	}
	got, err := o.Get(t.Context(), ada, w.ID)
	want(t, err, "")
	if s := settings(t, got); s.Headline != "A" || got.Version != 1 {
		t.Fatalf("%+v", got)
	}
}

// TestOrderOfDecisions: each step is decided before those behind it.
func TestOrderOfDecisions(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	w := create(t, o, ada, `{"name":"x"}`)
	bad, gated := `{`, `{"name":"x","settings":{"hide_position":true}}`

	stranger := account(access.Pro)
	inactive := ada
	inactive.Grants = slices.Clone(ada.Grants)
	inactive.Grants[0].Entitlement.Status = access.Inactive
	expired := ada
	expired.Grants = slices.Clone(ada.Grants)
	expired.Grants[0].Entitlement = access.Entitlement{Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: o.now, Version: 1}
	basic := ada
	basic.Grants = slices.Clone(ada.Grants)
	basic.Grants[0].Entitlement.Tier = access.Basic
	member := func(role access.Role, verified bool, owner access.Actor) access.Actor {
		a := account(access.Basic)
		a.Grants[0].Entitlement.Status = access.Inactive // counts for nothing here
		a.EmailVerified = verified
		join(&a, owner, role)
		return a
	}
	for _, tt := range []struct {
		name  string
		actor access.Actor
		id    string
		body  string
		read  apierr.Code
		write apierr.Code
	}{
		{"unknown id", stranger, uuid.NewString(), bad, apierr.NotFound, apierr.NotFound},
		{"no id", stranger, "x", bad, apierr.NotFound, apierr.NotFound},
		{"id in another form", ada, "urn:uuid:" + w.ID, bad, apierr.NotFound, apierr.NotFound},
		{"stranger", stranger, w.ID, bad, apierr.Forbidden, apierr.Forbidden},
		{"inactive owner", inactive, w.ID, bad, apierr.Forbidden, apierr.Forbidden},
		{"trial over", expired, w.ID, bad, apierr.TrialExpired, apierr.TrialExpired},
		{"member of an owner whose trial is over", member(access.Viewer, true, expired), w.ID, bad, apierr.TrialExpired, apierr.TrialExpired},
		{"member without a verified address", member(access.Admin, false, ada), w.ID, bad, apierr.EmailNotVerified, apierr.EmailNotVerified},
		{"member of an owner below Pro", member(access.Admin, true, basic), w.ID, bad, apierr.TierRequired, apierr.TierRequired},
		{"viewer", member(access.Viewer, true, ada), w.ID, bad, "", apierr.Forbidden},
		{"admin, bad body", member(access.Admin, true, ada), w.ID, bad, "", apierr.InvalidBody},
		{"admin", member(access.Admin, true, ada), w.ID, `{}`, "", ""},
		{"tier", basic, w.ID, gated, "", apierr.TierRequired},
		{"owner", ada, w.ID, `{}`, "", ""},
	} {
		_, err := o.Get(t.Context(), tt.actor, tt.id)
		t.Run(tt.name+" GET", func(t *testing.T) { want(t, err, tt.read) })
		_, err = o.Update(t.Context(), tt.actor, tt.id, []byte(tt.body))
		t.Run(tt.name+" PATCH", func(t *testing.T) { want(t, err, tt.write) })
		if tt.write != "" && tt.body == bad && tt.write != apierr.InvalidBody {
			err = o.Delete(t.Context(), tt.actor, tt.id)
			t.Run(tt.name+" DELETE", func(t *testing.T) { want(t, err, tt.write) })
		}
	}
	for _, tt := range []struct {
		name  string
		actor access.Actor
		email string
		body  string
		code  apierr.Code
	}{
		{"no member", stranger, ada.Email, bad, apierr.Forbidden},
		{"no such account", ada, "nobody@example.com", bad, apierr.Forbidden},
		{"no address", ada, "\uFFFD", bad, apierr.Forbidden},
		{"own state", inactive, "", bad, apierr.Forbidden},
		{"own trial", expired, "", bad, apierr.TrialExpired},
		{"viewer", member(access.Viewer, true, ada), ada.Email, bad, apierr.Forbidden},
		{"unverified member", member(access.Admin, false, ada), ada.Email, bad, apierr.EmailNotVerified},
		{"body", ada, "", bad, apierr.InvalidBody},
		{"tier", basic, "", gated, apierr.TierRequired},
		{"admin", member(access.Admin, true, ada), " " + strings.ToUpper(ada.Email), `{"name":"theirs"}`, ""},
		{"oneself by address", ada, ada.Email, `{"name":"own"}`, ""},
	} {
		w, _, err := o.Create(t.Context(), tt.actor, tt.email, []byte(tt.body), "")
		t.Run(tt.name+" POST", func(t *testing.T) {
			want(t, err, tt.code)
			if err == nil && w.OwnerID != ada.AccountID {
				t.Fatalf("owner %s", w.OwnerID)
			}
		})
	}
}

func TestViewerSeesMaskedChannels(t *testing.T) {
	t.Parallel()
	o, ada, bob := newOwners(t), account(access.Pro), account(access.Basic)
	w := create(t, o, ada, `{"name":"x","settings":{"slack_webhook_url":"https://slack.example/secret"}}`)
	join(&bob, ada, access.Viewer)
	got, err := o.Get(t.Context(), bob, w.ID)
	want(t, err, "")
	if s := settings(t, got); s.SlackWebhookURL != "https://slack.example/…" || got.Role != access.Viewer {
		t.Fatalf("%q", s.SlackWebhookURL)
	}
}

// TestReseal: afterwards the new key alone opens every channel that a key opened.
func TestReseal(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	w := create(t, o, ada, `{"name":"x","settings":{"slack_webhook_url":"https://slack.example/1","webhook_url":"https://hook.example/1"}}`)
	create(t, o, ada, `{"name":"without a channel"}`)
	broken := create(t, o, ada, `{"name":"x","settings":{"slack_webhook_url":"https://slack.example/2"}}`)
	changed := create(t, o, ada, `{"name":"x","settings":{"slack_webhook_url":"https://slack.example/3"}}`)
	if _, err := o.pool.Exec(t.Context(),
		`UPDATE waitlist SET settings = jsonb_set(settings, '{slack_webhook_url}', '"s1.gone.AAAA"') WHERE id = $1`, broken.ID); err != nil {
		t.Fatal(err)
	}
	key := func(id string) string {
		return id + ":" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(id, 16)))
	}
	ring := func(s string) *seal.Ring {
		r, err := seal.ParseRing(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	former := "k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	both := ring(key("k2") + "," + former)
	// The service changes a waitlist after the command has read it.
	meanwhile := func(sealed, aad string) (string, error) {
		if strings.Contains(aad, changed.ID) {
			_, err := o.Update(t.Context(), ada, changed.ID, []byte(`{"settings":{"headline":"new"}}`))
			want(t, err, "")
		}
		return both.Renew(sealed, aad)
	}
	n, err := o.store.Reseal(t.Context(), meanwhile)
	if n != 3 || !errors.Is(err, seal.ErrCorrupt) || !strings.Contains(err.Error(), broken.ID) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err = o.store.Reseal(t.Context(), both.Renew); n != 1 || !errors.Is(err, seal.ErrCorrupt) {
		t.Errorf("the second run: %d, %v", n, err)
	}
	alone := owners.NewOwners(o.store, ring(key("k2")), o.templates, owners.Bounds{}, o.clock)
	got, err := alone.Get(t.Context(), ada, w.ID)
	want(t, err, "")
	if s := settings(t, got); s.SlackWebhookURL != "https://slack.example/1" || s.WebhookURL != "https://hook.example/1" {
		t.Errorf("%q, %q", s.SlackWebhookURL, s.WebhookURL)
	}
	got, err = alone.Get(t.Context(), ada, changed.ID)
	want(t, err, "")
	if s := settings(t, got); s.SlackWebhookURL != "https://slack.example/3" || s.Headline != "new" {
		t.Errorf("%q, %q", s.SlackWebhookURL, s.Headline)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	o, ada, bob := newOwners(t), account(access.Pro), account(access.Basic)
	theirs := create(t, o, ada, `{"name":"theirs"}`)
	own := create(t, o, bob, `{"name":"own"}`)
	join(&bob, ada, access.Admin)
	names := func(actor access.Actor) string {
		t.Helper()
		list, err := o.List(t.Context(), actor)
		if err != nil {
			return string(apierr.From(err).Code)
		}
		var out []string
		for _, w := range list {
			out = append(out, w.Name+" "+w.Role.String())
		}
		return strings.Join(out, ", ")
	}
	check := func(actor access.Actor, want string) {
		t.Helper()
		if got := names(actor); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check(account(access.Basic), "")
	check(bob, "own owner, theirs admin")
	bob.EmailVerified = false
	check(bob, "own owner")
	bob.EmailVerified = true
	bob.Grants[0].Entitlement.Status = access.Inactive
	check(bob, "theirs admin")
	bob.Grants[1].Entitlement.Tier = access.Advanced
	check(bob, "FORBIDDEN")
	bob.Grants[0].Entitlement.Trial = true
	check(bob, "TRIAL_EXPIRED")
	_, _ = theirs, own
}

// TestConcurrentUpdates: each change counts, since it is merged under the lock.
func TestConcurrentUpdates(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	w := create(t, o, ada, `{"name":"x"}`)
	patches := []string{
		`{"settings":{"headline":"H"}}`, `{"settings":{"subheadline":"S"}}`, `{"settings":{"referral_boost":9}}`, `{"name":"N"}`,
		`{"settings":{"hide_position":true}}`, `{"settings":{"webhook_url":"https://a.example/"}}`, `{"settings":{"position_offset":4}}`,
		`{"settings":{"consent_text":"C"}}`,
	}
	var wg sync.WaitGroup
	for _, p := range patches {
		wg.Go(func() {
			if _, err := o.Update(t.Context(), ada, w.ID, []byte(p)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := o.Get(t.Context(), ada, w.ID)
	want(t, err, "")
	s := settings(t, got)
	if got.Version != int64(len(patches))+1 || got.Name != "N" || s.Headline != "H" || s.Subheadline != "S" || s.ReferralBoost != 9 ||
		!s.HidePosition || s.WebhookURL != "https://a.example/" || s.PositionOffset != 4 || s.ConsentText != "C" {
		t.Fatalf("version %d, %+v", got.Version, s)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	o, ada, bob := newOwners(t), account(access.Pro), account(access.Pro)
	join(&bob, ada, access.Admin)
	post := func(actor access.Actor, email, body, key string) (owners.OwnedWaitlist, bool, error) {
		return o.Create(t.Context(), actor, email, []byte(body), key)
	}
	count := func() (n int) {
		t.Helper()
		if err := o.pool.QueryRow(t.Context(), `SELECT count(*) FROM waitlist`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const key, body = "k ~1", `{"name":"x"}`
	_, _, err := post(ada, "", `{"name":""}`, key) // a failure leaves nothing
	want(t, err, apierr.ValidationError)
	first, replayed, err := post(ada, "", body, key)
	if want(t, err, ""); replayed {
		t.Fatal("the first is a replay")
	}
	o.advance(time.Hour)
	_, err = o.Update(t.Context(), ada, first.ID, []byte(`{"name":"renamed"}`))
	want(t, err, "")
	again, replayed, err := post(ada, "", body, key)
	if want(t, err, ""); !replayed || again.ID != first.ID || again.Name != "x" || !again.CreatedAt.Equal(first.CreatedAt) ||
		again.SignupCount != 0 {
		t.Fatalf("%t %+v", replayed, again)
	}
	for _, other := range []string{`{"name":"y"}`, `{"name":"x" }`, ``, `{"name":""}`} {
		_, _, err = post(ada, "", other, key)
		want(t, err, apierr.Conflict)
	}
	if n := count(); n != 1 {
		t.Fatalf("%d waitlists", n)
	}
	// Keys are the caller's, and the account worked on is part of the request.
	_, replayed, err = post(bob, "", body, key)
	if want(t, err, ""); replayed {
		t.Fatal("somebody else's key counts")
	}
	_, _, err = post(bob, ada.Email, body, key)
	want(t, err, apierr.Conflict)
	// After 24 hours the key is new.
	if _, err := o.pool.Exec(t.Context(), `UPDATE idempotency_key SET created_at = created_at - interval '24 hours'`); err != nil {
		t.Fatal(err)
	}
	later, replayed, err := post(ada, "", `{"name":"y"}`, key)
	if want(t, err, ""); replayed || later.ID == first.ID {
		t.Fatal("an old key is remembered")
	}
	_, replayed, err = post(ada, "", `{"name":"y"}`, key)
	if want(t, err, ""); !replayed {
		t.Fatal("the key's new request is forgotten")
	}
	for _, bad := range []string{strings.Repeat("k", 256), "k\x7f", "k\n", "kü"} {
		_, _, err = post(ada, "", body, bad)
		want(t, err, apierr.ValidationError)
	}
	_, _, err = post(ada, "", body, strings.Repeat("k", 255))
	want(t, err, "")
}

// TestIdempotencyKeyConcurrently: of many requests at once one has the effect,
// and the others get its answer or 409.
func TestIdempotencyKeyConcurrently(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	var ids sync.Map
	var conflicts atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			w, _, err := o.Create(t.Context(), ada, "", []byte(`{"name":"x"}`), "key")
			switch {
			case err == nil:
				ids.Store(w.ID, true)
			case apierr.Is(err, apierr.Conflict):
				conflicts.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	if n != 1 || conflicts.Load() == 32 {
		t.Fatalf("%d waitlists, %d conflicts", n, conflicts.Load())
	}
}

// TestIdempotencyKeyStillRunning: while the first request holds its
// transaction open, the second is refused at once.
func TestIdempotencyKeyStillRunning(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	c := owners.Creation{
		ID: uuid.NewString(), CreatedAt: o.now, OwnerID: ada.AccountID, Owner: ada.Grants[0].Entitlement,
		AccountID: ada.AccountID, Key: "key", Content: []byte("c"),
	}
	draft := func(int64) (owners.Draft, error) { return owners.Draft{Name: "x", Settings: []byte(`{}`)}, nil }
	_, _, err := o.store.CreateWaitlist(t.Context(), c, func(deleted int64) (owners.Draft, error) {
		_, _, err := o.store.CreateWaitlist(t.Context(), c, draft)
		want(t, err, apierr.Conflict)
		if apierr.From(err).RetryAfter == 0 {
			t.Error("no Retry-After")
		}
		return draft(deleted)
	})
	want(t, err, "")
}

// deletedEvents returns the waitlists that the outbox says were deleted.
func deletedEvents(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT topic, key, unnest(payloads) FROM outbox ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	type message struct {
		Topic, Key string
		Payload    []byte
	}
	msgs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[message])
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range msgs {
		var ev eventv1.Event
		if err := proto.Unmarshal(m.Payload, &ev); err != nil {
			t.Fatal(err)
		}
		if d := ev.GetWaitlistDeleted(); d == nil || d.GetWaitlistId() != m.Key || m.Topic != "waitlist.signups.v1" {
			t.Fatalf("%s %s: %v", m.Topic, m.Key, &ev)
		}
		out = append(out, m.Key)
	}
	slices.Sort(out)
	return out
}

func TestDelete(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	w, other := create(t, o, ada, `{"name":"x"}`), create(t, o, ada, `{"name":"y"}`)
	want(t, o.Delete(t.Context(), ada, w.ID), "")
	if got := deletedEvents(t, o.pool); !slices.Equal(got, []string{w.ID}) || o.woken.Load() != 1 {
		t.Fatalf("events %v, woken %d", got, o.woken.Load())
	}
	_, err := o.Get(t.Context(), ada, w.ID)
	want(t, err, apierr.NotFound)
	_, err = o.Update(t.Context(), ada, w.ID, []byte(`{}`))
	want(t, err, apierr.NotFound)
	want(t, o.Delete(t.Context(), ada, w.ID), apierr.NotFound)
	want(t, o.store.DeleteWaitlist(t.Context(), w.ID, audit.Entry{}), apierr.NotFound)
	_, err = o.store.ChangeWaitlist(t.Context(), w.ID, audit.Entry{}, nil)
	want(t, err, apierr.NotFound)
	list, err := o.List(t.Context(), ada)
	want(t, err, "")
	if len(list) != 1 || list[0].ID != other.ID {
		t.Fatalf("%+v", list)
	}
}

func TestCloseOwner(t *testing.T) {
	t.Parallel()
	o, ada, bob := newOwners(t), account(access.Basic), account(access.Basic)
	a, b, kept := create(t, o, ada, `{"name":"a"}`), create(t, o, ada, `{"name":"b"}`), create(t, o, bob, `{"name":"x"}`)
	for range 2 {
		want(t, o.CloseOwner(t.Context(), ada.AccountID), "")
	}
	expect := []string{a.ID, b.ID}
	slices.Sort(expect)
	if got := deletedEvents(t, o.pool); !slices.Equal(got, expect) {
		t.Fatalf("events %v", got)
	}
	_, err := o.Get(t.Context(), ada, a.ID)
	want(t, err, apierr.NotFound)
	_, err = o.Get(t.Context(), bob, kept.ID)
	want(t, err, "")
	// A request that was authorized before the end.
	_, _, err = o.Create(t.Context(), ada, "", []byte(`{"name":"late"}`), "")
	want(t, err, apierr.AuthenticationRequired)
	unknown := account(access.Basic)
	want(t, o.CloseOwner(t.Context(), unknown.AccountID), "")
	_, _, err = o.Create(t.Context(), unknown, "", []byte(`{"name":"late"}`), "key")
	want(t, err, apierr.AuthenticationRequired)
}

// TestCloseOwnerAgainstCreate: whatever is created at the same time is refused
// or deleted.
func TestCloseOwnerAgainstCreate(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	create(t, o, ada, `{"name":"x"}`)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if i == 8 {
				if err := o.CloseOwner(t.Context(), ada.AccountID); err != nil {
					t.Error(err)
				}
				return
			}
			if _, _, err := o.Create(t.Context(), ada, "", []byte(`{"name":"x"}`), ""); err != nil &&
				!apierr.Is(err, apierr.AuthenticationRequired) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var visible, deleted int
	err := o.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE deleted_at IS NULL), count(*) FILTER (WHERE deleted_at IS NOT `+
		`NULL) FROM waitlist`).Scan(&visible, &deleted)
	if err != nil || visible != 0 || deleted != len(deletedEvents(t, o.pool)) {
		t.Fatalf("%v: %d visible, %d deleted", err, visible, deleted)
	}
}

func TestOwnerProjection(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Basic)
	w := create(t, o, ada, `{"name":"x"}`)
	until := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	stored := func() access.Entitlement {
		t.Helper()
		w, err := o.store.Waitlist(t.Context(), w.ID)
		want(t, err, "")
		w.Owner.ValidUntil = w.Owner.ValidUntil.UTC()
		return w.Owner
	}
	v3 := access.Entitlement{Tier: access.Pro, Status: access.Canceling, ValidUntil: until, Version: 3}
	handle := kafka.Handler(o.store)
	event := func(ev *eventv1.Event) {
		t.Helper()
		want(t, pg.InTx(t.Context(), o.pool, func(tx pgx.Tx) error { return handle(t.Context(), tx, ev) }), "")
	}
	changed := func(id string, e access.Entitlement) *eventv1.Event {
		return &eventv1.Event{Payload: &eventv1.Event_EntitlementChanged{EntitlementChanged: &eventv1.EntitlementChanged{
			AccountId:   id,
			Entitlement: e.Proto(),
		}}}
	}
	event(changed(ada.AccountID, v3))
	if got := stored(); got != v3 {
		t.Fatalf("%+v", got)
	}
	v2 := v3
	v2.Version, v2.Tier = 2, access.Advanced
	event(changed(ada.AccountID, v2))
	if got := stored(); got != v3 {
		t.Fatalf("an older version counts: %+v", got)
	}
	// A call knows of a change before its event.
	v4 := access.Entitlement{Tier: access.Pro, Status: access.Trialing, Trial: true, ValidUntil: until, Version: 4}
	for i, call := range []func() error{
		func() error { _, err := o.Get(t.Context(), ada, w.ID); return err },
		func() error { _, err := o.List(t.Context(), ada); return err },
		func() error { _, err := o.Update(t.Context(), ada, w.ID, []byte(`{}`)); return err },
		func() error { _, _, err := o.Create(t.Context(), ada, "", []byte(`{"name":"y"}`), ""); return err },
	} {
		v4.Version++
		ada.Grants[0].Entitlement = v4
		want(t, call(), "")
		if got := stored(); got != v4 {
			t.Fatalf("call %d: %+v", i, got)
		}
	}
	// Accounts without a waitlist are not projected; other events are not ours.
	event(changed(uuid.NewString(), v3))
	event(&eventv1.Event{Payload: &eventv1.Event_SignupVerified{SignupVerified: &eventv1.SignupVerified{}}})
	event(&eventv1.Event{})
	var n int
	if err := o.pool.QueryRow(t.Context(), `SELECT count(*) FROM owner`).Scan(&n); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	event(&eventv1.Event{Payload: &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: ada.AccountID}}})
	_, err := o.Get(t.Context(), ada, w.ID)
	want(t, err, apierr.NotFound)
	// What comes late does not open it again.
	v9 := v3
	v9.Version = 9
	event(changed(ada.AccountID, v9))
	_, _, err = o.Create(t.Context(), ada, "", []byte(`{"name":"late"}`), "")
	want(t, err, apierr.AuthenticationRequired)
}

// TestIndexes: the statements of the owners' side do not read whole tables.
func TestIndexes(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for name, sql := range map[string]string{
		"list": `SELECT id FROM waitlist w WHERE deleted_at IS NULL AND owner_id = '0193d4a2-5c1e-7a41-8000-000000000001' ORDER BY id`,
		"close": `UPDATE waitlist SET deleted_at = now() WHERE deleted_at IS NULL AND owner_id = ` +
			`'0193d4a2-5c1e-7a41-8000-000000000001'`,
		"template": `SELECT id FROM waitlist WHERE owner_id = '0193d4a2-5c1e-7a41-8000-000000000001' AND deleted_at IS NULL AND 'x' ` +
			`IN (settings #>> '{email_templates,offboarding}') ORDER BY id FOR NO KEY UPDATE`,
		"next to purge": `SELECT deleted_at, id FROM waitlist WHERE deleted_at IS NOT NULL AND (deleted_at, id) > (now(), ` +
			`'0193d4a2-5c1e-7a41-8000-000000000001') AND (name <> '' OR deleted_at < now()) ORDER BY deleted_at, id LIMIT 1`,
		"closed keys": `SELECT k.key FROM owner o JOIN idempotency_key k ON k.account_id = o.id WHERE o.closed_at IS NOT NULL LIMIT 10 ` +
			`FOR UPDATE OF k SKIP LOCKED`,
		"closed owners":  `DELETE FROM owner o WHERE closed_at < now() AND NOT EXISTS (SELECT FROM waitlist w WHERE w.owner_id = o.id)`,
		"old keys":       `SELECT key FROM idempotency_key WHERE created_at <= now() ORDER BY created_at LIMIT 10`,
		"signup count":   `SELECT total FROM change WHERE waitlist_id = '0193d4a2-5c1e-7a41-8000-000000000001' ORDER BY no DESC LIMIT 1`,
		"purge of sign.": `SELECT ctid FROM signup WHERE waitlist_id = '0193d4a2-5c1e-7a41-8000-000000000001' LIMIT 10`,
	} {
		err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off`); err != nil {
				return err
			}
			rows, err := tx.Query(t.Context(), `EXPLAIN `+sql)
			if err != nil {
				return err
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
