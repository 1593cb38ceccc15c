package signup_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/queue"
)

// fields returns the fields that an error is about.
func fields(err error) (out []string) {
	if err == nil {
		return nil
	}
	for _, f := range apierr.From(err).Fields {
		out = append(out, f.Field)
	}
	return out
}

// TestAdminOrder checks the order in which faults of a request are reported:
// waitlist, subscription, role, body, tier, signup.
func TestAdminOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false)})
	const nobody = "nobody@example.com"

	calls := map[string]func(context.Context, access.Actor, string, string, string) error{
		"list": func(ctx context.Context, a access.Actor, id, arg, _ string) error {
			_, _, err := w.admin.List(ctx, a, id, arg, "")
			return err
		},
		"stats": func(ctx context.Context, a access.Actor, id, _, _ string) error {
			_, err := w.admin.Stats(ctx, a, id)
			return err
		},
		"remove": func(ctx context.Context, a access.Actor, id, _, email string) error {
			return w.admin.Remove(ctx, a, id, email)
		},
		"move": func(ctx context.Context, a access.Actor, id, arg, email string) error {
			_, _, err := w.admin.Move(ctx, a, id, email, []byte(arg))
			return err
		},
	}
	actor := func(role access.Role, tier access.Tier, status access.Status, trial, verified bool) access.Actor {
		a := access.Actor{AccountID: uuid.NewString(), EmailVerified: verified, Grants: []access.Grant{{
			OwnerID: w.list.OwnerID, Role: role,
			Entitlement: access.Entitlement{Tier: tier, Status: status, Trial: trial, Version: 1},
		}}}
		if role == access.Owner {
			a.AccountID = w.list.OwnerID
		}
		return a
	}
	owner := actor(access.Owner, access.Pro, access.Active, false, false)
	for _, tt := range []struct {
		name  string
		actor access.Actor
		id    string // "": the world's
		arg   string // limit, or body
		want  apierr.Code
		calls string
	}{
		{"waitlist that is not", owner, uuid.NewString(), "bad", apierr.NotFound, "list stats remove move"},
		{"id that is none", owner, "x", "bad", apierr.NotFound, "list stats remove move"},
		{"stranger", access.Actor{AccountID: uuid.NewString(), EmailVerified: true}, "", "bad", apierr.Forbidden, "list stats remove move"},
		{
			"trial is over", actor(access.Owner, access.Pro, access.Inactive, true, true), "", "bad", apierr.TrialExpired,
			"list stats remove move",
		},
		{"inactive", actor(access.Owner, access.Basic, access.Inactive, false, true), "", "bad", apierr.Forbidden, "list stats remove move"},
		{
			"member without verified address", actor(access.Admin, access.Pro, access.Active, false, false), "", "bad", apierr.EmailNotVerified,
			"list stats remove move",
		},
		{
			"member of an owner below pro", actor(access.Admin, access.Advanced, access.Active, false, true), "", "bad", apierr.TierRequired,
			"list stats remove move",
		},
		{"viewer writes", actor(access.Viewer, access.Pro, access.Active, false, true), "", "bad", apierr.Forbidden, "remove move"},
		{"viewer reads badly", actor(access.Viewer, access.Pro, access.Active, false, true), "", "bad", apierr.ValidationError, "list"},
		{"viewer reads", actor(access.Viewer, access.Pro, access.Active, false, true), "", "", "", "list stats"},
		{
			"body that is none, below the tier", actor(access.Owner, access.Basic, access.Active, false, true), "", "bad", apierr.InvalidBody,
			"move",
		},
		{
			"body without position, below the tier", actor(access.Owner, access.Basic, access.Active, false, true), "", "{}",
			apierr.ValidationError, "move",
		},
		{"below the tier", actor(access.Owner, access.Basic, access.Active, false, true), "", `{"position":1}`, apierr.TierRequired, "move"},
		{"nobody, basic", actor(access.Owner, access.Basic, access.Active, false, true), "", "", apierr.NotFound, "remove"},
		{"nobody, advanced", actor(access.Owner, access.Advanced, access.Active, false, true), "", `{"position":1}`, apierr.NotFound, "move"},
		{
			"nobody, for a team's admin", actor(access.Admin, access.Pro, access.Active, false, true), "", `{"position":1}`, apierr.NotFound,
			"remove move",
		},
		{"basic reads", actor(access.Owner, access.Basic, access.Active, false, true), "", "", "", "list stats"},
	} {
		for name := range strings.FieldsSeq(tt.calls) {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				id := tt.id
				if id == "" {
					id = w.list.ID
				}
				err := calls[name](t.Context(), tt.actor, id, tt.arg, nobody)
				if tt.want == "" && err != nil || tt.want != "" && !apierr.Is(err, tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
			})
		}
	}
}

func TestAdminMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var joins []*queue.Join
	for range 5 {
		joins = append(joins, w.newJoin(queue.Token{}, false))
	}
	w.join(t, joins)
	for _, bad := range []string{
		`{}`, `{"position":null}`, `{"position":0}`, `{"position":-1}`, `{"position":1.5}`, `{"position":"2"}`, `{"position":true}`,
		`{"position":[1]}`, `{"position":9007199254740993}`, `{"position":1e300}`, `{"position":9007199254740994.0}`,
	} {
		if _, _, err := w.admin.Move(t.Context(), w.owner, w.list.ID, "p1@example.com", []byte(bad)); !slices.Equal(fields(err),
			[]string{"position"}) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, bad := range []string{``, `[]`, `5`, `{"position":1`, "{\"position\":\"\xff\"}"} {
		if _, _, err := w.admin.Move(t.Context(), w.owner, w.list.ID, "p1@example.com", []byte(bad)); !apierr.Is(err, apierr.InvalidBody) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	w.check(t)
	for _, tt := range []struct {
		email, body string
		want        int64
	}{
		{"p4@example.com", `{"position":2}`, 2},
		{" P4@Example.COM ", `{"position":1.0}`, 1},
		{"p4@example.com", `{"position":1}`, 1},
		{"p4@example.com", `{"position":9007199254740992,"other":1}`, 5},
		{"p4@example.com", `{"position":6}`, 5},
	} {
		email, at, err := w.admin.Move(t.Context(), w.owner, w.list.ID, tt.email, []byte(tt.body))
		if err != nil || email != "p4@example.com" || at != tt.want {
			t.Errorf("%s: %s at %d, %v; want %d", tt.body, email, at, err, tt.want)
		}
		w.place(w.byEmail("p4@example.com"), int(tt.want)-1)
		w.check(t)
	}
}

// TestAdminList: rows show all that the owner may see, and the query's bounds
// hold.
func TestAdminList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	if rows, next, err := w.admin.List(t.Context(), w.owner, w.list.ID, "", ""); err != nil || len(rows) != 0 || next != "" {
		t.Fatalf("of an empty list: %v, %q, %v", rows, next, err)
	}
	first := w.newJoin(queue.Token{}, false)
	w.join(t, []*queue.Join{first})
	full := w.newJoin(first.Token, true)
	full.FirstName, full.LastName, full.Phone, full.Device = "Ada", "Lovelace", "+15550100", "mobile"
	full.UTMSource, full.UTMMedium, full.UTMCampaign, full.UTMTerm, full.UTMContent = "s", "m", "c", "t", "n"
	full.Answers = []byte(`{"size": "small"}`)
	w.join(t, []*queue.Join{full})
	stored, err := w.store.Views(t.Context(), w.list.ID, []string{full.Email}, 0)
	if err != nil {
		t.Fatal(err)
	}
	verified, opted := time.Now().Truncate(time.Millisecond).UTC(), time.Now().Add(time.Minute).Truncate(time.Millisecond).UTC()
	if _, err := w.store.Verify(t.Context(), w.list, stored[0].Signup.Number, verified, false); err != nil {
		t.Fatal(err)
	}
	if err := w.store.OptOut(t.Context(), w.list, stored[0].Signup.Number, opted); err != nil {
		t.Fatal(err)
	}
	rows, next, err := w.admin.List(t.Context(), w.owner, strings.ToUpper(w.list.ID), "100", "")
	if err != nil || len(rows) != 2 || next != "" {
		t.Fatalf("%v, %q, %v", rows, next, err)
	}
	want := owners.Row{
		Signup: queue.Signup{
			Number: 2, QueueKey: rows[1].QueueKey, Email: full.Email, FirstName: "Ada", LastName: "Lovelace", Phone: "+15550100", Token: full.Token,
			CreatedAt: rows[1].CreatedAt, EmailVerifiedAt: verified, EmailOptOutAt: opted,
		},
		Position: 2, ReferredBy: &first.Token, UTMSource: "s", UTMMedium: "m", UTMCampaign: "c", UTMTerm: "t", UTMContent: "n",
		Answers: full.Answers, Device: "mobile",
	}
	if got := fmt.Sprintf("%+v %s", rows[1].Signup, rows[1].ReferredBy); got != fmt.Sprintf("%+v %s", want.Signup, want.ReferredBy) {
		t.Errorf("got %s\nwant %+v", got, want.Signup)
	}
	rows[1].ReferredBy, want.ReferredBy, want.Signup = nil, nil, rows[1].Signup
	if got := fmt.Sprintf("%+v", rows[1]); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got %s\nwant %+v", got, want)
	}
	if rows[0].ReferredBy != nil || rows[0].Answers != nil || rows[0].ReferralCount != 1 || rows[0].Position != 1 {
		t.Errorf("the first: %+v", rows[0])
	}

	_, key, err := w.admin.List(t.Context(), w.owner, w.list.ID, "1", "")
	if err != nil || key == "" {
		t.Fatalf("first page: %q, %v", key, err)
	}
	for _, tt := range []struct {
		limit, key string
		fields     []string
	}{
		{"0", "", []string{"limit"}},
		{"101", "", []string{"limit"}},
		{"-1", "", []string{"limit"}},
		{"1.0", "", []string{"limit"}},
		{"all", "", []string{"limit"}},
		{"99999999999999999999", "", []string{"limit"}},
		{"", "nonsense", []string{"last_key"}},
		{"0", key + "=", []string{"limit", "last_key"}},
		{"1", strings.ToLower(key), []string{"last_key"}},
	} {
		if _, _, err := w.admin.List(t.Context(), w.owner, w.list.ID, tt.limit, tt.key); !slices.Equal(fields(err), tt.fields) ||
			!apierr.Is(err, apierr.ValidationError) {
			t.Errorf("limit %q, key %q: %v", tt.limit, tt.key, err)
		}
	}
	rows, next, err = w.admin.List(t.Context(), w.owner, w.list.ID, "", key)
	if err != nil || len(rows) != 1 || rows[0].Email != full.Email || next != "" {
		t.Errorf("last page: %v, %q, %v", rows, next, err)
	}

	old := w.owner
	w.open(1)
	w.owner.Grants = append(w.owner.Grants, old.Grants...)
	if _, _, err := w.admin.List(t.Context(), w.owner, w.list.ID, "", key); !slices.Equal(fields(err), []string{"last_key"}) {
		t.Errorf("another waitlist's key: %v", err)
	}
}

