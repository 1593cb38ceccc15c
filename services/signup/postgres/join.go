package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outage"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup"
)

// spacing is the distance between the keys of consecutive signups: 20 midpoints
// fit between two before the queue has to be respaced, and 2^53, up to which
// Redis' scores are exact, is 8.6 billion signups away.
const spacing = 1 << 20

const lastKeySQL = `
SELECT queue_key FROM signup WHERE waitlist_id = $1 ORDER BY queue_key DESC LIMIT 1`

// The next two look each value up by itself. With = ANY, a plan made while the
// table was small, and kept, reads the whole waitlist for every batch.
const presentSQL = `
SELECT s.email, s.token, s.number FROM unnest($2::text[]) AS e (email), LATERAL (
    SELECT email, token, number FROM signup WHERE waitlist_id = $1 AND email = e.email LIMIT 1
) s`

const referrersSQL = `
SELECT s.token, s.number, s.email, s.referral_count FROM unnest($2::uuid[]) AS t (token), LATERAL (
    SELECT token, number, email, referral_count FROM signup WHERE waitlist_id = $1 AND token = t.token LIMIT 1
) s`

const insertSQL = `
INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at, first_name, last_name, phone,
    timezone, device_type, utm_source, utm_medium, utm_campaign, utm_term, utm_content, custom_answers,
    referrer_number, referrer_token, consent_given_at, consent_text_version, privacy_policy_version)
SELECT $1, r.number, r.queue_key, r.email, r.token, r.created_at, r.first_name, r.last_name, r.phone,
    r.timezone, r.device_type, r.utm_source, r.utm_medium, r.utm_campaign, r.utm_term, r.utm_content, r.custom_answers::jsonb,
    r.referrer_number, r.referrer_token, r.consent_given_at, r.consent_text_version, r.privacy_policy_version
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::uuid[], $6::timestamptz[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[],
    $18::bigint[], $19::uuid[], $20::timestamptz[], $21::text[], $22::text[])
  AS r (number, queue_key, email, token, created_at, first_name, last_name, phone,
    timezone, device_type, utm_source, utm_medium, utm_campaign, utm_term, utm_content, custom_answers,
    referrer_number, referrer_token, consent_given_at, consent_text_version, privacy_policy_version)`

const bucketsSQL = `
INSERT INTO queue_bucket AS b (waitlist_id, bucket, live)
SELECT $1, key >> 32, count(*) FROM unnest($2::bigint[]) AS key GROUP BY key >> 32
ON CONFLICT (waitlist_id, bucket) DO UPDATE SET live = b.live + excluded.live`

// referrer is a signup that joins of the batch name, with its new credits.
type referrer struct {
	number int64
	email  string
	count  int64
	new    int32
	places int64
}

// ground is what a batch needs to know and reads under the waitlist's lock.
type ground struct {
	version, ownerVersion int64
	state                 state
	lastKey               int64
	present               map[string]presence
	referrers             map[signup.Token]*referrer
}

type presence struct {
	token  signup.Token
	number int64
}

// Join implements signup.Store. It takes two round trips: one to begin, lock
// and read, one to write and commit.
func (s *Signups) Join(ctx context.Context, waitlistID string, joins []*signup.Join, revalidate func(int, *signup.Waitlist) (*signup.Join, error)) ([]signup.Outcome, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, &signup.RetryError{Err: fmt.Errorf("acquire connection: %w", err)}
	}
	defer conn.Release()
	outcomes, err := s.join(ctx, conn, waitlistID, joins, revalidate)
	if err != nil {
		// On a broken connection this fails too, and the pool drops it.
		rb, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = conn.Exec(rb, "ROLLBACK")
		return nil, classify(err)
	}
	s.wake()
	return outcomes, nil
}

func (s *Signups) join(ctx context.Context, conn *pgxpool.Conn, waitlistID string, joins []*signup.Join, revalidate func(int, *signup.Waitlist) (*signup.Join, error)) ([]signup.Outcome, error) {
	g, err := lockAndRead(ctx, conn, waitlistID, joins)
	if err != nil {
		return nil, err
	}
	outcomes := make([]signup.Outcome, len(joins))
	if err := s.recheck(ctx, conn, g, waitlistID, joins, outcomes, revalidate); err != nil {
		return nil, err
	}
	r := newRows(len(joins))
	before := g.state
	for i, j := range joins {
		if outcomes[i].Err != nil {
			continue
		}
		if p, ok := g.present[j.Email]; ok {
			// With its own token, an earlier attempt committed it: its place is
			// looked up. Otherwise the address was on the list before.
			outcomes[i] = signup.Outcome{Existing: p.token != j.Token, Number: p.number}
			continue
		}
		g.state.live++
		g.state.total++
		g.state.lastNumber++
		g.lastKey += spacing
		var ref *referrer
		if j.HasReferrer {
			ref = g.referrers[j.ReferredBy]
		}
		if ref != nil {
			ref.new++
			ref.places += int64(j.Waitlist.Settings.ReferralBoost)
			g.state.credited++
		}
		g.present[j.Email] = presence{number: g.state.lastNumber}
		outcomes[i] = signup.Outcome{Number: g.state.lastNumber, Position: g.state.live, Total: g.state.total}
		if err := s.add(r, j, outcomes[i], g.lastKey, ref); err != nil {
			return nil, err
		}
	}
	if len(r.number) == 0 {
		if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
			return nil, err
		}
		return outcomes, nil
	}
	g.state.no++
	return outcomes, write(ctx, conn, waitlistID, g.state, before.lastNumber+1, r)
}

