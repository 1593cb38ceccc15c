// Package outbox carries events from a service's transactions to Kafka. The transaction
// that causes an event inserts it into the table outbox. The schema's Relay publishes it
// after the commit, at least once.
//
// Order: insert the rows of a key under a lock that serialises the key's writers (the
// waitlist's or account's row), so that their ids are in commit order. They reach Kafka in
// that order. Rows of different keys have no order. A row may commit after the relay has
// published higher ids; the relay finds such rows too.
//
// After a crash between publish and delete, the relay publishes the rows again. The first
// delivery of each event is still in order, because every relay sends the remaining rows
// by id.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// Schema is the table, for the migrations of each service that produces events.
//
// The relay deletes a row when Kafka has acknowledged all its payloads. Early vacuums keep
// the front of the index nearly free of dead entries.
const Schema = `
CREATE TABLE outbox (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic       text        NOT NULL,
    key         text        NOT NULL,
    -- One or more events of this topic and key, in order, as marshalled Events.
    payloads    bytea[]     NOT NULL,
    -- W3C trace context of the cause, or ''.
    traceparent text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- Set when Kafka refuses the row for good; an operator decides.
    parked_at   timestamptz,
    error       text        NOT NULL DEFAULT '',
    -- W3C trace contexts, one for each payload, or NULL: then traceparent is that of all.
    traceparents text[]
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX outbox_parked ON outbox (parked_at) WHERE parked_at IS NOT NULL;
`

// InsertSQL inserts one Row. Its arguments are Row's results and Message.Traceparents, in
// order. Use it in a transaction that sends its own batch.
const InsertSQL = `INSERT INTO outbox (topic, key, payloads, traceparent, traceparents) VALUES ($1, $2, $3, $4, $5)`

// Message holds events of one topic and key in the order of publication.
type Message struct {
	// Topic without the cluster's prefix.
	Topic string
	// Key is the waitlist's or account's id.
	Key    string
	Events []*eventv1.Event
	// Traceparents is for events with several causes: the W3C trace context of each event's
	// cause, or "". nil means that the context of the insert is the cause of all.
	Traceparents []string
}

// NewEvent returns an event with a new id and the time now, without a payload.
func NewEvent(now time.Time) (*eventv1.Event, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("make an event id: %w", err)
	}
	return &eventv1.Event{Id: id.String(), OccurredAt: timestamppb.New(now)}, nil
}

// Row returns the arguments of InsertSQL for m, with the trace context of ctx.
func Row(ctx context.Context, m Message) (topic, key string, payloads [][]byte, traceparent string, err error) {
	if m.Traceparents != nil && len(m.Traceparents) != len(m.Events) {
		return "", "", nil, "", errors.New("outbox: message with traces of other events")
	}
	if m.Topic == "" || m.Key == "" || len(m.Events) == 0 {
		return "", "", nil, "", errors.New("outbox: message without topic, key or events")
	}
	for _, e := range m.Events {
		b, err := proto.Marshal(e)
		if err != nil {
			return "", "", nil, "", fmt.Errorf("outbox: marshal event %s: %w", e.GetId(), err)
		}
		payloads = append(payloads, b)
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return m.Topic, m.Key, payloads, carrier["traceparent"], nil
}

// Queue adds one insert for each of msgs to b.
func Queue(ctx context.Context, b *pgx.Batch, msgs ...Message) error {
	for _, m := range msgs {
		topic, key, payloads, traceparent, err := Row(ctx, m)
		if err != nil {
			return err
		}
		b.Queue(InsertSQL, topic, key, pgtype.FlatArray[[]byte](payloads), traceparent, m.Traceparents)
	}
	return nil
}

// Insert inserts msgs in tx, in order. Call the relay's Wake after the commit.
func Insert(ctx context.Context, tx pgx.Tx, msgs ...Message) error {
	var b pgx.Batch
	if err := Queue(ctx, &b, msgs...); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("insert into outbox: %w", err)
	}
	return nil
}
