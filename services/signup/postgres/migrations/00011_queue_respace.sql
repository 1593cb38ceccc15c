-- +goose Up

-- +goose StatementBegin
-- queue_respace makes room behind p_key, whose next key is too near. The nearest keys on
-- both sides are pressed into half of the room between two others, away from the spot,
-- which gets the other half: it is the likeliest to need room again. Of all ranges with
-- 0, 1, 2, 4 and so on keys on either side it takes the cheapest, by keys for the square
-- of the halvings that the spot then allows. Neighbours stay 16 apart at least, or the
-- next spot would have no room at once. It returns the numbers whose keys changed, and
-- logs the shift.
CREATE OR REPLACE FUNCTION queue_respace(p_waitlist uuid, p_key bigint) RETURNS bigint[]
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

-- +goose Down
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
