-- +goose Up

-- What signup knows of the accounts that own waitlists. The account service owns
-- this data; a higher version replaces a lower one.
CREATE TABLE owner (
    id          uuid        PRIMARY KEY,
    tier        text        NOT NULL,
    status      text        NOT NULL,
    valid_until timestamptz,
    trial       boolean     NOT NULL,
    version     bigint      NOT NULL,
    -- Set when the account is deleted. Nothing is created for it after that.
    closed_at   timestamptz,
    -- Counts the deleted mail templates. A request that assigns a template checks it before
    -- its transaction; an unchanged count says that the answer still holds.
    templates_deleted bigint NOT NULL DEFAULT 0
);
CREATE INDEX owner_closed ON owner (closed_at) WHERE closed_at IS NOT NULL;

-- One row per waitlist. The row's lock orders all changes of the waitlist.
CREATE TABLE waitlist (
    id         uuid        PRIMARY KEY,
    owner_id   uuid        NOT NULL,
    name       text        NOT NULL,
    -- The settings that differ from their defaults, with sealed channel URLs.
    settings   jsonb       NOT NULL,
    -- Counts the changes of name and settings.
    version    bigint      NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    -- The waitlist is invisible from then on. Its row is deleted last.
    deleted_at timestamptz
);

-- The waitlists of an owner in order of creation (ids are UUIDv7).
CREATE INDEX waitlist_owner ON waitlist (owner_id, id);
-- The waitlists that the purge still has to delete.
CREATE INDEX waitlist_deleted ON waitlist (deleted_at, id) WHERE deleted_at IS NOT NULL;

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
    -- The credited referrer, if any. It stays when the referrer is removed. A token without
    -- a number says that the referrer has no credit for it yet.
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

-- The log of respacings, which change keys without moving anybody. A page of the queue
-- ends at a key. The next page, maybe hours later, begins behind the key that this log
-- maps it to. Rows outlive the cursors of pages. The functions below write them under
-- the waitlist's lock.
CREATE TABLE queue_shift (
    waitlist_id uuid        NOT NULL,
    -- The change that shifted them, and the order within it.
    no          bigint      NOT NULL,
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    -- The range of keys, first_key inclusive, end_key exclusive.
    first_key   bigint      NOT NULL,
    end_key     bigint      NOT NULL,
    -- Every key in the range, in order, and the new key of each.
    old_keys    bigint[]    NOT NULL,
    new_keys    bigint[]    NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT queue_shift_pkey PRIMARY KEY (waitlist_id, no, id)
);

-- For the deletion of old rows.
CREATE INDEX queue_shift_created_at ON queue_shift (created_at);

-- The sums over removed signups. The counts by day and by origin do not fall when a
-- signup is removed, so a tally adds these sums to those over the rows. Nothing else of
-- a removed signup is kept.
CREATE TABLE removed_day (
    waitlist_id      uuid   NOT NULL,
    -- UTC day of created_at.
    day              date   NOT NULL,
    signups          bigint NOT NULL,
    -- The ones with a credited referrer.
    referral_signups bigint NOT NULL,
    PRIMARY KEY (waitlist_id, day)
);

CREATE TABLE removed_value (
    waitlist_id uuid   NOT NULL,
    -- utm_source, utm_medium or utm_campaign.
    field       text   COLLATE "C" NOT NULL,
    value       text   COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    -- The highest number of a removed signup.
    last_number bigint NOT NULL,
    PRIMARY KEY (waitlist_id, field, value)
);

-- What is remembered of removed signups who opted out or got an offboarding mail. Whoever
-- is imported again stays opted out, and nobody gets a second offboarding mail. Of people
-- on the list, the row in signup decides; their row here is written again when they leave.
CREATE TABLE departed (
    waitlist_id uuid  NOT NULL,
    -- Keyed hash of waitlist and address.
    hash        bytea NOT NULL,
    opt_out_at  timestamptz,
    -- The number of the signup whose removal asked for the offboarding mail, which the mail's
    -- token is bound to; 0: none did.
    offboarded  bigint NOT NULL,
    PRIMARY KEY (waitlist_id, hash)
);

-- What the referral guard found, by the number of the referred signup. A row of its own
-- keeps the rows of signup as they are; lists and exports join it.
CREATE TABLE flagged (
    waitlist_id uuid   NOT NULL,
    number      bigint NOT NULL,
    -- Names of signals, separated by commas.
    reasons     text   NOT NULL,
    PRIMARY KEY (waitlist_id, number)
);

-- The referrals that the guard compares with new ones, for 30 days. Lists without a guard
-- have no rows.
CREATE TABLE referral_seen (
    waitlist_id uuid        NOT NULL,
    -- The referrer's token.
    referrer    uuid        NOT NULL,
    -- The number of the referred signup.
    number      bigint      NOT NULL,
    -- Keyed hash of the waitlist and the client's /24 or /48; zero bytes: unknown.
    network     bytea       NOT NULL,
    -- Keyed hash of the waitlist and the address, without what its provider ignores.
    person      bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (waitlist_id, referrer, number)
);
CREATE INDEX referral_seen_person ON referral_seen (waitlist_id, referrer, person);
CREATE INDEX referral_seen_created_at ON referral_seen (created_at);

