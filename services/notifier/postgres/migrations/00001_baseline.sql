-- +goose Up

-- The events that consumers have handled; see libs/kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);

-- The runs of processes that hold deliveries. A holder without a row, or with an
-- old seen_at, is dead.
CREATE TABLE holder (
    id      uuid        PRIMARY KEY,
    seen_at timestamptz NOT NULL
);
CREATE INDEX holder_seen_at ON holder (seen_at);

-- One row per message to an owner's channel: first queued, then a log entry for
-- support. It holds no address and no URL.
--
--   attempted_at  ended_at
--   null          null      queued: its holder may claim it
--   set           null      its holder is attempting it, or died doing so
--   any           set       ended with outcome
CREATE TABLE delivery (
    event_id       uuid        NOT NULL,
    channel        text        NOT NULL CHECK (channel IN ('webhook', 'slack', 'discord')),
    event          text        NOT NULL CHECK (event IN ('signup.created', 'referral.credited')),
    waitlist_id    uuid        NOT NULL,
    owner_id       uuid        NOT NULL,
    number         bigint      NOT NULL,
    position       bigint      NOT NULL,
    referral_count bigint      NOT NULL,
    occurred_at    timestamptz NOT NULL,
    traceparent    text        NOT NULL,
    holder         uuid        NOT NULL,
    -- Committed before the attempt begins.
    attempted_at   timestamptz,
    ended_at       timestamptz,
    outcome        text        NOT NULL DEFAULT '',
    -- A word from a small set.
    reason         text        NOT NULL DEFAULT '',
    -- The only part of the URL that is kept.
    host           text        NOT NULL DEFAULT '',
    -- The response's HTTP status; 0: there was none.
    status         int         NOT NULL DEFAULT 0,
    took_ms        bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, channel),
    CHECK ((ended_at IS NULL) = (outcome = ''))
);
-- No index has attempted_at, so a claim rewrites no index entry.
CREATE INDEX delivery_open ON delivery (holder, event_id) WHERE ended_at IS NULL;
CREATE INDEX delivery_log ON delivery (waitlist_id, ended_at);
CREATE INDEX delivery_ended ON delivery (ended_at) WHERE ended_at IS NOT NULL;
