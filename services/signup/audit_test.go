package signup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/audit"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/postgres"
	"waitlist.internal/services/signup/queue"
)

// trail returns the trail of the list's owner, oldest first, and empties it.
func (w *world) trail(t *testing.T) (lines []string) {
	t.Helper()
	entries, err := (&audit.Table{Pool: w.pool}).Entries(t.Context(), audit.Query{OwnerID: w.list.OwnerID, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(entries) {
		target := strings.Replace(e.Target, w.list.ID, "LIST", 1)
		lines = append(lines, fmt.Sprint(e.Actor, " ", e.Credential, " ", e.Role, " ", e.Action, " ", target))
	}
	w.exec(t, `DELETE FROM audit WHERE owner_id = $1`, w.list.OwnerID)
	return lines
}

// TestTrail: each thing that the team does writes one entry, whatever fails or changes
// nothing writes none, nor does what people do themselves.
func TestTrail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ada, bob := "ada@example.com", "bob@example.com"
	token := w.signUp(t, ada, "")
	w.signUp(t, bob, token)
	admin := access.Actor{AccountID: uuid.NewString(), CredentialID: "KEY", EmailVerified: true, Grants: []access.Grant{{
		OwnerID: w.list.OwnerID, OwnerEmail: "owner@example.com", Role: access.Admin, Entitlement: w.owner.Grants[0].Entitlement,
	}}}
	expect := func(what string, err error, want ...string) {
		t.Helper()
		for i := range want {
			want[i] = admin.AccountID + " KEY admin " + want[i]
		}
		if failed := len(want) == 0; failed != (err != nil) {
			t.Fatalf("%s: %v", what, err)
		}
		if got := w.trail(t); !slices.Equal(got, want) {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	}
	if got := w.trail(t); len(got) != 0 {
		t.Fatalf("signups: %q", got)
	}
	ctx := t.Context()
	created, _, err := w.owners.Create(ctx, admin, "owner@example.com", []byte(`{"name": "x"}`), "key")
	expect("create", err, "waitlist.created "+created.ID)
	if _, replayed, err := w.owners.Create(ctx, admin, "owner@example.com", []byte(`{"name": "x"}`), "key"); !replayed || err != nil {
		t.Fatal(replayed, err)
	}
	_, _, err = w.owners.Create(ctx, admin, "owner@example.com", []byte(`{"name": ""}`), "")
	expect("bad create", err)
	_, err = w.owners.Update(ctx, admin, created.ID, []byte(`{"settings": {"headline": "Hello"}}`))
	expect("update", err, "waitlist.updated "+created.ID)
	if _, err = w.owners.Update(ctx, admin, created.ID, []byte(`{"settings": {"headline": "Hello"}}`)); err != nil {
		t.Fatal(err)
	}
	_, err = w.owners.Update(ctx, admin, created.ID, []byte(`{"settings": {"headline": 5}}`))
	expect("bad update, behind one that changes nothing", err)
	expect("delete", w.owners.Delete(ctx, admin, created.ID), "waitlist.deleted "+created.ID)
	expect("delete again", w.owners.Delete(ctx, admin, created.ID))

	// As if the credit had been withheld.
	w.exec(t, `UPDATE signup SET referrer_number = NULL WHERE waitlist_id = $1 AND number = 2`, w.list.ID)
	_, err = w.admin.Credit(ctx, admin, w.list.ID, bob, []byte(`{"credit": true}`))
	expect("credit", err, "signup.credited LIST/2")
	if _, err := w.admin.Credit(ctx, admin, w.list.ID, bob, []byte(`{"credit": true}`)); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.admin.Move(ctx, admin, w.list.ID, bob, []byte(`{"position": 1}`))
	expect("move", err, "signup.moved LIST/2")
	_, _, err = w.admin.Move(ctx, admin, w.list.ID, "nobody@example.com", []byte(`{"position": 1}`))
	expect("bad move", err)
	expect("remove", w.admin.Remove(ctx, admin, w.list.ID, ada), "signup.removed LIST/1")
	expect("remove again", w.admin.Remove(ctx, admin, w.list.ID, ada))

	one := func(body string) func() ([]byte, error) {
		return func() (piece []byte, err error) {
			if body == "" {
				return nil, io.EOF
			}
			piece, body = []byte(body), ""
			return piece, nil
		}
	}
	_, err = w.admin.Import(ctx, admin, w.list.ID, one(`{"signups": [{"email": "eve@example.com"}, {"email": "`+bob+`"}]}`))
	expect("import", err, "signups.imported LIST")
	if _, err := w.admin.Import(ctx, admin, w.list.ID, one(`{"signups": [{"email": "`+bob+`"}]}`)); err != nil {
		t.Fatal(err)
	}
	_, err = w.admin.Import(ctx, admin, w.list.ID, one(`{"signups": 5}`))
	expect("bad import, behind one that adds nobody", err)
	expect("export", w.admin.Export(ctx, admin, w.list.ID, func([]byte) error { return nil }), "signups.exported LIST")
	_ = w.admin.Export(ctx, admin, w.list.ID, func([]byte) error { return errors.New("the client has gone") })
	if got := w.trail(t); len(got) != 1 {
		t.Fatalf("an export that was cut off: %q", got)
	}
	expect("export of nothing", w.admin.Export(ctx, admin, created.ID, func([]byte) error { return nil }))
	viewer := admin
	viewer.Grants = []access.Grant{{OwnerID: w.list.OwnerID, Role: access.Viewer, Entitlement: w.owner.Grants[0].Entitlement}}
	expect("remove without the right", w.admin.Remove(ctx, viewer, w.list.ID, bob))

	// People's own data is their own business.
	v, err := w.store.Views(ctx, w.list.ID, []string{bob}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		w.store.OptOut(ctx, w.list, v[0].Signup.Number, v[0].Signup.CreatedAt),
		w.store.Remove(ctx, w.list, v[0].Signup.Number, queue.OwnRequest, audit.Entry{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := w.trail(t); len(got) != 0 {
		t.Fatalf("own requests: %q", got)
	}
}

// A large import is one entry, also when the answers to its commits get lost.
func TestTrailOfLargeImport(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]int{"smooth": 0, "first answer lost": 1, "second answer lost": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			admin := w.over(&interrupted{Signups: w.store, after: func(call int, n int64) (int64, error) {
				if call == lost {
					return 0, &join.RetryError{Err: io.ErrUnexpectedEOF}
				}
				return n, nil
			}})
			by := audit.By(w.owner, w.list.OwnerID, audit.SignupsImported, w.list.ID)
			if got, err := admin.ImportRows(t.Context(), w.list, importRows(5000), by); err != nil || got != 5000 {
				t.Fatalf("%d, %v", got, err)
			}
			if got := w.trail(t); len(got) != 1 {
				t.Errorf("%q", got)
			}
		})
	}
}

// Without its entry, no effect happens.
func TestNoEffectWithoutEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.join(t, []*queue.Join{w.newJoin(queue.Token{}, false), w.newJoin(queue.Token{}, false)})
	w.exec(t, `ALTER TABLE audit ADD CHECK (false)`)
	ctx, sent := t.Context(), 0
	for what, do := range map[string]func() error{
		"create": func() error { _, _, err := w.owners.Create(ctx, w.owner, "", []byte(`{"name": "x"}`), ""); return err },
		"update": func() error { _, err := w.owners.Update(ctx, w.owner, w.list.ID, []byte(`{"name": "x"}`)); return err },
		"delete": func() error { return w.owners.Delete(ctx, w.owner, w.list.ID) },
		"move": func() error {
			_, _, err := w.admin.Move(ctx, w.owner, w.list.ID, "p2@example.com", []byte(`{"position": 1}`))
			return err
		},
		"remove": func() error { return w.admin.Remove(ctx, w.owner, w.list.ID, "p2@example.com") },
		"import": func() error {
			_, err := w.admin.ImportRows(ctx, w.list, importRows(3), audit.By(w.owner, w.list.OwnerID, audit.SignupsImported, ""))
			return err
		},
		"export": func() error {
			return w.admin.Export(ctx, w.owner, w.list.ID, func(b []byte) error { sent += len(b); return nil })
		},
	} {
		if err := do(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	w.check(t)
	lists, err := w.owners.List(ctx, w.owner)
	if err != nil || len(lists) != 1 || lists[0].Name != "Launch" || sent != 0 {
		t.Errorf("%+v, %v; %d bytes sent", lists, err, sent)
	}
}

// The purge takes the trail of a deleted account, and no other.
func TestTrailOfDeletedAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	kept := w.list
	export := func() {
		t.Helper()
		if err := w.admin.Export(t.Context(), w.owner, w.list.ID, func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	export()
	w.open(1)
	export()
	if err := w.owners.CloseOwner(t.Context(), w.list.OwnerID); err != nil {
		t.Fatal(err)
	}
	purge := &postgres.Purge{Pool: w.pool, Forget: func(context.Context, string) error { return nil }}
	if err := purge.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.trail(t); len(got) != 0 {
		t.Errorf("left of the deleted account: %q", got)
	}
	w.list = kept
	if got := w.trail(t); len(got) != 1 {
		t.Errorf("left of the other account: %q", got)
	}
}
