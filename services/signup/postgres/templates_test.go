package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/kafka"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/waitlist"
)

// templates stands for messaging.
type templates struct {
	mu sync.Mutex
	// known are the templates by their owner.
	known map[string][]waitlist.Assignment
	asked int
	away  error
	// before is called before each answer, after between the answer and its use.
	before, after func()
}

func (m *templates) Unknown(_ context.Context, ownerID string, of []waitlist.Assignment) (unknown []waitlist.Assignment, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.before != nil {
		m.before()
	}
	if m.away != nil {
		return nil, m.away
	}
	for _, a := range of {
		if !slices.Contains(m.known[ownerID], a) {
			unknown = append(unknown, a)
		}
	}
	if m.after != nil {
		m.after()
	}
	return unknown, nil
}

// add makes a template of an owner and returns its id.
func (m *templates) add(ownerID, mail string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := waitlist.Assignment{Mail: mail, TemplateID: uuid.NewString()}
	if m.known == nil {
		m.known = map[string][]waitlist.Assignment{}
	}
	m.known[ownerID] = append(m.known[ownerID], a)
	return a.TemplateID
}

// set changes what is asked of m.
func (m *templates) set(change func(m *templates)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *templates) questions() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func assign(mail, id string) []byte {
	return fmt.Appendf(nil, `{"name":"x","settings":{"email_templates":{%q:%q}}}`, mail, id)
}

func TestAssignTemplates(t *testing.T) {
	t.Parallel()
	o, ada, eve := newOwners(t), account(access.Pro), account(access.Pro)
	const mail = "offboarding"
	id, other := o.templates.add(ada.AccountID, mail), o.templates.add(eve.AccountID, mail)
	w := create(t, o, ada, `{"name":"x"}`)
	// Nobody waits for the waitlist while its templates are asked about.
	o.templates.set(func(m *templates) {
		m.before = func() {
			err := pg.InTx(t.Context(), o.pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `SELECT FROM waitlist WHERE id = $1 FOR UPDATE NOWAIT`, w.ID)
				return err
			})
			if err != nil {
				t.Errorf("while messaging is asked: %v", err)
			}
		}
	})
	for _, tt := range []struct {
		name, body string
		asked      int
		field      string
		want       waitlist.EmailTemplates
	}{
		{"one's own", string(assign(mail, id)), 1, "", waitlist.EmailTemplates{Offboarding: id}},
		{"unknown", string(assign(mail, uuid.NewString())), 1, mail, waitlist.EmailTemplates{Offboarding: id}},
		{"another type", string(assign("referral_milestone", id)), 1, "referral_milestone", waitlist.EmailTemplates{Offboarding: id}},
		{"somebody else's", string(assign(mail, other)), 1, mail, waitlist.EmailTemplates{Offboarding: id}},
		{"no id", string(assign(mail, "x")), 0, mail, waitlist.EmailTemplates{Offboarding: id}},
		{"other settings", `{"settings":{"headline":"x"}}`, 0, "", waitlist.EmailTemplates{Offboarding: id}},
		{"null within", `{"settings":{"email_templates":{"offboarding":null}}}`, 0, "", waitlist.EmailTemplates{}},
		{"again", string(assign(mail, id)), 1, "", waitlist.EmailTemplates{Offboarding: id}},
		{"null", `{"settings":{"email_templates":null}}`, 0, "", waitlist.EmailTemplates{}},
	} {
		before := o.templates.questions()
		_, err := o.Update(t.Context(), ada, w.ID, []byte(tt.body))
		if tt.field == "" {
			want(t, err, "")
		} else if f := apierr.From(err).Fields; len(f) != 1 || f[0].Field != "settings.email_templates."+tt.field {
			t.Errorf("%s: %v", tt.name, err)
		}
		if n := o.templates.questions() - before; n != tt.asked {
			t.Errorf("%s: asked %d times, want %d", tt.name, n, tt.asked)
		}
		got, err := o.Get(t.Context(), ada, w.ID)
		want(t, err, "")
		if s := settings(t, got); s.EmailTemplates != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, s.EmailTemplates, tt.want)
		}
	}
}

