-- +goose Up

-- One row per live signup. Every transaction that inserts, deletes or moves rows holds
-- the waitlist's row lock (FOR NO KEY UPDATE on waitlist) and appends one row to
-- change. There is no foreign key to waitlist: its key-share locks on one hot row would
-- cost more than the insert.
CREATE TABLE signup (
    waitlist_id            uuid        NOT NULL,
    -- 1, 2, 3 … in order of arrival, never used again.
    number                 bigint      NOT NULL,
    -- Order in the queue. Keys are sparse; see the functions below.
    queue_key              bigint      NOT NULL,
    email                  text        COLLATE "C" NOT NULL,
    -- The referral token's 16 random bytes.
    token                  uuid        NOT NULL,
    created_at             timestamptz NOT NULL,
    first_name             text        NOT NULL DEFAULT '',
    last_name              text        NOT NULL DEFAULT '',
    phone                  text        NOT NULL DEFAULT '',
    timezone               text        NOT NULL DEFAULT '',
    device_type            text        NOT NULL DEFAULT '',
    utm_source             text        NOT NULL DEFAULT '',
    utm_medium             text        NOT NULL DEFAULT '',
    utm_campaign           text        NOT NULL DEFAULT '',
    utm_term               text        NOT NULL DEFAULT '',
    utm_content            text        NOT NULL DEFAULT '',
    custom_answers         jsonb,
    -- The credited referrer, if any. It stays when the referrer is removed.
    referrer_number        bigint,
    referrer_token         uuid,
    referral_count         integer     NOT NULL DEFAULT 0,
    -- When referral_count got its value, for the leaderboard's ties.
    referral_at            timestamptz,
    consent_given_at       timestamptz,
    consent_text_version   text        NOT NULL DEFAULT '',
    privacy_policy_version text        NOT NULL DEFAULT '',
    email_verified_at      timestamptz,
    email_opt_out_at       timestamptz,
    CONSTRAINT signup_pkey PRIMARY KEY (waitlist_id, number),
    CONSTRAINT signup_email_key UNIQUE (waitlist_id, email),
    CONSTRAINT signup_token_key UNIQUE (waitlist_id, token),
    -- Deferrable, so that a respacing UPDATE may pass through equal keys.
    CONSTRAINT signup_queue_key UNIQUE (waitlist_id, queue_key) DEFERRABLE INITIALLY IMMEDIATE
);

CREATE INDEX signup_leaderboard ON signup (waitlist_id, referral_count DESC, referral_at, number)
    WHERE referral_count > 0;

-- Prepared statements keep their plans. While a table is small, the planner sees no
-- difference between the indexes that begin with waitlist_id. A plan from that time may
-- read a whole waitlist for one address, and a rush of signups makes that many rows long
-- before autovacuum renews the statistics. n_distinct = 1 makes the planner take any
-- waitlist for the whole table, so that it prefers an index on all columns of a query.
-- The setting takes effect with statistics, which ANALYZE makes only from rows; hence
-- the row. An empty table counts as ten pages only while it has never been counted;
-- TRUNCATE within a savepoint makes such a table. TestPlansOfAnEmptyTable shows the
-- effect.
ALTER TABLE signup ALTER COLUMN waitlist_id SET (n_distinct = 1);
INSERT INTO signup (waitlist_id, number, queue_key, email, token, created_at)
VALUES ('00000000-0000-0000-0000-000000000000', 0, 0, '', '00000000-0000-0000-0000-000000000000', now());
ANALYZE signup (waitlist_id);
SAVEPOINT uncounted;
TRUNCATE signup;
RELEASE SAVEPOINT uncounted;

