-- +goose Up

-- See package kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);

-- The runs of processes that hold deliveries. One that has not been seen for a
-- while, or is not here, is dead.
CREATE TABLE holder (
    id      uuid        PRIMARY KEY,
    seen_at timestamptz NOT NULL
);
CREATE INDEX holder_seen_at ON holder (seen_at);

-- One row for each message to an owner's channel: first what is to be sent, then
-- the log for support. It holds no address and no URL.
--
--   attempted_at  ended_at
--   null          null      queued: its holder may claim it
--   set           null      attempted by its holder, now or when that died
--   any           set       ended as outcome says
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
    -- Committed before the attempt is made.
    attempted_at   timestamptz,
    ended_at       timestamptz,
    outcome        text        NOT NULL DEFAULT '',
    -- One of a few words.
    reason         text        NOT NULL DEFAULT '',
    -- Of the URL only this.
    host           text        NOT NULL DEFAULT '',
    -- Of the answer; 0: none.
    status         int         NOT NULL DEFAULT 0,
    took_ms        bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, channel),
    CHECK ((ended_at IS NULL) = (outcome = ''))
);
-- attempted_at is in no index: a claim rewrites no index entry.
CREATE INDEX delivery_open ON delivery (holder, event_id) WHERE ended_at IS NULL;
CREATE INDEX delivery_log ON delivery (waitlist_id, ended_at);
CREATE INDEX delivery_ended ON delivery (ended_at) WHERE ended_at IS NOT NULL;

-- +goose Down
DROP TABLE delivery, holder, inbox;
