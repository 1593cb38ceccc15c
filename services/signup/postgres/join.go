package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/signup"
	"waitlist.internal/services/signup/postgres/db"
)

const lastKeySQL = `
SELECT queue_key FROM signup WHERE waitlist_id = $1 ORDER BY queue_key DESC LIMIT 1`

// presentSQL and referrersSQL look up each value by itself. With = ANY, a cached
// plan from when the table was small reads the whole waitlist for every batch.
const presentSQL = `
SELECT s.email, s.token, s.number FROM unnest($2::text[]) AS e (email), LATERAL (
    SELECT email, token, number FROM signup WHERE waitlist_id = $1 AND email = e.email LIMIT 1
) s`

const referrersSQL = `
SELECT s.token, s.number, s.email, s.referral_count FROM unnest($2::uuid[]) AS t (token), LATERAL (
    SELECT token, number, email, referral_count FROM signup WHERE waitlist_id = $1 AND token = t.token LIMIT 1
) s`

// column is a column of signup that a batch fills.
type column struct {
	name, sqlType string
	// values returns the column of all inserts as a Go slice that pgx sends as an array.
	values func([]signup.Insert) any
}

func values[T any](value func(*signup.Insert) T) func([]signup.Insert) any {
	return func(inserts []signup.Insert) any {
		out := make([]T, len(inserts))
		for i := range inserts {
			out[i] = value(&inserts[i])
		}
		return out
	}
}

var insertColumns = []column{
	{"number", "bigint", values(func(r *signup.Insert) int64 { return r.Number })},
	{"queue_key", "bigint", values(func(r *signup.Insert) int64 { return r.Key })},
	{"email", "text", values(func(r *signup.Insert) string { return r.Email })},
	{"token", "uuid", values(func(r *signup.Insert) uuid.UUID { return uuid.UUID(r.Token) })},
	{"created_at", "timestamptz", values(func(r *signup.Insert) time.Time { return r.CreatedAt })},
	{"first_name", "text", values(func(r *signup.Insert) string { return r.FirstName })},
	{"last_name", "text", values(func(r *signup.Insert) string { return r.LastName })},
	{"phone", "text", values(func(r *signup.Insert) string { return r.Phone })},
	{"timezone", "text", values(func(r *signup.Insert) string { return r.Timezone })},
	{"device_type", "text", values(func(r *signup.Insert) string { return r.Device })},
	{"utm_source", "text", values(func(r *signup.Insert) string { return r.UTMSource })},
	{"utm_medium", "text", values(func(r *signup.Insert) string { return r.UTMMedium })},
	{"utm_campaign", "text", values(func(r *signup.Insert) string { return r.UTMCampaign })},
	{"utm_term", "text", values(func(r *signup.Insert) string { return r.UTMTerm })},
	{"utm_content", "text", values(func(r *signup.Insert) string { return r.UTMContent })},
	{"custom_answers", "jsonb", values(func(r *signup.Insert) *string { return nullable(string(r.Answers), r.Answers != nil) })},
	{"referrer_number", "bigint", values(func(r *signup.Insert) *int64 { return nullable(r.ReferrerNumber, r.ReferrerNumber != 0) })},
	{"referrer_token", "uuid", values(func(r *signup.Insert) *uuid.UUID { return nullable(uuid.UUID(r.ReferredBy), r.Referred) })},
	{"consent_given_at", "timestamptz", values(func(r *signup.Insert) *time.Time { return nullable(r.ConsentAt, !r.ConsentAt.IsZero()) })},
	{"consent_text_version", "text", values(func(r *signup.Insert) string { return r.ConsentVersion })},
	{"privacy_policy_version", "text", values(func(r *signup.Insert) string { return r.PolicyVersion })},
}

// keyArg is where queue_key stands among the arguments of insertSQL.
const keyArg = 2

// insertSQL takes the waitlist's id and one array for each of insertColumns.
var insertSQL = func() string {
	var names, arrays, selected []string
	for i, c := range insertColumns {
		sent := c.sqlType
		if sent == "jsonb" {
			sent = "text" // cast when it is selected
		}
		names = append(names, c.name)
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+2, sent))
		selected = append(selected, "r."+c.name+"::"+c.sqlType)
	}
	return fmt.Sprintf("INSERT INTO signup (waitlist_id, %[1]s) SELECT $1, %[2]s FROM unnest(%[3]s) AS r (%[1]s)",
		strings.Join(names, ", "), strings.Join(selected, ", "), strings.Join(arrays, ", "))
}()

const bucketsSQL = `
INSERT INTO queue_bucket AS b (waitlist_id, bucket, live)
SELECT $1, key >> 32, count(*) FROM unnest($2::bigint[]) AS key GROUP BY key >> 32
ON CONFLICT (waitlist_id, bucket) DO UPDATE SET live = b.live + excluded.live`

// creditSQL completes changeSQL: it credits and moves referrers.
const creditSQL = `queue_credit($1, $9, $10, $11, $12))`

