package audit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/libs/testenv"
	auditv1 "waitlist.internal/proto/gen/waitlist/audit/v1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func table(t *testing.T) *audit.Table {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), audit.Schema); err != nil {
		t.Fatal(err)
	}
	return &audit.Table{Pool: pool}
}

func insert(t *testing.T, trail *audit.Table, e audit.Entry) {
	t.Helper()
	ctx := telemetry.WithRequestID(t.Context(), "request-"+e.Target)
	if err := pg.InTx(ctx, trail.Pool, func(tx pgx.Tx) error { return audit.Insert(ctx, tx, e) }); err != nil {
		t.Fatal(err)
	}
}

// loopback is a client of a server, without a network.
type loopback struct{ server auditv1.AuditServiceServer }

func (l loopback) ListEntries(
	ctx context.Context, in *auditv1.ListEntriesRequest, _ ...grpc.CallOption,
) (*auditv1.ListEntriesResponse, error) {
	return l.server.ListEntries(ctx, in)
}

// What was written comes back, newest first, from the table and over gRPC.
func TestEntries(t *testing.T) {
	t.Parallel()
	trail := table(t)
	owner, member, other := uuid.NewString(), uuid.NewString(), uuid.NewString()
	actor := access.Actor{AccountID: member, CredentialID: "KEY", Grants: []access.Grant{
		{OwnerID: member, Role: access.Owner}, {OwnerID: owner, Role: access.Admin},
	}}
	before := time.Now().Truncate(time.Millisecond)
	insert(t, trail, audit.By(actor, owner, audit.WaitlistCreated, "a"))
	insert(t, trail, audit.By(access.Actor{}, owner, audit.LoginRefused, ""))
	insert(t, trail, audit.By(actor, owner, audit.WaitlistDeleted, "").On("b"))
	insert(t, trail, audit.By(actor, other, audit.WaitlistDeleted, "c"))
	want := []string{
		fmt.Sprint(owner, " ", member, " KEY admin waitlist.deleted b request-b"),
		fmt.Sprint(owner, "   none auth.login_refused  request-"),
		fmt.Sprint(owner, " ", member, " KEY admin waitlist.created a request-a"),
	}
	for name, trail := range map[string]audit.Trail{"table": trail, "remote": audit.Remote{Client: loopback{audit.NewServer(trail)}}} {
		get := func(q audit.Query) (lines []string, last string) {
			entries, err := trail.Entries(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.At.Before(before) || e.At.After(time.Now()) {
					t.Errorf("%s: at %s", name, e.At)
				}
				lines = append(lines, fmt.Sprintf("%s %s %s %s %s %s %s", e.OwnerID, e.Actor, e.Credential, e.Role, e.Action, e.Target, e.RequestID))
				last = e.ID
			}
			return lines, last
		}
		if got, _ := get(audit.Query{OwnerID: owner, Limit: 10}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		first, last := get(audit.Query{OwnerID: owner, Limit: 1})
		rest, _ := get(audit.Query{OwnerID: owner, Limit: 10, Before: last})
		if got := append(first, rest...); !slices.Equal(got, want) {
			t.Errorf("%s: two pages %q, want %q", name, got, want)
		}
		if got, _ := get(audit.Query{OwnerID: owner, Limit: 10, Action: audit.LoginRefused}); !slices.Equal(got, want[1:2]) {
			t.Errorf("%s: %q of one action", name, got)
		}
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	trail := table(t)
	one, two := uuid.NewString(), uuid.NewString()
	fill := func(owner, age string) {
		if _, err := trail.Pool.Exec(t.Context(), `
			INSERT INTO audit (owner_id, id, at, credential, role, action, target, request_id)
			SELECT $1::uuid, gen_random_uuid(), now() - $2::interval, '', '', 'auth.login', '', '' FROM generate_series(1, 6000)`,
			owner, age); err != nil {
			t.Fatal(err)
		}
	}
	count := func(want ...int) {
		t.Helper()
		for i, owner := range []string{one, two} {
			var n int
			if err := trail.Pool.QueryRow(t.Context(), `SELECT count(*) FROM audit WHERE owner_id = $1`, owner).Scan(&n); err != nil {
				t.Fatal(err)
			}
			if n != want[i] {
				t.Errorf("%d entries, want %d", n, want[i])
			}
		}
	}
	fill(one, "10 days")
	fill(one, "8 days")
	fill(two, "10 days")
	before := time.Now().Add(-9 * 24 * time.Hour)
	for more, n := true, 0; more; n++ {
		var err error
		if more, err = trail.Prune(t.Context(), before); err != nil || n > 3 {
			t.Fatalf("%d steps, %v", n, err)
		}
	}
	count(6000, 0)
	fill(two, "1 day")
	if err := trail.Forget(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	count(0, 6000)
}