// TestTemplatesAndTiers: what is not valid is told before what the plan lacks,
// and what stays as it is passes on every plan.
func TestTemplatesAndTiers(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	const mail = "signup_confirmation"
	id, second := o.templates.add(ada.AccountID, mail), o.templates.add(ada.AccountID, mail)
	w := create(t, o, ada, string(assign(mail, id)))
	ada.Grants[0].Entitlement = access.Entitlement{Tier: access.Basic, Status: access.Active, Version: 2}
	o.templates.set(func(m *templates) { m.known[ada.AccountID] = m.known[ada.AccountID][1:] }) // the first has gone
	for _, tt := range []struct {
		id   string
		code apierr.Code
	}{{uuid.NewString(), apierr.ValidationError}, {second, apierr.TierRequired}, {id, ""}} {
		_, err := o.Update(t.Context(), ada, w.ID, assign(mail, tt.id))
		want(t, err, tt.code)
	}
	_, _, err := o.Create(t.Context(), ada, "", assign(mail, id), "")
	want(t, err, apierr.ValidationError)
}

// TestMessagingAway: while nobody can tell whether a template exists, only what
// depends on it is refused.
func TestMessagingAway(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	const mail = "signup_confirmation"
	id, second := o.templates.add(ada.AccountID, mail), o.templates.add(ada.AccountID, mail)
	w := create(t, o, ada, string(assign(mail, id)))
	away := apierr.New(apierr.InternalError, "Something went wrong on our "+
		"side.").WithRetryAfter(2 * time.Second).WithCause(errors.New("away"))
	o.templates.set(func(m *templates) { m.away = away })
	change := func(body []byte) error {
		_, err := o.Update(t.Context(), ada, w.ID, body)
		return err
	}
	for what, err := range map[string]error{
		"PATCH": change(assign(mail, second)),
		"POST":  func() error { _, _, err := o.Create(t.Context(), ada, "", assign(mail, second), ""); return err }(),
	} {
		if e := apierr.From(err); e == nil || e.Code != apierr.InternalError || e.RetryAfter != 2*time.Second {
			t.Errorf("%s: %v", what, err)
		}
	}
	want(t, change(assign(mail, id)), "")
	want(t, change(assign(mail, "")), "")
	want(t, change([]byte(`{"settings":{"headline":5,"email_templates":{"signup_confirmation":"`+second+`"}}}`)), apierr.ValidationError)
}

// TestReplayedTemplate: the first response to an Idempotency-Key is given again
// although its template has gone.
func TestReplayedTemplate(t *testing.T) {
	t.Parallel()
	o, ada := newOwners(t), account(access.Pro)
	body := assign("offboarding", o.templates.add(ada.AccountID, "offboarding"))
	first, replayed, err := o.Create(t.Context(), ada, "", body, "k")
	want(t, err, "")
	if replayed {
		t.Fatal("the first is no replay")
	}
	o.templates.set(func(m *templates) { m.known = nil })
	again, replayed, err := o.Create(t.Context(), ada, "", body, "k")
	want(t, err, "")
	if !replayed || again.ID != first.ID {
		t.Errorf("replayed %t, %s", replayed, again.ID)
	}
}

func TestTemplateDeleted(t *testing.T) {
	t.Parallel()
	o, ada, eve := newOwners(t), account(access.Pro), account(access.Pro)
	gone, stays := o.templates.add(ada.AccountID, "offboarding"), o.templates.add(ada.AccountID, "referral_milestone")
	o.templates.set(func(m *templates) {
		m.known[eve.AccountID] = slices.Clone(m.known[ada.AccountID])
	}) // so that ids alone do not tell them apart
	only := create(t, o, ada, string(assign("offboarding", gone)))
	both := create(t, o, ada, fmt.Sprintf(`{"name":"x","settings":{"headline":"A","email_templates":{"offboarding":%q,`+
		`"referral_milestone":%q}}}`, gone, stays))
	none := create(t, o, ada, string(assign("referral_milestone", stays)))
	foreign := create(t, o, eve, string(assign("offboarding", gone)))
	deleted := create(t, o, ada, string(assign("offboarding", gone)))
	want(t, o.Delete(t.Context(), ada, deleted.ID), "")

	for range 2 { // again is harmless
		want(t, o.remove(t.Context(), ada.AccountID, gone), "")
	}
	for _, tt := range []struct {
		w       owners.OwnedWaitlist
		actor   access.Actor
		version int64
		want    waitlist.EmailTemplates
	}{
		{only, ada, 2, waitlist.EmailTemplates{}},
		{both, ada, 2, waitlist.EmailTemplates{ReferralMilestone: stays}},
		{none, ada, 1, waitlist.EmailTemplates{ReferralMilestone: stays}},
		{foreign, eve, 1, waitlist.EmailTemplates{Offboarding: gone}},
	} {
		got, err := o.Get(t.Context(), tt.actor, tt.w.ID)
		want(t, err, "")
		if s := settings(t, got); s.EmailTemplates != tt.want || got.Version != tt.version {
			t.Errorf("%+v in version %d, want %+v in %d", s.EmailTemplates, got.Version, tt.want, tt.version)
		}
	}
	if got, err := o.Get(t.Context(), ada, both.ID); err != nil || settings(t, got).Headline != "A" {
		t.Errorf("another setting: %v, %v", got, err)
	}
	var stored string
	if err := o.pool.QueryRow(t.Context(), `SELECT settings::text FROM waitlist WHERE id = $1`, only.ID).Scan(&stored); err != nil ||
		stored != "{}" {
		t.Errorf("stored %s, %v", stored, err)
	}
}

