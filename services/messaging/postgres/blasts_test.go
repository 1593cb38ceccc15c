package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
)

// The rows that a statement about blasts reads do not grow with the number of blasts or recipients, even if
// its plan was made while the tables were empty.
func TestStatementsOfBlastsReadWhatTheyNeed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testenv.Migrated(t, messaging.Name, 1, postgres.Migrations)
	blastStore := postgres.NewBlasts(pool, time.Now)
	const (
		list  = "0197f0c4-6d0e-7cc1-a2a3-000000000001"
		owner = "0197f0c4-6d0e-7cc1-a2a3-00000000000a"
		large = "0197f0c4-6d0e-7cc1-a2a3-0000000000ff"
	)
	batch := blasts.Batch{BlastID: large, Number: 500, Claim: uuid.NewString(), First: 50_001, Last: 50_100}
	steps := []struct {
		name string
		do   func() error
	}{
		{"create", func() error {
			_, _, _, err := blastStore.Create(ctx, blasts.NewBlast{
				Request: blasts.Request{WaitlistID: list, OwnerID: owner, AccountID: owner, Key: uuid.NewString()},
				ID:      uuid.NewString(), CreatedAt: time.Now(),
				Use: mails.Use{Quota: mails.OwnerMails, Subject: owner, N: 1, Most: 1000},
			})
			return err
		}},
		{"blast", func() error { _, err := blastStore.Blast(ctx, large); return err }},
		{"blasts", func() error { _, err := blastStore.Blasts(ctx, list); return err }},
		{"claim a plan", func() error { _, _, err := blastStore.ClaimPlan(ctx, time.Minute); return err }},
		{"extend", func() error {
			return blastStore.Extend(ctx, blasts.Plan{BlastID: large, To: -1}, []int64{1}, false)
		}},
		{"pause a plan", func() error { return blastStore.PausePlan(ctx, blasts.Plan{BlastID: large, To: -1}, time.Minute) }},
		{"gone", func() error { return blastStore.Gone(ctx, uuid.NewString()) }},
		{"claim", func() error {
			_, err := blastStore.Claim(ctx, uuid.Nil.String(), 4, uuid.NewString(), time.Minute)
			return err
		}},
		{"charge", func() error {
			_, err := blastStore.Charge(ctx, batch, 1000, []blasts.Recipient{{Number: 1, Email: "a"}})
			return err
		}},
		{"renew", func() error { _, err := blastStore.Renew(ctx, time.Minute, []blasts.Batch{batch}); return err }},
		{"pending", func() error { _, err := blastStore.Pending(ctx, batch); return err }},
		{"record", func() error {
			var group []blasts.Result
			for i := range int64(8) {
				group = append(group, blasts.Result{BlastID: large, Number: 77 + 100*i, Outcome: blasts.MailSent})
			}
			return blastStore.Record(ctx, group)
		}},
		{"end", func() error { return blastStore.End(ctx, batch) }},
		{"return", func() error { return blastStore.Return(ctx, batch, time.Minute, true) }},
		{"pace", func() error { _, err := blastStore.Pace(ctx, 1, 1e6); return err }},
		{"prune", func() error { _, err := blastStore.PruneBlasts(ctx, time.Now().Add(-24*time.Hour)); return err }},
	}
	for range 10 { // so that Postgres keeps generic plans
		for _, s := range steps {
			if err := s.do(); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
		}
	}
	for _, sql := range []string{
		`INSERT INTO blast (id, waitlist_id, owner_id, subject, html_body, text_body, traceparent, created_at, planned, batches, state)
			VALUES ('` + large + `', gen_random_uuid(), gen_random_uuid(), '', '', 'x', '', now(), true, 1000, 'sending')`,
		`INSERT INTO blast_recipient (blast_id, number) SELECT '` + large + `', i FROM generate_series(1, 100000) i`,
		`INSERT INTO blast_batch (blast_id, batch, first_number, last_number, state, due_at, claim)
			SELECT '` + large + `', i, i * 100 + 1, i * 100 + 100, CASE WHEN i < 400 THEN 'ended' ELSE 'ready' END,
				now() + CASE WHEN i < 600 THEN interval '1 hour' ELSE interval '-1 hour' END, CASE WHEN i = 500 THEN '` + batch.Claim + `'::uuid END
			FROM generate_series(0, 999) i`,
		// Ended blasts of other owners.
		`INSERT INTO blast (id, waitlist_id, owner_id, subject, html_body, text_body, traceparent, created_at, planned, state, ended_at)
			SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), '', '', '', '', now(), true, 'sent', now()
			FROM generate_series(1, 20000)`,
		`INSERT INTO quota_use (quota, subject, hour, used)
			SELECT CASE WHEN i % 2 = 0 THEN 'owner_mails' ELSE 'recipient_mails' END, sha256(i::text::bytea), date_trunc('hour', now()), 1
			FROM generate_series(1, 20000) i`,
	} {
		testenv.Fill(t, pool, sql)
	}
	const tables = "('blast', 'blast_batch', 'blast_recipient', 'quota_use', 'blast_pace', 'idempotency_key', 'gone', 'tombstone')"
	read := func() (n int64) {
		t.Helper()
		if _, err := pool.Exec(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(context.WithoutCancel(ctx), `
			SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN `+tables+`)
				+ (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN `+tables+`)`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, s := range steps {
		before := read()
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		// A batch has a hundred recipients.
		if n := read() - before; n > 250 {
			t.Errorf("%s reads %d rows", s.name, n)
		}
	}
}