// lockAndRead begins the transaction, locks the waitlist and reads what the
// batch needs, in one round trip. Each statement after the lock has a snapshot
// of its own, so it sees what the lock's last holder committed.
func lockAndRead(ctx context.Context, conn *pgxpool.Conn, waitlistID string, joins []*signup.Join) (*ground, error) {
	emails := make([]string, len(joins))
	var tokens []uuid.UUID
	for i, j := range joins {
		emails[i] = j.Email
		if j.HasReferrer {
			tokens = append(tokens, uuid.UUID(j.ReferredBy))
		}
	}
	g := &ground{present: map[string]presence{}, referrers: map[signup.Token]*referrer{}}
	var b pgx.Batch
	b.Queue("BEGIN")
	// A look-up of one value seems worth a plan of its own each time, which then
	// takes longer than the look-up.
	b.Queue("SET LOCAL plan_cache_mode = force_generic_plan")
	b.Queue(lockSQL, waitlistID).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&g.version, &g.ownerVersion)
		if errors.Is(err, pgx.ErrNoRows) {
			return signup.ErrNoWaitlist()
		}
		return err
	})
	b.Queue(stateSQL, waitlistID).QueryRow(func(row pgx.Row) (err error) {
		g.state, err = scanState(row)
		return err
	})
	b.Queue(lastKeySQL, waitlistID).QueryRow(func(row pgx.Row) error {
		if err := row.Scan(&g.lastKey); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	})
	b.Queue(presentSQL, waitlistID, emails).Query(func(rows pgx.Rows) error {
		var email string
		var token uuid.UUID
		var number int64
		_, err := pgx.ForEachRow(rows, []any{&email, &token, &number}, func() error {
			g.present[email] = presence{token: signup.Token(token), number: number}
			return nil
		})
		return err
	})
	if len(tokens) > 0 {
		b.Queue(referrersSQL, waitlistID, tokens).Query(func(rows pgx.Rows) error {
			var token uuid.UUID
			var r referrer
			_, err := pgx.ForEachRow(rows, []any{&token, &r.number, &r.email, &r.count}, func() error {
				g.referrers[signup.Token(token)] = &referrer{number: r.number, email: r.email, count: r.count}
				return nil
			})
			return err
		})
	}
	return g, conn.SendBatch(ctx, &b).Close()
}

// recheck validates again the joins that were validated against settings that
// are no longer stored.
func (s *Signups) recheck(ctx context.Context, conn *pgxpool.Conn, g *ground, waitlistID string, joins []*signup.Join, outcomes []signup.Outcome, revalidate func(int, *signup.Waitlist) (*signup.Join, error)) error {
	var current *signup.Waitlist
	for i, j := range joins {
		if j.Waitlist.Version == g.version && j.Waitlist.Owner.Version == g.ownerVersion {
			continue
		}
		if current == nil {
			var err error
			if current, err = scanWaitlist(conn.QueryRow(ctx, waitlistSQL+`w.id = $1`, waitlistID)); err != nil {
				return err
			}
		}
		again, err := revalidate(i, current)
		if err != nil {
			outcomes[i].Err = err
			continue
		}
		joins[i] = again
	}
	return nil
}

// write inserts everything and commits, in one round trip.
func write(ctx context.Context, conn *pgxpool.Conn, waitlistID string, st state, firstNumber int64, r *rows) error {
	var b pgx.Batch
	b.Queue(insertSQL, waitlistID, r.number, r.key, r.email, r.token, r.createdAt, r.first, r.last, r.phone,
		r.timezone, r.device, r.utm[0], r.utm[1], r.utm[2], r.utm[3], r.utm[4], r.answers,
		r.referrerNumber, r.referrerToken, r.consentAt, r.consentVersion, r.policyVersion)
	b.Queue(bucketsSQL, waitlistID, r.key)
	if len(r.referrers) == 0 {
		b.Queue(changeSQL+`'{}')`, changeArgs(waitlistID, st, firstNumber)...)
	} else {
		numbers, counts, places := r.credits()
		b.Queue(changeSQL+`queue_credit($1, $9, $10, $11, $12))`,
			append(changeArgs(waitlistID, st, firstNumber), numbers, counts, places, r.createdAt[0])...)
	}
	if err := outbox.Queue(ctx, &b, outbox.Message{Topic: kafka.SignupsTopic, Key: waitlistID, Events: r.events}); err != nil {
		return err
	}
	b.Queue("COMMIT")
	return conn.SendBatch(ctx, &b).Close()
}

