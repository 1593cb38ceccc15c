-- +goose Up

-- See package kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);

-- What events add, until it is folded into the sums: rows are only appended,
-- for a sum that is updated with every event collapses while any old snapshot is
-- held.
CREATE TABLE arrival (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id         uuid   NOT NULL,
    waitlist_id      uuid   NOT NULL,
    day              date   NOT NULL,
    views            bigint NOT NULL,
    signups          bigint NOT NULL,
    referral_signups bigint NOT NULL,
    -- The highest number of these signups; NULL for views.
    number           bigint,
    source           text   NOT NULL,
    medium           text   NOT NULL,
    campaign         text   NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Sums of a waitlist's UTC days.
CREATE TABLE day (
    waitlist_id      uuid   NOT NULL,
    day              date   NOT NULL,
    views            bigint NOT NULL,
    signups          bigint NOT NULL,
    -- Those of them with a credited referrer.
    referral_signups bigint NOT NULL,
    PRIMARY KEY (waitlist_id, day)
) WITH (fillfactor = 50);

-- Signups by origin; empty values have no row.
CREATE TABLE utm_value (
    waitlist_id uuid   NOT NULL,
    -- utm_source, utm_medium or utm_campaign.
    field       text   COLLATE "C" NOT NULL,
    value       text   COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    -- The highest number of a signup with the value: of two values with the same
    -- count the lower one reached it first.
    last_number bigint NOT NULL,
    PRIMARY KEY (waitlist_id, field, value)
);
CREATE INDEX utm_value_top ON utm_value (waitlist_id, field, count DESC, last_number);

-- What all values of a field add up to.
CREATE TABLE utm_total (
    waitlist_id uuid   NOT NULL,
    field       text   COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    PRIMARY KEY (waitlist_id, field)
) WITH (fillfactor = 50);

-- Waitlists about which there is more to know than sums.
CREATE TABLE waitlist (
    waitlist_id uuid        PRIMARY KEY,
    -- Signups up to this number were counted by a rebuild; events about them add
    -- nothing.
    built_to    bigint      NOT NULL DEFAULT 0,
    -- Nothing is counted from then on, and what there is goes.
    deleted_at  timestamptz
);
CREATE INDEX waitlist_deleted ON waitlist (deleted_at, waitlist_id) WHERE deleted_at IS NOT NULL;

-- Waitlists of which nothing is left, by the SHA-256 of the id: an event that
-- comes late, or again, must not begin them anew.
CREATE TABLE tombstone (
    hash       bytea       PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tombstone_created_at ON tombstone (created_at);

-- +goose StatementBegin
-- takes_counts tells whether anything is counted for a waitlist: it has not been
-- deleted.
CREATE FUNCTION takes_counts(p_waitlist uuid) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM waitlist WHERE waitlist_id = p_waitlist AND deleted_at IS NOT NULL)
       AND NOT EXISTS (SELECT FROM tombstone WHERE hash = sha256(uuid_send(p_waitlist)));
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION takes_counts;
DROP TABLE tombstone, waitlist, utm_total, utm_value, day, arrival, inbox;
