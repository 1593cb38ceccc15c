package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
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
SELECT s.token, s.number, s.email, s.referral_count, s.queue_key,
    ARRAY(SELECT a.queue_key FROM signup a WHERE a.waitlist_id = $1 AND a.queue_key < s.queue_key
          ORDER BY a.queue_key DESC LIMIT t.reach)
FROM ROWS FROM (unnest($2::uuid[]), unnest($3::integer[])) AS t (token, reach), LATERAL (
    SELECT token, number, email, referral_count, queue_key FROM signup WHERE waitlist_id = $1 AND token = t.token LIMIT 1
) s`

// headSQL reads what a batch starts from, in one row or one for each address that is present.
// Three statements would read the same, but Postgres would start a plan for each.
const headSQL = `
SELECT coalesce(c.no, 0), coalesce(c.live, 0), coalesce(c.total, 0), coalesce(c.credited, 0), coalesce(c.last_number, 0),
    coalesce(k.queue_key, 0), p.email, p.token, p.number
FROM (VALUES (1)) AS one (row)
LEFT JOIN (` + stateSQL + `) c ON true
LEFT JOIN (` + presentSQL + `) p ON true
LEFT JOIN (` + lastKeySQL + `) k ON true`

// column is a column of signup that a batch fills.
type column struct {
	name, sqlType string
	// value returns the column's value for one insert, values its values for all inserts, as an
	// array for pgx.
	value  func(*queue.Insert) any
	values func([]queue.Insert) any
}

func col[T any](name, sqlType string, value func(*queue.Insert) T) column {
	return column{name, sqlType, func(r *queue.Insert) any { return value(r) }, func(inserts []queue.Insert) any {
		out := make(pgtype.FlatArray[T], len(inserts)) // a plain slice of some types is encoded by reflection
		for i := range inserts {
			out[i] = value(&inserts[i])
		}
		return out
	}}
}

var insertColumns = []column{
	col("number", "bigint", func(r *queue.Insert) int64 { return r.Number }),
	col("queue_key", "bigint", func(r *queue.Insert) int64 { return r.Key }),
	col("email", "text", func(r *queue.Insert) string { return r.Email }),
	col("token", "uuid", func(r *queue.Insert) uuid.UUID { return uuid.UUID(r.Token) }),
	col("created_at", "timestamptz", func(r *queue.Insert) time.Time { return r.CreatedAt }),
	col("first_name", "text", func(r *queue.Insert) string { return r.FirstName }),
	col("last_name", "text", func(r *queue.Insert) string { return r.LastName }),
	col("phone", "text", func(r *queue.Insert) string { return r.Phone }),
	col("timezone", "text", func(r *queue.Insert) string { return r.Timezone }),
	col("device_type", "text", func(r *queue.Insert) string { return r.Device }),
	col("utm_source", "text", func(r *queue.Insert) string { return r.UTMSource }),
	col("utm_medium", "text", func(r *queue.Insert) string { return r.UTMMedium }),
	col("utm_campaign", "text", func(r *queue.Insert) string { return r.UTMCampaign }),
	col("utm_term", "text", func(r *queue.Insert) string { return r.UTMTerm }),
	col("utm_content", "text", func(r *queue.Insert) string { return r.UTMContent }),
	col("custom_answers", "jsonb", func(r *queue.Insert) *string { return nullable(string(r.Answers), r.Answers != nil) }),
	col("referrer_number", "bigint", func(r *queue.Insert) *int64 { return nullable(r.ReferrerNumber, r.ReferrerNumber != 0) }),
	col("referrer_token", "uuid", func(r *queue.Insert) *uuid.UUID { return nullable(uuid.UUID(r.ReferredBy), r.Referred) }),
	col("consent_given_at", "timestamptz", func(r *queue.Insert) *time.Time { return nullable(r.ConsentAt, !r.ConsentAt.IsZero()) }),
	col("consent_text_version", "text", func(r *queue.Insert) string { return r.ConsentVersion }),
	col("privacy_policy_version", "text", func(r *queue.Insert) string { return r.PolicyVersion }),
}

// insertSQL takes the waitlist's id and one array for each of insertColumns, insertOneSQL the
// values of one row, which takes Postgres half the time.
var insertSQL, insertOneSQL = func() (many, one string) {
	var names, arrays, selected, single []string
	for i, c := range insertColumns {
		sent := c.sqlType
		if sent == "jsonb" {
			sent = "text" // cast when it is selected
		}
		names = append(names, c.name)
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+2, sent))
		selected = append(selected, "r."+c.name+"::"+c.sqlType)
		single = append(single, fmt.Sprintf("$%d::%s::%s", i+2, sent, c.sqlType))
	}
	columns := strings.Join(names, ", ")
	return fmt.Sprintf("INSERT INTO signup (waitlist_id, %[1]s) SELECT $1, %[2]s FROM unnest(%[3]s) AS r (%[1]s)",
			columns, strings.Join(selected, ", "), strings.Join(arrays, ", ")),
		fmt.Sprintf("INSERT INTO signup (waitlist_id, %s) VALUES ($1, %s)", columns, strings.Join(single, ", "))
}()

// bucketsSQL adds to the numbers of signups by bucket.
const bucketsSQL = `
INSERT INTO queue_bucket AS b (waitlist_id, bucket, live)
SELECT $1, bucket, live FROM unnest($2::bigint[], $3::bigint[]) AS k (bucket, live)
ON CONFLICT (waitlist_id, bucket) DO UPDATE SET live = b.live + excluded.live`

// batchBucketUpdates adds to b the new counts of the buckets whose keys signups take or leave.
func batchBucketUpdates(b *pgx.Batch, waitlistID string, taken, left []int64) {
	live := map[int64]int64{}
	for _, key := range taken {
		live[key>>32]++
	}
	for _, key := range left {
		live[key>>32]--
	}
	maps.DeleteFunc(live, func(_, n int64) bool { return n == 0 })
	buckets, counts := make([]int64, 0, len(live)), make([]int64, 0, len(live))
	for bucket, n := range live {
		buckets, counts = append(buckets, bucket), append(counts, n)
	}
	if len(live) > 0 {
		b.Queue(bucketsSQL, waitlistID, buckets, counts)
	}
}

// placeSQL gives referrers their new keys and referrals. It finds their rows by ctid: a
// plain join may be planned to read the whole waitlist, and so may the key beside ctid if
// an index can find it. One statement writes all rows, because a referrer may get a key
// that another one leaves.
const placeSQL = `
UPDATE signup s SET queue_key = p.queue_key, referral_count = s.referral_count + p.count, referral_at = $5
FROM (
    SELECT r.ctid, m.number, m.queue_key, m.count
    FROM ROWS FROM (unnest($2::bigint[]), unnest($3::bigint[]), unnest($4::integer[])) AS m (number, queue_key, count), LATERAL (
        SELECT ctid FROM signup WHERE waitlist_id = $1 AND number = m.number LIMIT 1
    ) r
) p
WHERE s.ctid = p.ctid AND (s.waitlist_id, s.number) IS NOT DISTINCT FROM ($1, p.number)`

// Join implements join.Store. It takes two round trips: one begins, locks and
// reads, the other writes and commits. A third reads the waitlist if its settings
// have changed.
func (s *Signups) Join(
	ctx context.Context, waitlistID string, joins []*queue.Join, decide func(*queue.Locked) *queue.Batch,
) (*queue.Batch, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, &join.RetryError{Err: fmt.Errorf("acquire connection: %w", err)}
	}
	defer conn.Release()
	b, err := storeBatch(ctx, conn, waitlistID, joins, decide)
	if err != nil {
		// On a broken connection this fails too, and the pool drops the connection.
		rb, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = conn.Exec(rb, "ROLLBACK")
		return nil, classify(err)
	}
	s.wake()
	s.changed("signup", len(b.Inserts))
	credits := 0
	for i := range b.Credits {
		credits += int(b.Credits[i].Count)
	}
	s.changed("credit", credits)
	return b, nil
}

func storeBatch(
	ctx context.Context, conn *pgxpool.Conn, waitlistID string, joins []*queue.Join, decide func(*queue.Locked) *queue.Batch,
) (*queue.Batch, error) {
	l, err := lockAndRead(ctx, conn, waitlistID, joins)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(joins, l.Outdated) {
		if l.Waitlist, err = getWaitlist(ctx, db.New(conn), waitlistID); err != nil {
			return nil, err
		}
	}
	b := decide(l)
	if len(b.Inserts) == 0 {
		_, err := conn.Exec(ctx, "COMMIT")
		return b, err
	}
	return b, write(ctx, conn, waitlistID, b)
}

// lockAndRead begins the transaction, locks the waitlist and reads what the
// batch needs, in one round trip. Each statement after the lock has its own
// snapshot, so it sees what the previous holder of the lock committed.
func lockAndRead(ctx context.Context, conn *pgxpool.Conn, waitlistID string, joins []*queue.Join) (*queue.Locked, error) {
	emails := make([]string, len(joins))
	for i, j := range joins {
		emails[i] = j.Email
	}
	reach := queue.KeysNeeded(joins)
	l := &queue.Locked{Present: map[string]queue.PresentRow{}}
	var b pgx.Batch
	b.Queue("BEGIN")
	// Without this, Postgres plans each execution anew, which takes longer than the
	// lookup itself.
	b.Queue("SET LOCAL plan_cache_mode = force_generic_plan")
	b.Queue(lockSQL, waitlistID).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&l.SettingsVersion, &l.OwnerVersion)
		if errors.Is(err, pgx.ErrNoRows) {
			return waitlist.ErrNotFound()
		}
		return err
	})
	b.Queue(headSQL, waitlistID, emails).Query(func(rows pgx.Rows) error {
		var email *string
		var token *uuid.UUID
		var number *int64
		st := &l.State
		_, err := pgx.ForEachRow(rows, []any{
			&st.Change, &st.Live, &st.Total, &st.Credited, &st.LastNumber, &l.LastKey, &email, &token, &number,
		}, func() error {
			if email != nil {
				l.Present[*email] = queue.PresentRow{Token: queue.Token(*token), Number: *number}
			}
			return nil
		})
		return err
	})
	batchReferrerReads(&b, waitlistID, reach, l)
	batchGuardReads(&b, waitlistID, joins, l)
	return l, conn.SendBatch(ctx, &b).Close()
}

// batchReferrerReads adds to b a read of the referrers, and of as many keys ahead of each as
// reach says.
func batchReferrerReads(b *pgx.Batch, waitlistID string, reach map[queue.Token]int, l *queue.Locked) {
	if len(reach) == 0 {
		return
	}
	tokens, most := make([]uuid.UUID, 0, len(reach)), make([]int32, 0, len(reach))
	for token, n := range reach {
		tokens, most = append(tokens, uuid.UUID(token)), append(most, int32(n))
	}
	l.Referrers = make(map[queue.Token]queue.ReferrerRow, len(reach))
	b.Queue(referrersSQL, waitlistID, tokens, most).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var token uuid.UUID
			var r queue.ReferrerRow
			if err := rows.Scan(&token, &r.Number, &r.Email, &r.Count, &r.Key, &r.Ahead); err != nil {
				return err
			}
			r.Front = len(r.Ahead) < reach[queue.Token(token)]
			l.Referrers[queue.Token(token)] = r
		}
		return rows.Err()
	})
}

// write inserts everything and commits, in one round trip.
func write(ctx context.Context, conn *pgxpool.Conn, waitlistID string, d *queue.Batch) error {
	var b pgx.Batch
	args := make([]any, 1, 1+len(insertColumns))
	args[0] = waitlistID
	sql := insertSQL
	if len(d.Inserts) == 1 {
		sql = insertOneSQL
	}
	for _, c := range insertColumns {
		if len(d.Inserts) == 1 {
			args = append(args, c.value(&d.Inserts[0]))
		} else {
			args = append(args, c.values(d.Inserts))
		}
	}
	b.Queue(sql, args...)
	batchKeyUpdates(&b, waitlistID, d)
	batchGuardWrites(&b, waitlistID, d.Inserts)
	events := outbox.Message{Topic: kafka.SignupsTopic, Key: waitlistID, Events: d.Events, Traceparents: d.Traceparents}
	if err := outbox.Queue(ctx, &b, events); err != nil {
		return err
	}
	b.Queue("COMMIT")
	return conn.SendBatch(ctx, &b).Close()
}

// batchKeyUpdates adds to b the keys that the batch gives and the change that it makes.
func batchKeyUpdates(b *pgx.Batch, waitlistID string, d *queue.Batch) {
	var (
		taken, left, touched, numbers, keys, places []int64
		counts                                      []int32
	)
	for i := range d.Inserts {
		taken = append(taken, d.Inserts[i].Key)
	}
	for _, m := range d.Moves {
		numbers, keys, counts = append(numbers, m.Number), append(keys, m.To), append(counts, m.Count)
		if m.To != m.From {
			taken, left, touched = append(taken, m.To), append(left, m.From), append(touched, m.Number)
		}
	}
	batchBucketUpdates(b, waitlistID, taken, left)
	change := changeArgs(waitlistID, d.State, d.Inserts[0].Number)
	if d.Moves != nil || len(d.Credits) == 0 {
		if len(d.Moves) > 0 {
			b.Queue(placeSQL, waitlistID, numbers, keys, counts, d.CreditedAt)
		}
		b.Queue(changeSQL+`coalesce($9::bigint[], '{}'))`, append(change, touched)...)
		return
	}
	for _, c := range d.Credits {
		numbers, counts, places = append(numbers, c.Number), append(counts, c.Count), append(places, c.Places)
	}
	b.Queue(changeSQL+creditSQL, append(change, numbers, counts, places, d.CreditedAt)...)
}

// classify marks errors that a retry may cure, and those that one row may have
// caused.
func classify(err error) error {
	var pe *pgconn.PgError
	switch {
	case pg.Retryable(err), outage.Is(err):
		return &join.RetryError{Err: err}
	case errors.As(err, &pe) && (pe.Code[:2] == "22" || pe.Code[:2] == "23"):
		return &join.RowError{Err: err}
	default:
		return err
	}
}