// TestListAfterTheEnd: somebody who comes after the rest of the queue has gone
// gets a key of those who went, and is on the next page all the same.
func TestListAfterTheEnd(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*testing.T, *world){
		"removed": func(t *testing.T, w *world) {
			t.Helper()
			for range 2 {
				if err := w.svc.Remove(t.Context(), w.list.ID, w.queue[1].email, audit.Entry{}); err != nil {
					t.Fatal(err)
				}
				w.queue = slices.Delete(w.queue, 1, 2)
			}
		},
		"moved": func(t *testing.T, w *world) {
			t.Helper()
			w.move(t, 2, 1)
			w.move(t, 2, 1)
		},
		"all removed": func(t *testing.T, w *world) {
			t.Helper()
			for _, m := range w.queue {
				if err := w.svc.Remove(t.Context(), w.list.ID, m.email, audit.Entry{}); err != nil {
					t.Fatal(err)
				}
			}
			w.queue = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false)})
			w.page(t, 2)
			leave(t, w)
			w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false)})
			w.page(t, 5)
			if w.reader.lastKey != "" {
				t.Error("there is a page after the last one")
			}
		})
	}
}

// TestListOfALostPlace: a cursor that can no longer be followed says so.
func TestListOfALostPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false)})
	w.page(t, 1)
	key := w.reader.lastKey
	now := time.Now()
	later := owners.NewAdmin(w.owners, w.svc, w.store, nil,
		func() time.Time { return now.Add(24*time.Hour + time.Second) }, slog.New(slog.DiscardHandler))
	if _, _, err := later.List(t.Context(), w.owner, w.list.ID, "", key); !slices.Equal(fields(err), []string{"last_key"}) {
		t.Errorf("after a day: %v", err)
	}
	w.move(t, 0, 3)
	w.page(t, 1)
	key = w.reader.lastKey
	// A database from before that page, and another history since.
	if _, err := w.pool.Exec(t.Context(), `DELETE FROM change WHERE waitlist_id = $1 AND no > 1`, w.list.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.admin.List(t.Context(), w.owner, w.list.ID, "", key); !slices.Equal(fields(err), []string{"last_key"}) {
		t.Errorf("after a change that was undone: %v", err)
	}
	if _, err := w.pool.Exec(t.Context(), `
		INSERT INTO queue_shift (waitlist_id, no, first_key, end_key, old_keys, new_keys)
		SELECT $1, n, 0, 1, '{}', '{}' FROM generate_series(2, 100002) n`, w.list.ID); err != nil {
		t.Fatal(err)
	}
	w.reader = newReader()
	w.page(t, 1) // of change 1
	if _, _, err := w.admin.List(t.Context(), w.owner, w.list.ID, "", w.reader.lastKey); !slices.Equal(fields(err), []string{"last_key"}) {
		t.Errorf("after too many shifts: %v", err)
	}
	w.reader = newReader()
	w.page(t, 1)
}