// Join implements signup.Store. It takes two round trips: one begins, locks and
// reads, the other writes and commits. A third reads the waitlist if its settings
// have changed.
func (s *Signups) Join(ctx context.Context, waitlistID string, joins []*signup.Join, decide func(*signup.Locked) *signup.Batch) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return &signup.RetryError{Err: fmt.Errorf("acquire connection: %w", err)}
	}
	defer conn.Release()
	if err := join(ctx, conn, waitlistID, joins, decide); err != nil {
		// On a broken connection this fails too, and the pool drops the connection.
		rb, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = conn.Exec(rb, "ROLLBACK")
		return classify(err)
	}
	s.wake()
	return nil
}

func join(
	ctx context.Context, conn *pgxpool.Conn, waitlistID string, joins []*signup.Join, decide func(*signup.Locked) *signup.Batch,
) error {
	l, err := lockAndRead(ctx, conn, waitlistID, joins)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(joins, l.Outdated) {
		if l.Waitlist, err = getWaitlist(ctx, db.New(conn), waitlistID); err != nil {
			return err
		}
	}
	b := decide(l)
	if len(b.Inserts) == 0 {
		_, err := conn.Exec(ctx, "COMMIT")
		return err
	}
	return write(ctx, conn, waitlistID, b)
}

// lockAndRead begins the transaction, locks the waitlist and reads what the
// batch needs, in one round trip. Each statement after the lock has its own
// snapshot, so it sees what the previous holder of the lock committed.
func lockAndRead(ctx context.Context, conn *pgxpool.Conn, waitlistID string, joins []*signup.Join) (*signup.Locked, error) {
	emails := make([]string, len(joins))
	var tokens []uuid.UUID
	for i, j := range joins {
		emails[i] = j.Email
		if j.HasReferrer {
			tokens = append(tokens, uuid.UUID(j.ReferredBy))
		}
	}
	l := &signup.Locked{Present: map[string]signup.PresentRow{}}
	var b pgx.Batch
	b.Queue("BEGIN")
	// Without this, Postgres plans each execution anew, which takes longer than the
	// lookup itself.
	b.Queue("SET LOCAL plan_cache_mode = force_generic_plan")
	b.Queue(lockSQL, waitlistID).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&l.SettingsVersion, &l.OwnerVersion)
		if errors.Is(err, pgx.ErrNoRows) {
			return signup.ErrNoWaitlist()
		}
		return err
	})
	b.Queue(stateSQL, waitlistID).QueryRow(func(row pgx.Row) (err error) {
		l.State, err = scanState(row)
		return err
	})
	b.Queue(lastKeySQL, waitlistID).QueryRow(func(row pgx.Row) error {
		if err := row.Scan(&l.LastKey); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	})
	b.Queue(presentSQL, waitlistID, emails).Query(func(rows pgx.Rows) error {
		var email string
		var token uuid.UUID
		var number int64
		_, err := pgx.ForEachRow(rows, []any{&email, &token, &number}, func() error {
			l.Present[email] = signup.PresentRow{Token: signup.Token(token), Number: number}
			return nil
		})
		return err
	})
	if len(tokens) > 0 {
		l.Referrers = make(map[signup.Token]signup.ReferrerRow, len(tokens))
		b.Queue(referrersSQL, waitlistID, tokens).Query(func(rows pgx.Rows) error {
			var token uuid.UUID
			var r signup.ReferrerRow
			_, err := pgx.ForEachRow(rows, []any{&token, &r.Number, &r.Email, &r.Count}, func() error {
				l.Referrers[signup.Token(token)] = r
				return nil
			})
			return err
		})
	}
	queueSeen(&b, waitlistID, joins, l)
	return l, conn.SendBatch(ctx, &b).Close()
}

// write inserts everything and commits, in one round trip.
func write(ctx context.Context, conn *pgxpool.Conn, waitlistID string, d *signup.Batch) error {
	var b pgx.Batch
	args := make([]any, 1, 1+len(insertColumns))
	args[0] = waitlistID
	for _, c := range insertColumns {
		args = append(args, c.values(d.Inserts))
	}
	b.Queue(insertSQL, args...)
	b.Queue(bucketsSQL, waitlistID, args[keyArg])
	first := d.Inserts[0].Number
	if len(d.Credits) == 0 {
		b.Queue(changeSQL+`'{}')`, changeArgs(waitlistID, d.State, first)...)
	} else {
		numbers, counts, places := make([]int64, len(d.Credits)), make([]int32, len(d.Credits)), make([]int64, len(d.Credits))
		for i, c := range d.Credits {
			numbers[i], counts[i], places[i] = c.Number, c.Count, c.Places
		}
		b.Queue(changeSQL+creditSQL,
			append(changeArgs(waitlistID, d.State, first), numbers, counts, places, d.CreditedAt)...)
	}
	queueGuarded(&b, waitlistID, d.Inserts)
	if err := outbox.Queue(ctx, &b, outbox.Message{Topic: kafka.SignupsTopic, Key: waitlistID, Events: d.Events}); err != nil {
		return err
	}
	b.Queue("COMMIT")
	return conn.SendBatch(ctx, &b).Close()
}

func nullable[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// classify marks errors that a retry may cure, and those that one row may have
// caused.
func classify(err error) error {
	var pe *pgconn.PgError
	switch {
	case pg.Retryable(err), outage.Is(err):
		return &signup.RetryError{Err: err}
	case errors.As(err, &pe) && (pe.Code[:2] == "22" || pe.Code[:2] == "23"):
		return &signup.RowError{Err: err}
	default:
		return err
	}
}