// rows are the columns of the signups to insert, and what goes with them.
type rows struct {
	number, key                   []int64
	email, first, last, phone     []string
	timezone, device              []string
	utm                           [5][]string
	token                         []uuid.UUID
	createdAt                     []time.Time
	answers                       []*string
	referrerNumber                []*int64
	referrerToken                 []*uuid.UUID
	consentAt                     []*time.Time
	consentVersion, policyVersion []string
	referrers                     []*referrer // each once, in order of its first credit
	events                        []*eventv1.Event
}

func newRows(n int) *rows {
	return &rows{
		number: make([]int64, 0, n), key: make([]int64, 0, n), email: make([]string, 0, n),
		token: make([]uuid.UUID, 0, n), createdAt: make([]time.Time, 0, n), events: make([]*eventv1.Event, 0, n),
	}
}

func (r *rows) credits() (numbers []int64, counts []int32, places []int64) {
	for _, ref := range r.referrers {
		numbers = append(numbers, ref.number)
		counts = append(counts, ref.new)
		places = append(places, ref.places)
	}
	return numbers, counts, places
}

// add appends one signup with its events.
func (s *Signups) add(r *rows, j *signup.Join, o signup.Outcome, key int64, ref *referrer) error {
	r.number = append(r.number, o.Number)
	r.key = append(r.key, key)
	r.email = append(r.email, j.Email)
	r.token = append(r.token, uuid.UUID(j.Token))
	r.createdAt = append(r.createdAt, j.CreatedAt)
	r.first = append(r.first, j.FirstName)
	r.last = append(r.last, j.LastName)
	r.phone = append(r.phone, j.Phone)
	r.timezone = append(r.timezone, j.Timezone)
	r.device = append(r.device, j.Device)
	for i, v := range [5]string{j.UTMSource, j.UTMMedium, j.UTMCampaign, j.UTMTerm, j.UTMContent} {
		r.utm[i] = append(r.utm[i], v)
	}
	r.answers = append(r.answers, nullable(string(j.Answers), j.Answers != nil))
	r.consentAt = append(r.consentAt, nullable(j.ConsentAt, !j.ConsentAt.IsZero()))
	r.consentVersion = append(r.consentVersion, j.ConsentVersion)
	r.policyVersion = append(r.policyVersion, j.PolicyVersion)
	if ref == nil {
		r.referrerNumber = append(r.referrerNumber, nil)
		r.referrerToken = append(r.referrerToken, nil)
	} else {
		r.referrerNumber = append(r.referrerNumber, &ref.number)
		r.referrerToken = append(r.referrerToken, new(uuid.UUID(j.ReferredBy)))
		if ref.new == 1 {
			r.referrers = append(r.referrers, ref)
		}
	}
	w := j.Waitlist
	eff := w.Settings.Effective(w.Owner.EffectiveTier(j.CreatedAt))
	ev, err := s.event(w, func(e *eventv1.Event) {
		e.OccurredAt = stamp(j.CreatedAt)
		e.Payload = &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
			WaitlistId: w.ID, OwnerId: w.OwnerID, Number: o.Number, Email: j.Email,
			FirstName: j.FirstName, LastName: j.LastName, Position: o.Position + eff.PositionOffset,
			ReferralToken: j.Token.String(), UtmSource: j.UTMSource, UtmMedium: j.UTMMedium, UtmCampaign: j.UTMCampaign,
			Referred: ref != nil, VerificationRequired: eff.RequireEmailVerification, WaitlistName: w.Name,
			Channels:     channels(eff, signup.EventSignupCreated),
			Confirmation: eff.EmailTemplates.SignupConfirmation != "",
		}}
	})
	if err != nil {
		return err
	}
	r.events = append(r.events, ev.Events...)
	if ref == nil {
		return nil
	}
	count := ref.count + int64(ref.new)
	ev, err = s.event(w, func(e *eventv1.Event) {
		e.OccurredAt = stamp(j.CreatedAt)
		e.Payload = &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
			WaitlistId: w.ID, OwnerId: w.OwnerID, Number: ref.number, Email: ref.email,
			ReferralCount: count, ReferredNumber: o.Number,
			Channels:       channels(eff, signup.EventReferralCredited),
			NotifyReferrer: eff.NotifyReferrer, SmsNotifyReferrer: eff.SMSNotifyReferrer, Milestone: eff.Milestone(count),
		}}
	})
	if err != nil {
		return err
	}
	r.events = append(r.events, ev.Events...)
	return nil
}

func nullable[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

// classify tells what may be tried again and what may be one row's fault.
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
