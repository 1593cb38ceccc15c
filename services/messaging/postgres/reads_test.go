package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/work"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/templates"
)

// Password resets do not wait behind the mails of a viral waitlist.
func TestAccountsFirst(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, messaging.Name, 1, postgres.Migrations)
	mailStore := postgres.NewMails(pool)
	owner, list := uuid.NewString(), uuid.NewString()
	err := pg.InTx(ctx, pool, func(tx pgx.Tx) error {
		for i := range 30 {
			r := mails.Request{
				EventID: uuid.NewString(), Kind: mails.SignupVerification, AccountID: owner, WaitlistID: list,
				Number: int64(i), RequestedAt: time.Now(),
			}
			if i >= 27 {
				r = mails.Request{EventID: uuid.NewString(), Kind: mails.PasswordReset, AccountID: uuid.NewString(), RequestedAt: time.Now()}
			}
			if err := mailStore.Queue(ctx, tx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, limit := range []int{2, 16, 16, 16} {
		claimed, err := mailStore.ClaimMails(ctx, limit, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		resets := 0
		for _, c := range claimed {
			if c.Kind == mails.PasswordReset {
				resets++
			}
		}
		got = append(got, resets, len(claimed))
	}
	if want := []int{2, 2, 1, 16, 0, 12, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("resets and mails %v, want %v", got, want)
	}
}

func TestStatementsHaveIndexes(t *testing.T) {
	t.Parallel()
	testenv.StatementsHaveIndexes(t, testenv.Migrated(t, messaging.Name, 1, postgres.Migrations), "db/*.sql.go", 69)
}

// The rows that a statement reads do not grow with the tables or with one referrer's notifications, even if
// its plan was made while the tables were empty.
func TestStatementsReadWhatTheyNeed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, messaging.Name, 1, postgres.Migrations)
	mailStore, templateStore := postgres.NewMails(pool), postgres.NewTemplates(pool, func() {})
	const list, owner = "0197f0c4-6d0e-7cc1-a2a3-000000000001", "0197f0c4-6d0e-7cc1-a2a3-00000000000a"
	// star has had very many notifications, fan none.
	const star, fan = 1, 2
	in := func(do func(tx pgx.Tx) error) func() error {
		return func() error { return pg.InTx(ctx, pool, do) }
	}
	told := func(number int64) func() error {
		return in(func(tx pgx.Tx) error {
			_, err := mailStore.Notified(ctx, tx, list, number, mails.ReferralSMS)
			return err
		})
	}
	id := uuid.Must(uuid.NewV7()).String()
	if err := templateStore.InsertTemplate(ctx, templates.Template{
		ID: id, OwnerID: owner, Type: templates.Blast,
		Text: "x",
	}, 0, audit.Entry{}); err != nil {
		t.Fatal(err)
	}
	other := mails.Claimed{Request: mails.Request{EventID: uuid.NewString()}, Claim: uuid.NewString()}
	// Nobody has claimed other.
	lost := func(err error) error {
		if !errors.Is(err, work.ErrLost) {
			return fmt.Errorf("error %w, want ErrLost", err)
		}
		return nil
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"told", told(star)},
		{"not told", told(fan)},
		{"queue", in(func(tx pgx.Tx) error {
			return mailStore.Queue(ctx, tx, mails.Request{
				EventID: uuid.NewString(), Kind: mails.SignupConfirmation, AccountID: owner,
				WaitlistID: list, Number: fan, RequestedAt: time.Now(),
			})
		})},
		{"claim mails", func() error { _, err := mailStore.ClaimMails(ctx, 16, time.Minute); return err }},
		{"claim texts", func() error { _, err := mailStore.ClaimTexts(ctx, 16, time.Minute); return err }},
		{"renew", func() error { _, err := mailStore.Renew(ctx, time.Minute, []mails.Claimed{other, other}); return err }},
		{"defer", func() error { return lost(mailStore.Defer(ctx, other, time.Minute, "x")) }},
		{"charge", func() error {
			return mailStore.Charge(ctx, uuid.NewString(), time.Now(), []mails.Use{{Quota: mails.OwnerMails, Subject: owner, N: 1, Most: 9}})
		}},
		{"prune", func() error { _, err := mailStore.Prune(ctx, time.Now().Add(-24*time.Hour)); return err }},
		{"return", func() error { return mailStore.Return(ctx, time.Minute, []mails.Claimed{other, other}) }},
		{"canceled", func() error { return lost(mailStore.Canceled(ctx, other, "x")) }},
		{"template", func() error { _, err := templateStore.Template(ctx, owner, id); return err }},
		{"templates", func() error { _, err := templateStore.Templates(ctx, owner); return err }},
		{"types", func() error {
			_, err := templateStore.TemplateTypes(ctx, owner, []string{id, uuid.NewString()})
			return err
		}},
		{"change", func() error {
			return templateStore.ChangeTemplate(ctx, owner, id, audit.Entry{}, func(t templates.Template) (templates.Template, error) {
				t.Name += "x"
				return t, nil
			})
		}},
		{"insert", func() error {
			return templateStore.InsertTemplate(ctx, templates.Template{
				ID: uuid.NewString(), OwnerID: uuid.NewString(),
				Type: templates.Blast, Text: "x",
			}, 200, audit.Entry{})
		}},
	}
	for range 10 { // so that Postgres keeps generic plans
		for _, s := range steps {
			if err := s.do(); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
		}
	}
	for _, sql := range []string{
		"DELETE FROM sent_mail",
		// 50,000 mails were sent long ago; 50,000 of other referrers are deferred, except for 20 that are due.
		`INSERT INTO sent_mail (event_id, kind, state, recipient, generation, waitlist_id, waitlist_name, number,
			requested_at, traceparent, due_at, ended_at)
			SELECT gen_random_uuid(), 'sms', CASE WHEN i % 2 = 0 THEN 'sent' ELSE 'queued' END, '', 0, '` + list + `', '',
				CASE WHEN i % 2 = 0 THEN 1 ELSE i END, now(), '',
				now() + CASE WHEN i > 40 THEN interval '1 hour' ELSE interval '-1 hour' END, CASE WHEN i % 2 = 0 THEN now() - interval '2 hours' END
			FROM generate_series(1, 100000) i`,
		`INSERT INTO template (id, owner_id, template_type, name, subject, html_body, text_body, created_at)
			SELECT gen_random_uuid(), gen_random_uuid(), 'blast', '', '', '', 'x', now() FROM generate_series(1, 20000)`,
	} {
		testenv.Fill(t, pool, sql)
	}
	read := func() (n int64) {
		t.Helper()
		if _, err := pool.Exec(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(context.WithoutCancel(ctx), `
			SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('sent_mail', 'template', 'gone', 'tombstone'))
				+ (SELECT sum(seq_tup_read) FROM pg_stat_user_tables
					WHERE relname IN ('sent_mail', 'template', 'gone', 'tombstone'))`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, s := range steps {
		before := read()
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if n := read() - before; n > 100 {
			t.Errorf("%s reads %d rows", s.name, n)
		}
	}
}
