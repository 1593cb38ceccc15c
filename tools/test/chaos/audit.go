package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/kafka"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	signupindex "waitlist.internal/services/signup/index"
)

// row is a live signup as stored in Postgres.
type row struct {
	number   int64
	email    string
	rank     int64
	referred bool
	// referrer is the email address of the credited referrer, or ""; credits is the
	// signup's own referral_count.
	referrer string
	credits  int64
}

// AuditRows compares the stored signups with the acknowledged ones: each acknowledged
// signup is stored with the referrer that it named, each credit is counted once, and
// the ranks are 1 to n. It returns the rows in queue order.
func AuditRows(t testing.TB, postgresURL, waitlistID string, acks []Ack) []row {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, postgresURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SET search_path = signup`); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(ctx, `
		SELECT s.number, s.email, queue_rank(s.waitlist_id, s.queue_key), s.referrer_number IS NOT NULL, coalesce(r.email, ''), s.referral_count
		FROM signup s LEFT JOIN signup r ON r.waitlist_id = s.waitlist_id AND r.number = s.referrer_number
		WHERE s.waitlist_id = $1 ORDER BY s.queue_key`, waitlistID)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (s row, err error) {
		err = r.Scan(&s.number, &s.email, &s.rank, &s.referred, &s.referrer, &s.credits)
		return s, err
	})
	if err != nil {
		t.Fatal(err)
	}
	there, credits := map[string]row{}, map[string]int64{}
	for i, s := range stored {
		if s.rank != int64(i+1) {
			t.Fatalf("signup %d has rank %d at place %d", s.number, s.rank, i+1)
		}
		there[s.email] = s
		credits[s.referrer]++
	}
	for _, s := range stored {
		if s.credits != credits[s.email] {
			t.Errorf("%s has %d credits, but %d signups name it as referrer", s.email, s.credits, credits[s.email])
		}
	}
	for _, a := range acks {
		if s, ok := there[a.Email]; !ok {
			t.Errorf("%s was acknowledged but is not stored", a.Email)
		} else if s.referrer != a.Referrer {
			t.Errorf("%s named the referrer %q, but %q got the credit", a.Email, a.Referrer, s.referrer)
		}
		// The answer to a new signup has its number as the total. Another total means that
		// the connection to Postgres broke at the commit and the service found the signup
		// again: its position may differ then.
		if number := there[a.Email].number; a.Total == number && a.Position != number {
			t.Errorf("%s got position %d as signup %d", a.Email, a.Position, number)
		}
	}
	var live, total int64
	if err := conn.QueryRow(ctx, `SELECT live, total FROM change WHERE waitlist_id = $1 ORDER BY no DESC LIMIT 1`, waitlistID).
		Scan(&live, &total); err != nil {
		t.Fatal(err)
	}
	if live != int64(len(stored)) || total != live {
		t.Errorf("%d rows, live %d, total %d", len(stored), live, total)
	}
	return stored
}

// AuditIndex waits until the index in Redis holds the stored order.
func AuditIndex(t testing.TB, redisURL, waitlistID string, stored []row) {
	t.Helper()
	o, err := redis.ParseURL(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	want := make([]string, len(stored))
	for i, s := range stored {
		want[i] = strconv.FormatInt(s.number, 10)
	}
	var got []string
	if !within(30*time.Second, func() bool {
		got, err = rdb.ZRange(t.Context(), signupindex.KeysOf(waitlistID)[0], 0, -1).Result()
		return err == nil && slices.Equal(got, want)
	}) {
		t.Errorf("the index differs from Postgres: %d members (%v), want %d", len(got), err, len(want))
	}
}

// AuditStatus compares the position that the API reports for each signup.
func AuditStatus(t testing.TB, listURL string, stored []row) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Timeout: 10 * time.Second, Transport: transport}
	wrong := 0
	for i, s := range stored {
		var answer struct {
			Position     int64 `json:"position"`
			TotalSignups int64 `json:"total_signups"`
		}
		res, err := client.Get(listURL + "/signups/" + s.email)
		if err == nil {
			err = json.NewDecoder(res.Body).Decode(&answer)
			err = errors.Join(err, res.Body.Close())
		}
		if err != nil || answer.Position != int64(i+1) || answer.TotalSignups != int64(len(stored)) {
			if wrong++; wrong <= 5 {
				t.Errorf("status of the signup at place %d: %+v, %v", i+1, answer, err)
			}
		}
	}
	if wrong > 5 {
		t.Errorf("%d of %d statuses are wrong", wrong, len(stored))
	}
}

// AuditEvents reads the whole topic. It requires exactly one event id for each stored
// signup and each credit, and no other events. An event may be delivered several
// times; AuditEvents returns the number of repeated deliveries.
func AuditEvents(t testing.TB, brokers []string, waitlistID string, stored []row) (repeated int) {
	t.Helper()
	created, credited := map[int64]string{}, map[int64]string{}
	deadline := time.Now().Add(60 * time.Second)
	want := len(stored)
	for _, s := range stored {
		if s.referred {
			want++
		}
	}
	for {
		events, err := readTopic(t.Context(), brokers, kafka.SignupsTopic)
		if err == nil {
			repeated = 0
			clear(created)
			clear(credited)
			for _, ev := range events {
				note := func(seen map[int64]string, number int64) {
					switch id, ok := seen[number]; {
					case !ok:
						seen[number] = ev.GetId()
					case id == ev.GetId():
						repeated++
					default:
						t.Fatalf("signup %d has the events %s and %s", number, id, ev.GetId())
					}
				}
				switch p := ev.GetPayload().(type) {
				case *eventv1.Event_SignupCreated:
					if p.SignupCreated.GetWaitlistId() == waitlistID {
						note(created, p.SignupCreated.GetNumber())
					}
				case *eventv1.Event_ReferralCredited:
					if p.ReferralCredited.GetWaitlistId() == waitlistID {
						note(credited, p.ReferralCredited.GetReferredNumber())
					}
				}
			}
		}
		if err == nil && len(created)+len(credited) >= want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d signup and %d referral events arrived, want %d in all (%v)", len(created), len(credited), want, err)
		}
	}
	for _, s := range stored {
		if created[s.number] == "" {
			t.Errorf("signup %d has no event", s.number)
		}
		if s.referred != (credited[s.number] != "") {
			t.Errorf("signup %d: credited %v, event %q", s.number, s.referred, credited[s.number])
		}
	}
	if len(created)+len(credited) != want {
		t.Errorf("%d signup and %d referral events, want %d in all: some belong to no signup", len(created), len(credited), want)
	}
	return repeated
}

// readTopic returns all events that the topic holds when the call starts.
func readTopic(ctx context.Context, brokers []string, topic string) ([]*eventv1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := kafkago.DialContext(ctx, "tcp", brokers[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	partitions, err := conn.ReadPartitions(topic)
	if err != nil {
		return nil, err
	}
	var events []*eventv1.Event
	for _, p := range partitions {
		end, err := lastOffset(ctx, brokers[0], p)
		if err != nil {
			return nil, err
		}
		if end == 0 {
			continue
		}
		r := kafkago.NewReader(kafkago.ReaderConfig{
			Brokers: brokers, Topic: topic, Partition: p.ID, MinBytes: 1, MaxBytes: 10 << 20, MaxWait: time.Second,
		})
		for next := int64(0); next < end; {
			m, err := r.ReadMessage(ctx)
			if err != nil {
				return nil, errors.Join(err, r.Close())
			}
			next = m.Offset + 1
			ev := &eventv1.Event{}
			if err := proto.Unmarshal(m.Value, ev); err != nil {
				return nil, errors.Join(fmt.Errorf("offset %d of partition %d: %w", m.Offset, p.ID, err), r.Close())
			}
			events = append(events, ev)
		}
		if err := r.Close(); err != nil {
			return nil, err
		}
	}
	return events, nil
}

func lastOffset(ctx context.Context, broker string, p kafkago.Partition) (int64, error) {
	conn, err := kafkago.DialPartition(ctx, "tcp", broker, p)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	return conn.ReadLastOffset()
}

// within polls ok until it returns true or d has passed, and reports which.
func within(d time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			return false
		case <-tick.C:
		}
	}
	return true
}
