-- +goose Up

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
-- queue_respace makes room behind p_key, whose next key is too near. It takes
-- the smallest aligned range of 2^i around p_key that holds at most 1.5^i keys
-- and spreads those up to p_key over its first third, the others over its last:
-- the spot that ran out of room is the likeliest to need it again. The bound per
-- level, not a fixed one, keeps the cost logarithmic (Bender, Cole, Demaine,
-- Farach-Colton, Zito: Two Simplified Algorithms for Maintaining Order in a
-- List, 2002). It returns the numbers whose keys changed, and logs the shift.
CREATE OR REPLACE FUNCTION queue_respace(p_waitlist uuid, p_key bigint) RETURNS bigint[]
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
        SELECT number, place, queue_key AS old_key, CASE
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
    ), logged AS (
        INSERT INTO queue_shift (waitlist_id, no, first_key, end_key, old_keys, new_keys)
        SELECT p_waitlist, queue_next_no(p_waitlist), v_from, v_to,
               array_agg(old_key ORDER BY place), array_agg(new_key ORDER BY place)
        FROM spread
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
CREATE OR REPLACE FUNCTION queue_put(p_waitlist uuid, p_number bigint, p_lower bigint, p_upper bigint) RETURNS bigint[]
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

-- +goose Down
-- +goose StatementBegin
-- queue_respace makes room behind p_key, whose next key is too near. It takes
-- the smallest aligned range of 2^i around p_key that holds at most 1.5^i keys
-- and spreads those up to p_key over its first third, the others over its last:
-- the spot that ran out of room is the likeliest to need it again. The bound per
-- level, not a fixed one, keeps the cost logarithmic (Bender, Cole, Demaine,
-- Farach-Colton, Zito: Two Simplified Algorithms for Maintaining Order in a
-- List, 2002). It returns the numbers whose keys changed.
CREATE OR REPLACE FUNCTION queue_respace(p_waitlist uuid, p_key bigint) RETURNS bigint[]
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
CREATE OR REPLACE FUNCTION queue_put(p_waitlist uuid, p_number bigint, p_lower bigint, p_upper bigint) RETURNS bigint[]
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

DROP FUNCTION queue_key_since, queue_leave, queue_cut, queue_next_no;
DROP TABLE queue_shift;
