-- +goose Up

-- The events that consumers have handled; see libs/kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);

-- What events add to the sums, until the next fold. Events only append rows: a sum
-- that every event updates becomes slow while an old snapshot is held.
CREATE TABLE arrival (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id         uuid   NOT NULL,
    waitlist_id      uuid   NOT NULL,
    day              date   NOT NULL,
    views            bigint NOT NULL,
    signups          bigint NOT NULL,
    referral_signups bigint NOT NULL,
    -- The highest number of the counted signups; NULL for views.
    number           bigint,
    source           text   NOT NULL,
    medium           text   NOT NULL,
    campaign         text   NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- A waitlist's sums by UTC day.
CREATE TABLE day (
    waitlist_id      uuid   NOT NULL,
    day              date   NOT NULL,
    views            bigint NOT NULL,
    signups          bigint NOT NULL,
    -- The signups with a credited referrer.
    referral_signups bigint NOT NULL,
    PRIMARY KEY (waitlist_id, day)
) WITH (fillfactor = 50);

-- Signups by origin. Empty values have no row.
CREATE TABLE utm_value (
    waitlist_id uuid   NOT NULL,
    -- utm_source, utm_medium or utm_campaign.
    field       text   COLLATE "C" NOT NULL,
    value       text   COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    -- The highest number of a signup with this value. Of two values with the same
    -- count, the one with the lower number reached it first.
    last_number bigint NOT NULL,
    PRIMARY KEY (waitlist_id, field, value)
);
CREATE INDEX utm_value_top ON utm_value (waitlist_id, field, count DESC, last_number);

-- The sum over all values of a field.
CREATE TABLE utm_total (
    waitlist_id uuid   NOT NULL,
    field       text   COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    PRIMARY KEY (waitlist_id, field)
) WITH (fillfactor = 50);

-- Waitlists that were rebuilt or deleted.
CREATE TABLE waitlist (
    waitlist_id uuid        PRIMARY KEY,
    -- A rebuild has counted the signups up to this number, so their events add nothing.
    built_to    bigint      NOT NULL DEFAULT 0,
    -- From then on nothing is counted, and the purge deletes the sums.
    deleted_at  timestamptz
);
CREATE INDEX waitlist_deleted ON waitlist (deleted_at, waitlist_id) WHERE deleted_at IS NOT NULL;

-- Purged waitlists, by the SHA-256 of the id. A late or repeated event must not
-- create sums for them again.
CREATE TABLE tombstone (
    hash       bytea       PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tombstone_created_at ON tombstone (created_at);

-- +goose StatementBegin
-- takes_counts reports whether events count for a waitlist: it is not deleted.
CREATE FUNCTION takes_counts(p_waitlist uuid) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM waitlist WHERE waitlist_id = p_waitlist AND deleted_at IS NOT NULL)
       AND NOT EXISTS (SELECT FROM tombstone WHERE hash = sha256(uuid_send(p_waitlist)));
$$;
-- +goose StatementEnd
