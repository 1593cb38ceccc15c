package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/templates"
)

// claims is a mail provider that claims every domain.
type claims struct {
	domains.Prover
	release error
}

func (claims) Begin(context.Context, string) (domains.Claim, error) {
	return domains.Claim{ExternalID: "ext", Registered: true, Records: []domains.Record{}}, nil
}
func (c claims) Release(context.Context, string) error { return c.release }

// team is what a team does with an owner's templates, domains and blasts.
type team struct {
	pool      *pgxpool.Pool
	owner     string
	admin     access.Actor
	templates *templates.Service
	domains   *domains.Service
	blasts    *blasts.Service
}

func newTeam(t *testing.T, release error) *team {
	t.Helper()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	w := &team{pool: pool, owner: uuid.NewString()}
	w.admin = access.Actor{AccountID: uuid.NewString(), CredentialID: "KEY", EmailVerified: true, Grants: []access.Grant{{
		OwnerID: w.owner, OwnerEmail: "owner@example.com", Role: access.Admin,
		Entitlement: access.Entitlement{Tier: access.Pro, Status: access.Active, Version: 1},
	}}}
	w.templates = templates.New(postgres.NewTemplates(pool, func() {}), 2, time.Now)
	w.domains = domains.New(domains.Config{
		Store: openDomains(t, pool, "resend"), Prover: claims{release: release}, Own: "example.org", Now: time.Now,
	})
	w.blasts = blasts.New(blasts.Config{
		Store: postgres.NewBlasts(pool, time.Now), Wake: func() {},
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Wait: time.Millisecond,
	})
	return w
}

// blast is a request for a blast to a new waitlist.
func (w *team) blast(key string) blasts.Request {
	return blasts.Request{
		Content: blasts.Content{Subject: "News", Text: "Hello"}, WaitlistID: uuid.NewString(), OwnerID: w.owner,
		AccountID: w.admin.AccountID, CredentialID: w.admin.CredentialID, Role: access.Admin, Key: key,
	}
}