func TestAdminStats(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	stats := func(total, referrals int64) {
		t.Helper()
		s, err := w.admin.Stats(t.Context(), w.owner, w.list.ID)
		if err != nil || s.Total != total || s.Referrals != referrals || s.WaitlistID != w.list.ID || !s.CreatedAt.Equal(w.list.CreatedAt) {
			t.Errorf("%+v, %v; want total %d, referrals %d", s, err, total, referrals)
		}
	}
	stats(0, 0)
	first := w.newJoin(queue.Token{}, false)
	w.join(t, []*queue.Join{first})
	w.join(t, []*queue.Join{w.newJoin(first.Token, true), w.newJoin(first.Token, true), w.newJoin(queue.NewToken(), true)})
	stats(4, 2)
	// The counter stays, the referred one no longer lives.
	if err := w.admin.Remove(t.Context(), w.owner, w.list.ID, "p2@example.com"); err != nil {
		t.Fatal(err)
	}
	stats(4, 1)
	if err := w.admin.Remove(t.Context(), w.owner, w.list.ID, "p2@example.com"); !apierr.Is(err, apierr.NotFound) {
		t.Errorf("removed twice: %v", err)
	}
	// The referrer leaves, the referral was one.
	if err := w.admin.Remove(t.Context(), w.owner, w.list.ID, "P1@example.com"); err != nil {
		t.Fatal(err)
	}
	stats(4, 1)
}