-- The events that consumers have handled; see package kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);

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
    error       text        NOT NULL DEFAULT '',
    -- W3C trace contexts, one for each payload, or NULL: then traceparent is that of all.
    traceparents text[]
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX outbox_parked ON outbox (parked_at) WHERE parked_at IS NOT NULL;

-- Answers to requests with an Idempotency-Key; see package idempotency.
CREATE TABLE idempotency_key (
    scope        text        NOT NULL,
    account_id   uuid        NOT NULL,
    key          text        NOT NULL,
    request_hash bytea       NOT NULL,
    response     bytea       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, scope, key)
);
CREATE INDEX idempotency_key_created ON idempotency_key (created_at);

-- Who did what in an owner's account; see package audit. Nothing updates a row.
CREATE TABLE audit (
    owner_id   uuid        NOT NULL,
    id         uuid        NOT NULL,
    at         timestamptz NOT NULL,
    actor      uuid,
    credential text        NOT NULL,
    role       text        NOT NULL,
    action     text        NOT NULL,
    target     text        NOT NULL,
    request_id text        NOT NULL,
    PRIMARY KEY (owner_id, id)
);
CREATE INDEX audit_action ON audit (owner_id, action, id);
CREATE INDEX audit_at ON audit (at);

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
-- queue_next_no returns the number of the change that is being made. It is called
-- before that change is logged.
CREATE FUNCTION queue_next_no(p_waitlist uuid) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT no FROM change WHERE waitlist_id = p_waitlist ORDER BY no DESC LIMIT 1), 0) + 1;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_cut is called when no signup has p_key any more. If p_key was the last key, a
-- later signup behind all present ones may get it again, so the range behind the last
-- signup is logged as empty.
CREATE FUNCTION queue_cut(p_waitlist uuid, p_key bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO queue_shift (waitlist_id, no, first_key, end_key, old_keys, new_keys)
    SELECT p_waitlist, queue_next_no(p_waitlist), last_key + 1, p_key + 1, '{}', '{}'
    FROM (SELECT coalesce((SELECT queue_key FROM signup WHERE waitlist_id = p_waitlist ORDER BY queue_key DESC LIMIT 1),
                          -9223372036854775808) AS last_key) l
    WHERE last_key < p_key;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_leave updates the queue after a signup with p_key was deleted.
CREATE FUNCTION queue_leave(p_waitlist uuid, p_key bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT queue_bucket_add(p_waitlist, p_key, -1);
    SELECT queue_cut(p_waitlist, p_key);
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_key_since returns the key that now marks the place of p_key after change p_no:
-- a signup that was not moved since is behind it now if and only if it was behind p_key
-- then. NULL means that too much has happened since to read it all.
CREATE FUNCTION queue_key_since(p_waitlist uuid, p_key bigint, p_no bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_most CONSTANT integer := 100000; -- some 100 ms
    v_read integer := 0;
    v_key  bigint := p_key;
    r      record;
BEGIN
    FOR r IN SELECT * FROM queue_shift
             WHERE waitlist_id = p_waitlist AND no > p_no
             ORDER BY no, id LIMIT v_most + 1
    LOOP
        v_read := v_read + 1;
        IF v_read > v_most THEN
            RETURN NULL;
        END IF;
        IF v_key >= r.first_key AND v_key < r.end_key THEN
            -- width_bucket counts the old keys at or before v_key.
            v_key := CASE width_bucket(v_key, r.old_keys)
                WHEN 0 THEN r.first_key - 1
                ELSE r.new_keys[width_bucket(v_key, r.old_keys)]
            END;
        END IF;
    END LOOP;
    RETURN v_key;
END;
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- queue_respace makes room behind p_key, whose next key is too near. The nearest keys on
-- both sides are pressed into half of the room between two others, away from the spot,
-- which gets the other half: it is the likeliest to need room again. Of all ranges with
-- 0, 1, 2, 4 and so on keys on either side it takes the cheapest, by keys for the square
-- of the halvings that the spot then allows. Neighbours stay 16 apart at least, or the
-- next spot would have no room at once. It returns the numbers whose keys changed, and
-- logs the shift.
CREATE FUNCTION queue_respace(p_waitlist uuid, p_key bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_spacing CONSTANT bigint := 1 << 20;
    v_nearest CONSTANT bigint := 16;
    v_most    bigint := 128; -- keys on either side
    v_lower   bigint[];
    v_upper   bigint[];
    v_low     bigint; -- how many keys move down to v_from, and up to v_to
    v_up      bigint;
    v_from    bigint;
    v_to      bigint;
    v_apart   bigint;
    v_touched bigint[];
BEGIN
    LOOP
        -- From the spot outwards; beyond the ends of the queue there is room enough.
        v_lower := ARRAY(SELECT queue_key FROM signup WHERE waitlist_id = p_waitlist AND queue_key <= p_key
                         ORDER BY queue_key DESC LIMIT v_most + 1);
        v_upper := ARRAY(SELECT queue_key FROM signup WHERE waitlist_id = p_waitlist AND queue_key > p_key
                         ORDER BY queue_key LIMIT v_most + 1);
        IF cardinality(v_lower) <= v_most THEN
            v_lower := v_lower || v_lower[cardinality(v_lower)] - v_spacing * cardinality(v_lower);
        END IF;
        IF cardinality(v_upper) <= v_most THEN
            v_upper := v_upper || v_upper[cardinality(v_upper)] + v_spacing * cardinality(v_upper);
        END IF;
        WITH size AS (
            SELECT 0 AS n UNION SELECT cardinality(v_lower) - 1 UNION SELECT cardinality(v_upper) - 1
            UNION SELECT 1 << i FROM generate_series(0, 30) i WHERE 1 << i <= v_most
        ), range AS (
            SELECT l.n AS low, u.n AS up, v_lower[l.n + 1] AS from_key, v_upper[u.n + 1] AS to_key,
                   (v_upper[u.n + 1] - v_lower[l.n + 1]) / 2 / (l.n + u.n) AS apart
            FROM size l, size u
            WHERE l.n < cardinality(v_lower) AND u.n < cardinality(v_upper) AND l.n + u.n > 0
        )
        SELECT low, up, from_key, to_key, apart INTO v_low, v_up, v_from, v_to, v_apart
        FROM range
        WHERE apart >= v_nearest
        ORDER BY (low + up) / power(ln((to_key - from_key - apart * (low + up))::float8), 2), low
        LIMIT 1;
        EXIT WHEN FOUND;
        v_most := v_most * 8;
    END LOOP;
    WITH ordered AS (
        SELECT number, queue_key AS old_key, row_number() OVER (ORDER BY queue_key) AS place
        FROM signup
        WHERE waitlist_id = p_waitlist AND queue_key > v_from AND queue_key < v_to
    ), respaced AS (
        SELECT number, place, old_key, CASE
            WHEN place <= v_low THEN v_from + place * v_apart
            ELSE v_to - (v_low + v_up + 1 - place) * v_apart
        END AS new_key
        FROM ordered
    ), moved AS (
        UPDATE signup s SET queue_key = respaced.new_key
        FROM respaced
        WHERE s.waitlist_id = p_waitlist AND s.number = respaced.number AND s.queue_key <> respaced.new_key
          AND s.queue_key > v_from AND s.queue_key < v_to -- reads no more than the range, whatever the plan
        RETURNING s.number
    ), counted AS (
        INSERT INTO queue_bucket AS b (waitlist_id, bucket, live)
        SELECT p_waitlist, bucket, sum(live) FROM (
            SELECT new_key >> 32 AS bucket, 1 AS live FROM respaced
            UNION ALL SELECT old_key >> 32, -1 FROM respaced
        ) c
        GROUP BY bucket HAVING sum(live) <> 0
        ON CONFLICT (waitlist_id, bucket) DO UPDATE SET live = b.live + excluded.live
    ), logged AS (
        INSERT INTO queue_shift (waitlist_id, no, first_key, end_key, old_keys, new_keys)
        SELECT p_waitlist, queue_next_no(p_waitlist), v_from + 1, v_to,
               array_agg(old_key ORDER BY place), array_agg(new_key ORDER BY place)
        FROM respaced
    )
    SELECT coalesce(array_agg(number), '{}') INTO v_touched FROM moved;
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
    IF v_new < v_old AND NOT EXISTS (SELECT FROM signup WHERE waitlist_id = p_waitlist AND queue_key > v_old) THEN
        PERFORM queue_cut(p_waitlist, v_old);
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
-- queue_move moves a signup to p_position, or to the end of a queue of p_live if that
-- is nearer. It returns the numbers whose keys changed. It looks for the one who stands
-- there now, which reads the buckets once, and finds the neighbour by its key.
CREATE FUNCTION queue_move(p_waitlist uuid, p_number bigint, p_position bigint, p_live bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    v_key bigint;
    v_at  bigint := queue_key_at(p_waitlist, least(p_position, p_live));
BEGIN
    SELECT queue_key INTO STRICT v_key FROM signup WHERE waitlist_id = p_waitlist AND number = p_number;
    IF v_at = v_key THEN
        RETURN '{}';
    ELSIF v_at < v_key THEN
        RETURN queue_put(p_waitlist, p_number,
            (SELECT queue_key FROM signup WHERE waitlist_id = p_waitlist AND queue_key < v_at ORDER BY queue_key DESC LIMIT 1), v_at);
    END IF;
    RETURN queue_put(p_waitlist, p_number, v_at,
        (SELECT queue_key FROM signup WHERE waitlist_id = p_waitlist AND queue_key > v_at ORDER BY queue_key LIMIT 1));
END;
$$;
-- +goose StatementEnd

-- A program from before the baseline finds the migrations that it asks for.
INSERT INTO goose_db_version (version_id, is_applied) SELECT no, true FROM generate_series(1, 11) no;