// remove is what signup does about a deleted template.
func (o *ownersEnv) remove(ctx context.Context, ownerID, templateID string) error {
	ev := &eventv1.Event{Payload: &eventv1.Event_TemplateDeleted{TemplateDeleted: &eventv1.TemplateDeleted{
		AccountId:  ownerID,
		TemplateId: templateID,
	}}}
	return pg.InTx(ctx, o.pool, func(tx pgx.Tx) error { return kafka.Handler(o.store)(ctx, tx, ev) })
}

// TestTemplateDeletedWhileItIsAssigned: whether the deletion comes between the
// answer and the lock, or waits for the lock, no settings keep what has gone.
func TestTemplateDeletedWhileItIsAssigned(t *testing.T) {
	t.Parallel()
	const mail = "offboarding"
	for name, assigning := range map[string]func(o *ownersEnv, ada access.Actor, id string) error{
		"new waitlist": func(o *ownersEnv, ada access.Actor, id string) error {
			_, _, err := o.Create(t.Context(), ada, "", assign(mail, id), "")
			return err
		},
		"waitlist": func(o *ownersEnv, ada access.Actor, id string) error {
			w := create(t, o, ada, `{"name":"x"}`)
			_, err := o.Update(t.Context(), ada, w.ID, assign(mail, id))
			return err
		},
	} {
		t.Run(name+", after the answer", func(t *testing.T) {
			t.Parallel()
			o, ada := newOwners(t), account(access.Pro)
			id := o.templates.add(ada.AccountID, mail)
			o.templates.after = sync.OnceFunc(func() {
				o.templates.known = nil
				want(t, o.remove(t.Context(), ada.AccountID, id), "")
			})
			if err := assigning(o, ada, id); len(apierr.From(err).Fields) != 1 {
				t.Errorf("assigned: %v", err)
			}
			if n := o.templates.questions(); n != 2 {
				t.Errorf("asked %d times", n)
			}
		})
	}
	t.Run("another one, after the answer", func(t *testing.T) {
		t.Parallel()
		o, ada := newOwners(t), account(access.Pro)
		id := o.templates.add(ada.AccountID, mail)
		o.templates.after = sync.OnceFunc(func() { want(t, o.remove(t.Context(), ada.AccountID, uuid.NewString()), "") })
		create(t, o, ada, string(assign(mail, id)))
	})
	t.Run("under the lock", func(t *testing.T) {
		t.Parallel()
		o, ada := newOwners(t), account(access.Pro)
		id := o.templates.add(ada.AccountID, mail)
		w := create(t, o, ada, `{"name":"x"}`)
		removed := make(chan error, 1)
		_, err := o.store.ChangeWaitlist(t.Context(), w.ID, audit.Entry{}, func(w waitlist.Waitlist, _ int64) (owners.Draft, error) {
			go func() { removed <- o.remove(context.WithoutCancel(t.Context()), ada.AccountID, id) }()
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for waits := false; !waits; <-tick.C {
				if len(removed) > 0 {
					return owners.Draft{}, errors.New("the deletion does not wait")
				}
				if err := o.pool.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = `+
					`current_database()`).Scan(&waits); err != nil {
					return owners.Draft{}, err
				}
			}
			w.Settings.EmailTemplates.Offboarding = id
			stored, err := w.Settings.Stored()
			return owners.Draft{Name: w.Name, Settings: stored}, err
		})
		want(t, err, "")
		want(t, <-removed, "")
		got, err := o.Get(t.Context(), ada, w.ID)
		want(t, err, "")
		if s := settings(t, got); s.EmailTemplates != (waitlist.EmailTemplates{}) || got.Version != 3 {
			t.Errorf("%+v in version %d", s.EmailTemplates, got.Version)
		}
	})
}