// trail returns the owner's trail, oldest first, and empties it.
func (w *team) trail(t *testing.T) (lines []string) {
	t.Helper()
	entries, err := (&audit.Table{Pool: w.pool}).Entries(t.Context(), audit.Query{OwnerID: w.owner, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(entries) {
		lines = append(lines, fmt.Sprint(e.Actor, " ", e.Credential, " ", e.Role, " ", e.Action, " ", e.Target))
	}
	if _, err := w.pool.Exec(t.Context(), `DELETE FROM audit`); err != nil {
		t.Fatal(err)
	}
	return lines
}

const (
	email   = "owner@example.com"
	newText = `{"template_type": "blast", "subject_template": "x", "text_body_template": "x"}`
)

// TestTrail: each thing that the team does writes one entry, whatever fails or changes
// nothing writes none.
func TestTrail(t *testing.T) {
	t.Parallel()
	w, ctx := newTeam(t, nil), t.Context()
	expect := func(what string, err error, want ...string) {
		t.Helper()
		for i := range want {
			want[i] = w.admin.AccountID + " KEY admin " + want[i]
		}
		if failed := len(want) == 0; failed != (err != nil) {
			t.Fatalf("%s: %v", what, err)
		}
		if got := w.trail(t); !slices.Equal(got, want) {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	}
	tmpl, err := w.templates.Create(ctx, w.admin, email, []byte(newText))
	expect("template", err, "template.created "+tmpl.ID)
	other, err := w.templates.Create(ctx, w.admin, email, []byte(newText))
	expect("another template", err, "template.created "+other.ID)
	_, err = w.templates.Create(ctx, w.admin, email, []byte(newText))
	expect("too many templates", err)
	expect("update", w.templates.Update(ctx, w.admin, email, tmpl.ID, []byte(`{"name": "y"}`)), "template.updated "+tmpl.ID)
	if err := w.templates.Update(ctx, w.admin, email, tmpl.ID, []byte(`{"name": "y"}`)); err != nil {
		t.Fatal(err)
	}
	expect("bad update, behind one that changes nothing",
		w.templates.Update(ctx, w.admin, email, tmpl.ID, []byte(`{"text_body_template": "{{nope}}"}`)))
	expect("delete", w.templates.Delete(ctx, w.admin, email, tmpl.ID), "template.deleted "+tmpl.ID)
	expect("delete again", w.templates.Delete(ctx, w.admin, email, tmpl.ID))

	d, err := w.domains.Verify(ctx, w.admin, email, []byte(`{"domain": "example.com"}`))
	expect("domain", err, "domain.created "+d.ID)
	if _, err := w.domains.Verify(ctx, w.admin, email, []byte(`{"domain": "example.com"}`)); err != nil {
		t.Fatal(err)
	}
	// A concurrent request for the same domain comes as far as the store.
	by := audit.By(w.admin, w.owner, audit.DomainCreated, "")
	if _, err := openDomains(t, w.pool, "resend").InsertDomain(ctx, domains.Domain{
		ID: uuid.NewString(), OwnerID: w.owner, Name: "example.com", State: domains.Pending, Since: time.Now(), CreatedAt: time.Now(),
	}, by); err != nil {
		t.Fatal(err)
	}
	_, err = w.domains.Verify(ctx, w.admin, email, []byte(`{"domain": "example.org"}`))
	expect("another's domain, behind one's own", err)
	expect("delete a domain", w.domains.Delete(ctx, w.admin, email, "example.com"), "domain.deleted "+d.ID)
	expect("delete a domain again", w.domains.Delete(ctx, w.admin, email, "example.com"))

	b, _, err := w.blasts.Create(ctx, w.blast(""))
	expect("blast", err, "blast.created "+b.ID)
	_, _, err = w.blasts.Create(ctx, w.blast("\n"))
	expect("bad blast", err)
	keyed := w.blast("key")
	b, _, err = w.blasts.Create(ctx, keyed)
	expect("blast with a key", err, "blast.created "+b.ID)
	if again, replayed, err := w.blasts.Create(ctx, keyed); err != nil || !replayed || again.ID != b.ID {
		t.Fatal(again, replayed, err)
	}
	if got := w.trail(t); len(got) != 0 {
		t.Fatalf("a replayed blast: %q", got)
	}

	// The purge takes the trail of a deleted account.
	expect("delete", w.templates.Delete(ctx, w.admin, email, other.ID), "template.deleted "+other.ID)
	if _, _, err := w.blasts.Create(ctx, w.blast("")); err != nil {
		t.Fatal(err)
	}
	forget(t, w.pool, w.owner)
	if got := w.trail(t); len(got) != 0 {
		t.Errorf("left of a deleted account: %q", got)
	}
}

// Without its entry, no effect happens, and the other way round.
func TestNoEffectWithoutEntry(t *testing.T) {
	t.Parallel()
	w, ctx := newTeam(t, errors.New("the provider is away")), t.Context()
	tmpl, err := w.templates.Create(ctx, w.admin, email, []byte(newText))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.domains.Verify(ctx, w.admin, email, []byte(`{"domain": "example.com"}`)); err != nil {
		t.Fatal(err)
	}
	w.trail(t)
	if err := w.domains.Delete(ctx, w.admin, email, "example.com"); err == nil {
		t.Error("a domain was deleted without its provider")
	}
	if got := w.trail(t); len(got) != 0 {
		t.Errorf("a deletion that failed: %q", got)
	}
	digest := func() (sum string) {
		if err := w.pool.QueryRow(ctx, `SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
			SELECT t::text FROM template t UNION ALL SELECT d::text FROM domain d UNION ALL SELECT b::text FROM blast b
			UNION ALL SELECT o::text FROM outbox o) AS row (line)`).Scan(&sum); err != nil {
			t.Fatal(err)
		}
		return sum
	}
	before := digest()
	if _, err := w.pool.Exec(ctx, `ALTER TABLE audit ADD CHECK (false)`); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"create": func() error { _, err := w.templates.Create(ctx, w.admin, email, []byte(newText)); return err },
		"update": func() error { return w.templates.Update(ctx, w.admin, email, tmpl.ID, []byte(`{"name": "y"}`)) },
		"delete": func() error { return w.templates.Delete(ctx, w.admin, email, tmpl.ID) },
		"claim": func() error {
			_, err := w.domains.Verify(ctx, w.admin, email, []byte(`{"domain": "example.net"}`))
			return err
		},
		"blast": func() error {
			_, _, err := w.blasts.Create(ctx, w.blast(""))
			return err
		},
	} {
		if err := do(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if digest() != before {
		t.Error("something happened without its entry")
	}
}