-- The change log. The newest row of a waitlist holds its counters; the last rows bring
-- the position index up to date. Rows are only appended: updates of one counter row
-- would slow down without bound while an old snapshot is held.
CREATE TABLE change (
    waitlist_id  uuid        NOT NULL,
    no           bigint      NOT NULL,
    -- Random. It tells this history from another one with the same numbers.
    nonce        bigint      NOT NULL,
    -- Live signups, the displayed counter, live signups with a credited referrer.
    live         bigint      NOT NULL,
    total        bigint      NOT NULL,
    credited     bigint      NOT NULL,
    last_number  bigint      NOT NULL,
    -- The signups first_number..last_number joined by this change, none if
    -- first_number = last_number + 1.
    first_number bigint      NOT NULL,
    -- Other signups whose queue_key changed or that were removed.
    touched      bigint[]    NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT change_pkey PRIMARY KEY (waitlist_id, no)
);

CREATE INDEX change_created_at ON change USING brin (created_at);

-- Live signups per 2^32 keys (4096 at the usual spacing): rank and
-- select-by-rank without reading the queue.
CREATE TABLE queue_bucket (
    waitlist_id uuid   NOT NULL,
    bucket      bigint NOT NULL,
    live        bigint NOT NULL,
    CONSTRAINT queue_bucket_pkey PRIMARY KEY (waitlist_id, bucket)
) WITH (fillfactor = 50);

