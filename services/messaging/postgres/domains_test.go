package postgres_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"log/slog"
	stdmail "net/mail"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/seal"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
)

// sealing returns a ring of keys with these ids.
func sealing(t *testing.T, ids ...string) *seal.Ring {
	t.Helper()
	for i, id := range ids {
		ids[i] = id + ":" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(id, 16)))
	}
	ring, err := seal.ParseRing(strings.Join(ids, ","))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func openDomains(t *testing.T, pool *pgxpool.Pool, method string) *postgres.Domains {
	t.Helper()
	return postgres.NewDomains(pool, sealing(t, "k1"), method, stdmail.Address{Name: "Waitlist", Address: "no-reply@example.org"})
}

// claimed is an owner's claim of a domain that the mail provider knows by an id.
func claimed(t *testing.T, s *postgres.Domains, owner, name, external string, registered bool) domains.Domain {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.InsertDomain(t.Context(), domains.Domain{
		ID: id.String(), OwnerID: owner, Name: name, State: domains.Pending, Since: time.Now(), CreatedAt: time.Now(),
		Claim: domains.Claim{
			ExternalID: external, Registered: registered,
			Records: []domains.Record{{Type: "TXT", Name: name, Value: "v", Proof: true}},
		},
	}, audit.Entry{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func forget(t *testing.T, pool *pgxpool.Pool, id string) {
	t.Helper()
	if err := pg.InTx(t.Context(), pool, func(tx pgx.Tx) error { return postgres.NewMails(pool).Forget(t.Context(), tx, id) }); err != nil {
		t.Fatal(err)
	}
	if err := (&postgres.Purge{Pool: pool}).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestTheProviderForgetsADomainWithItsLastClaim(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	s := openDomains(t, pool, "resend")
	owners := []string{uuid.NewString(), uuid.NewString(), uuid.NewString()}
	for i, owner := range owners {
		claimed(t, s, owner, "example.com", "ext1", i == 0)
	}
	claimed(t, s, owners[0], "example.net", "ext2", true)
	claimed(t, s, owners[0], "of-the-operator.example", "ext3", false)
	var released []string
	release := func(id string) error { released = append(released, id); return nil }
	// The first account is deleted: another claim takes over its registration.
	forget(t, pool, owners[0])
	if err := s.ReleaseDomains(t.Context(), 10, release); err != nil || !slices.Equal(released, []string{"ext2"}) {
		t.Fatalf("%v, %v", released, err)
	}
	if err := s.DeleteDomain(t.Context(), owners[1], "example.com", audit.Entry{}, release); err != nil || len(released) != 1 {
		t.Fatalf("%v, %v", released, err)
	}
	// During an outage of the provider the claim is kept.
	away := errors.New("away")
	if err := s.DeleteDomain(t.Context(), owners[2], "example.com", audit.Entry{}, func(string) error { return away }); !errors.Is(err, away) {
		t.Fatal(err)
	}
	if _, err := s.Domain(t.Context(), owners[2], "example.com"); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteDomain(t.Context(), owners[2], "example.com", audit.Entry{}, release); err != nil ||
		!slices.Equal(released, []string{"ext2", "ext1"}) {
		t.Fatalf("%v, %v", released, err)
	}
	if err := s.DeleteDomain(t.Context(), owners[2], "example.com", audit.Entry{}, release); !apierr.Is(err, apierr.NotFound) {
		t.Error(err)
	}
}

func TestReleasesAreRepeated(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	s, owner := openDomains(t, pool, "resend"), uuid.NewString()
	claimed(t, s, owner, "example.com", "ext1", true)
	forget(t, pool, owner)
	calls := 0
	away := errors.New("away")
	fail := func(string) error { calls++; return away }
	if err := s.ReleaseDomains(t.Context(), 10, fail); !errors.Is(err, away) || calls != 1 {
		t.Fatal(err, calls)
	}
	// Not at once, and not by a store of another method.
	if err := s.ReleaseDomains(t.Context(), 10, fail); err != nil || calls != 1 {
		t.Fatal(err, calls)
	}
	if _, err := pool.Exec(t.Context(), "UPDATE domain_release SET due_at = now()"); err != nil {
		t.Fatal(err)
	}
	if err := openDomains(t, pool, "dns").ReleaseDomains(t.Context(), 10, fail); err != nil || calls != 1 {
		t.Fatal(err, calls)
	}
	if err := s.ReleaseDomains(t.Context(), 10, func(string) error { calls++; return nil }); err != nil || calls != 2 {
		t.Fatal(err, calls)
	}
	if _, err := pool.Exec(t.Context(), "UPDATE domain_release SET due_at = now()"); err != nil {
		t.Fatal(err)
	}
	if err := s.ReleaseDomains(t.Context(), 10, fail); err != nil || calls != 2 {
		t.Fatal(err, calls)
	}
}

// provider is a mail provider that deletes domains. It implements domains.Prover.
type provider struct {
	domains.Records
	forgot []string
}

func (*provider) Method() string { return "resend" }

func (p *provider) Release(_ context.Context, id string) error {
	p.forgot = append(p.forgot, id)
	return nil
}

func TestTheProviderForgetsWhatGoesWithAnAccount(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	s, p, owner := openDomains(t, pool, "resend"), new(provider), uuid.NewString()
	owners := domains.New(domains.Config{
		Store: s, Prover: p, Every: time.Hour,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now,
	})
	claimed(t, s, owner, "example.com", "ext1", true)
	forget(t, pool, owner)
	for range 2 {
		if n, err := owners.Once(t.Context()); n != 0 || err != nil || !slices.Equal(p.forgot, []string{"ext1"}) {
			t.Errorf("%d looked at, %v forgotten, %v", n, p.forgot, err)
		}
	}
}

func TestClaimsBelongToTheirMethod(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	dns, resend, owner := openDomains(t, pool, "dns"), openDomains(t, pool, "resend"), uuid.NewString()
	d := claimed(t, dns, owner, "example.com", "", false)
	if state, err := dns.MoveDomain(t.Context(), d, domains.Verified, time.Now()); state != domains.Verified || err != nil {
		t.Fatal(state, err)
	}
	if _, err := resend.Domain(t.Context(), owner, "example.com"); !apierr.Is(err, apierr.NotFound) {
		t.Error(err)
	}
	if from, _, err := resend.Sender(t.Context(), owner); err != nil || from.Address != "" {
		t.Error(from, err)
	}
	if list, err := resend.DueDomains(t.Context(), 10, time.Minute); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	if from, key, err := dns.Sender(t.Context(), owner); err != nil || from.Address != "no-reply@example.com" || key != nil {
		t.Error(from, key, err)
	}
}

func TestMovesAreDecidedByTheLatestState(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	s, one, two := openDomains(t, pool, "dns"), uuid.NewString(), uuid.NewString()
	first, second := claimed(t, s, one, "example.com", "", false), claimed(t, s, two, "example.com", "", false)
	if state, err := s.MoveDomain(t.Context(), first, domains.Verified, time.Now()); state != domains.Verified || err != nil {
		t.Fatal(state, err)
	}
	// A check that began earlier does not overwrite the change.
	if state, err := s.MoveDomain(t.Context(), first, domains.Failed, time.Now()); state != domains.Verified || err != nil {
		t.Error(state, err)
	}
	if state, err := s.MoveDomain(t.Context(), second, domains.Verified, time.Now()); state != domains.Pending || err != nil {
		t.Error(state, err)
	}
	if taken, err := s.Taken(t.Context(), two, "example.com"); !taken || err != nil {
		t.Error(taken, err)
	}
	if taken, err := s.Taken(t.Context(), one, "example.com"); taken || err != nil {
		t.Error(taken, err)
	}
	// A deleted account has no domains, although its rows still exist.
	if _, err := pool.Exec(t.Context(), "INSERT INTO gone (id) VALUES ($1)", one); err != nil {
		t.Fatal(err)
	}
	if taken, err := s.Taken(t.Context(), two, "example.com"); taken || err != nil {
		t.Error(taken, err)
	}
}

func TestSuppressedAddresses(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	l := postgres.NewMails(pool)
	suppress := func(id string, reason mails.SuppressionReason, emails ...string) {
		t.Helper()
		if err := l.Suppress(t.Context(), id, reason, emails); err != nil {
			t.Fatal(err)
		}
	}
	suppress("n1", mails.Bounced, "a@example.org", "a@example.org", "b@example.org")
	suppress("n2", mails.Complained, "a@example.org")
	suppress("n1", mails.Bounced, "c@example.org") // a repeated notification
	got, err := l.Suppressed(t.Context(), []string{"a@example.org", "b@example.org", "c@example.org", "d@example.org"})
	if err != nil || len(got) != 2 || !got["a@example.org"] || !got["b@example.org"] {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := l.Suppressed(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM suppression WHERE suppression::text LIKE "+
		"'%example%'").Scan(&n); err != nil || n != 0 {
		t.Error(n, err)
	}
	// Notifications are deleted; suppressed addresses are kept.
	if _, err := pool.Exec(t.Context(), "UPDATE notification SET received_at = now() - interval '8 days' WHERE id = 'n1'"); err != nil {
		t.Fatal(err)
	}
	if err := (&postgres.Purge{Pool: pool}).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM notification").Scan(&n); err != nil || n != 1 {
		t.Error(n, err)
	}
	if got, err := l.Suppressed(t.Context(), []string{"b@example.org"}); err != nil || !got["b@example.org"] {
		t.Errorf("%v, %v", got, err)
	}
}

// With many claims, every statement uses an index.
func TestClaimsAreFoundByIndexes(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 1, postgres.Migrations)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Fill(t, pool,
		`INSERT INTO domain
		SELECT gen_random_uuid(), 'resend', gen_random_uuid(), 'd' || i || '.example', 'pending', now(), now(),
			'[]', '', '', 'ext' || i, true, now() + interval '1 hour'
		FROM generate_series(1, 20000) i`,
	)
	testenv.Fill(t, pool, "INSERT INTO domain_release SELECT 'old' || i, 'resend', now() + interval '1 hour' FROM generate_series(1, 20000) i")
	testenv.Fill(t, pool, "INSERT INTO suppression SELECT sha256(i::text::bytea), 'bounce' FROM generate_series(1, 20000) i")
	testenv.Fill(t, pool, "INSERT INTO notification SELECT 'n' || i FROM generate_series(1, 20000) i")
	exec("ANALYZE domain, domain_release, suppression, notification")
	scans := func() (out map[string]int64) {
		t.Helper()
		exec("SELECT pg_stat_force_next_flush()")
		rows, err := pool.Query(t.Context(), "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname IN ('domain', "+
			"'domain_release', 'suppression', 'notification')")
		if err != nil {
			t.Fatal(err)
		}
		out = map[string]int64{}
		var name string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { out[name] = n; return nil }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := scans()
	s, l, owner := openDomains(t, pool, "resend"), postgres.NewMails(pool), uuid.NewString()
	d := claimed(t, s, owner, "example.com", "ext", true)
	claimed(t, s, owner, "example.net", "ext", false)
	if _, err := s.MoveDomain(t.Context(), d, domains.Verified, time.Now()); err != nil {
		t.Fatal(err)
	}
	_, domainErr := s.Domain(t.Context(), owner, "example.com")
	_, domainsErr := s.Domains(t.Context(), owner)
	_, takenErr := s.Taken(t.Context(), owner, "example.com")
	_, dueErr := s.DueDomains(t.Context(), 10, time.Minute)
	_, _, senderErr := s.Sender(t.Context(), owner)
	_, suppressedErr := l.Suppressed(t.Context(), []string{"a@example.org", "b@example.org"})
	if err := errors.Join(
		domainErr, domainsErr, takenErr, dueErr, senderErr, suppressedErr,
		l.Suppress(t.Context(), "n", mails.Bounced, []string{"a@example.org"}),
		s.DeleteDomain(t.Context(), owner, "example.com", audit.Entry{}, func(string) error { return nil }),
		s.ReleaseDomains(t.Context(), 10, func(string) error { return nil }),
	); err != nil {
		t.Fatal(err)
	}
	forget(t, pool, owner)
	for name, n := range scans() {
		if n != before[name] {
			t.Errorf("%s was read as a whole %d times", name, n-before[name])
		}
	}
	rows, err := pool.Query(t.Context(), "SELECT indexrelname FROM pg_stat_user_indexes WHERE idx_scan > 0")
	if err != nil {
		t.Fatal(err)
	}
	used, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range []string{
		"domain_pkey", "domain_claim", "domain_verified", "domain_due", "domain_external", "domain_release_due",
		"suppression_pkey", "notification_received_at",
	} {
		if !slices.Contains(used, index) {
			t.Errorf("%s was not used", index)
		}
	}
}

// TestReseal: afterwards the new key alone opens what the former one opened.
func TestReseal(t *testing.T) {
	t.Parallel()
	pool := testenv.Migrated(t, messaging.Name, 4, postgres.Migrations)
	former, owner := openDomains(t, pool, "dkim"), uuid.NewString()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"example.com", "broken.example"} {
		if _, err := former.InsertDomain(t.Context(), domains.Domain{
			ID: uuid.Must(uuid.NewV7()).String(), OwnerID: owner, Name: name, State: domains.Pending,
			Since: time.Now(), CreatedAt: time.Now(),
			Claim: domains.Claim{Key: &domains.DKIM{Domain: name, Selector: "s", Key: key}},
		}, audit.Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	claimed(t, former, owner, "without-a-key.example", "", false)
	if _, err := pool.Exec(t.Context(), "UPDATE domain SET key = 's1.gone.AAAA' WHERE name = 'broken.example'"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		n, err := postgres.ResealDomains(t.Context(), pool, sealing(t, "k2", "k1"))
		if n != want || !errors.Is(err, seal.ErrCorrupt) {
			t.Errorf("%d, %v", n, err)
		}
	}
	alone := postgres.NewDomains(pool, sealing(t, "k2"), "dkim", stdmail.Address{Address: "no-reply@example.org"})
	if d, err := alone.Domain(t.Context(), owner, "example.com"); err != nil || !d.Key.Key.Equal(key) {
		t.Error(err)
	}
}