-- See package outbox.
CREATE TABLE outbox (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic       text        NOT NULL,
    key         text        NOT NULL,
    -- One or more events of this topic and key, in order, as marshalled Events.
    payloads    bytea[]     NOT NULL,
    -- W3C trace context of the cause, or ''.
    traceparent text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- Set when Kafka rejects the row for good. An operator decides about it.
    parked_at   timestamptz,
    error       text        NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX outbox_parked ON outbox (parked_at) WHERE parked_at IS NOT NULL;

-- +goose StatementBegin
-- queue_bucket_add adds delta live signups to the bucket of a key.
CREATE FUNCTION queue_bucket_add(p_waitlist uuid, p_key bigint, p_delta bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO queue_bucket AS b (waitlist_id, bucket, live)
    VALUES (p_waitlist, p_key >> 32, p_delta)
    ON CONFLICT (waitlist_id, bucket) DO UPDATE SET live = b.live + excluded.live;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_rank returns how many live signups stand at or before a key.
CREATE FUNCTION queue_rank(p_waitlist uuid, p_key bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT sum(live) FROM queue_bucket WHERE waitlist_id = p_waitlist AND bucket < p_key >> 32), 0)::bigint
         + (SELECT count(*) FROM signup
            WHERE waitlist_id = p_waitlist AND queue_key >= (p_key >> 32) << 32 AND queue_key <= p_key);
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_key_at returns the key of the signup at a position (1 is the front),
-- NULL where there is none.
CREATE FUNCTION queue_key_at(p_waitlist uuid, p_position bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_bucket bigint;
    v_before bigint;
BEGIN
    IF p_position < 1 THEN
        RETURN NULL;
    END IF;
    SELECT bucket, upto - live INTO v_bucket, v_before
    FROM (SELECT bucket, live, sum(live) OVER (ORDER BY bucket) AS upto
          FROM queue_bucket WHERE waitlist_id = p_waitlist) b
    WHERE upto >= p_position
    ORDER BY bucket
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT queue_key FROM signup
            WHERE waitlist_id = p_waitlist AND queue_key >= v_bucket << 32
            ORDER BY queue_key OFFSET p_position - v_before - 1 LIMIT 1);
END;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_respace makes room behind p_key, whose next key is too near. It takes
-- the smallest aligned range of 2^i around p_key that holds at most 1.5^i keys
-- and spreads those up to p_key over its first third, the others over its last:
-- the spot that ran out of room is the likeliest to need it again. The bound per
-- level, not a fixed one, keeps the cost logarithmic (Bender, Cole, Demaine,
-- Farach-Colton, Zito: Two Simplified Algorithms for Maintaining Order in a
-- List, 2002). It returns the numbers whose keys changed.
CREATE FUNCTION queue_respace(p_waitlist uuid, p_key bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_bits    integer := 4;
    v_from    bigint;
    v_to      bigint;
    v_third   bigint;
    v_lower   bigint;
    v_upper   bigint;
    v_touched bigint[];
BEGIN
    LOOP
        v_from := (p_key >> v_bits) << v_bits;
        v_to := v_from + (1::bigint << v_bits);
        SELECT count(*) FILTER (WHERE queue_key <= p_key), count(*) FILTER (WHERE queue_key > p_key)
        INTO v_lower, v_upper
        FROM signup
        WHERE waitlist_id = p_waitlist AND queue_key >= v_from AND queue_key < v_to;
        EXIT WHEN v_lower + v_upper <= power(1.5, v_bits) AND (v_lower + v_upper) * 8 <= v_to - v_from;
        v_bits := v_bits + 1;
        IF v_bits > 54 THEN
            RAISE EXCEPTION 'queue of waitlist % has no room', p_waitlist;
        END IF;
    END LOOP;
    v_third := (v_to - v_from) / 3;
    WITH ordered AS (
        SELECT number, queue_key, row_number() OVER (ORDER BY queue_key) AS place
        FROM signup
        WHERE waitlist_id = p_waitlist AND queue_key >= v_from AND queue_key < v_to
    ), spread AS (
        SELECT number, CASE
            WHEN place <= v_lower THEN v_from + div((2 * place - 1) * v_third::numeric, 2 * v_lower)::bigint
            ELSE v_to - v_third + div((2 * (place - v_lower) - 1) * v_third::numeric, 2 * v_upper)::bigint
        END AS new_key
        FROM ordered
    ), moved AS (
        UPDATE signup s SET queue_key = spread.new_key
        FROM spread
        WHERE s.waitlist_id = p_waitlist AND s.number = spread.number AND s.queue_key <> spread.new_key
          AND s.queue_key >= v_from AND s.queue_key < v_to -- reads no more than the range, whatever the plan
        RETURNING s.number
    )
    SELECT coalesce(array_agg(number), '{}') INTO v_touched FROM moved;
    -- A range of up to 2^32 lies in one bucket, whose count stays.
    IF v_bits > 32 THEN
        DELETE FROM queue_bucket
        WHERE waitlist_id = p_waitlist AND bucket >= v_from >> 32 AND bucket < v_to >> 32;
        INSERT INTO queue_bucket (waitlist_id, bucket, live)
        SELECT p_waitlist, queue_key >> 32, count(*) FROM signup
        WHERE waitlist_id = p_waitlist AND queue_key >= v_from AND queue_key < v_to
        GROUP BY queue_key >> 32;
    END IF;
    RETURN v_touched;
END;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_put gives a signup a key between two others: p_lower and p_upper are the
-- keys of its new neighbours, NULL at an end of the queue. It returns the
-- numbers whose keys changed.
CREATE FUNCTION queue_put(p_waitlist uuid, p_number bigint, p_lower bigint, p_upper bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_spacing CONSTANT bigint := 1 << 20;
    v_lower   bigint := p_lower;
    v_upper   bigint := p_upper;
    v_lower_number bigint;
    v_old     bigint;
    v_new     bigint;
    v_touched bigint[] := '{}';
BEGIN
    IF v_lower IS NOT NULL AND v_upper IS NOT NULL AND v_upper - v_lower < 2 THEN
        SELECT number INTO STRICT v_lower_number FROM signup
        WHERE waitlist_id = p_waitlist AND queue_key = v_lower;
        v_touched := queue_respace(p_waitlist, v_lower);
        -- The upper neighbour stood right behind the lower one, apart from the
        -- signup itself if that lay between them.
        SELECT queue_key INTO STRICT v_lower FROM signup
        WHERE waitlist_id = p_waitlist AND number = v_lower_number;
        SELECT queue_key INTO STRICT v_upper FROM signup
        WHERE waitlist_id = p_waitlist AND queue_key > v_lower AND number <> p_number
        ORDER BY queue_key LIMIT 1;
    END IF;
    v_new := CASE
        WHEN v_lower IS NULL THEN v_upper - v_spacing
        WHEN v_upper IS NULL THEN v_lower + v_spacing
        ELSE v_lower + (v_upper - v_lower) / 2
    END;
    SELECT queue_key INTO STRICT v_old FROM signup WHERE waitlist_id = p_waitlist AND number = p_number;
    UPDATE signup SET queue_key = v_new WHERE waitlist_id = p_waitlist AND number = p_number;
    IF v_old >> 32 <> v_new >> 32 THEN
        PERFORM queue_bucket_add(p_waitlist, v_old, -1), queue_bucket_add(p_waitlist, v_new, 1);
    END IF;
    RETURN v_touched || p_number;
END;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_advance moves a signup up by p_places, to the front at most. It walks
-- p_places entries of the index on queue_key, wherever in the queue that is.
CREATE FUNCTION queue_advance(p_waitlist uuid, p_number bigint, p_places bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_key   bigint;
    v_ahead bigint[];
BEGIN
    SELECT queue_key INTO STRICT v_key FROM signup WHERE waitlist_id = p_waitlist AND number = p_number;
    -- The signup that is overtaken last, and the one before it.
    v_ahead := ARRAY(SELECT queue_key FROM signup
                     WHERE waitlist_id = p_waitlist AND queue_key < v_key
                     ORDER BY queue_key DESC OFFSET p_places - 1 LIMIT 2);
    IF cardinality(v_ahead) = 0 THEN
        v_ahead := ARRAY(SELECT queue_key FROM signup
                         WHERE waitlist_id = p_waitlist AND queue_key < v_key
                         ORDER BY queue_key LIMIT 1);
        IF cardinality(v_ahead) = 0 THEN
            RETURN '{}';
        END IF;
    END IF;
    RETURN queue_put(p_waitlist, p_number, v_ahead[2], v_ahead[1]);
END;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_credit gives each of p_numbers its count of new referrals and moves it
-- up by its places, in the order given.
CREATE FUNCTION queue_credit(p_waitlist uuid, p_numbers bigint[], p_counts integer[], p_places bigint[], p_at timestamptz)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_touched bigint[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(p_numbers) LOOP
        v_touched := v_touched || queue_advance(p_waitlist, p_numbers[i], p_places[i]);
        -- One by one: a join may be planned to read the whole waitlist.
        UPDATE signup SET referral_count = referral_count + p_counts[i], referral_at = p_at
        WHERE waitlist_id = p_waitlist AND number = p_numbers[i];
    END LOOP;
    RETURN v_touched;
END;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_move puts a signup at a position, at most the last one.
CREATE FUNCTION queue_move(p_waitlist uuid, p_number bigint, p_position bigint, p_live bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_key  bigint;
    v_from bigint;
    v_to   bigint := least(p_position, p_live);
BEGIN
    SELECT queue_key INTO STRICT v_key FROM signup WHERE waitlist_id = p_waitlist AND number = p_number;
    v_from := queue_rank(p_waitlist, v_key);
    IF v_to = v_from THEN
        RETURN '{}';
    ELSIF v_to < v_from THEN
        RETURN queue_put(p_waitlist, p_number, queue_key_at(p_waitlist, v_to - 1), queue_key_at(p_waitlist, v_to));
    END IF;
    RETURN queue_put(p_waitlist, p_number, queue_key_at(p_waitlist, v_to), queue_key_at(p_waitlist, v_to + 1));
END;
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION queue_move, queue_credit, queue_advance, queue_put, queue_respace, queue_key_at, queue_rank, queue_bucket_add;
DROP TABLE outbox, queue_bucket, change, signup;
