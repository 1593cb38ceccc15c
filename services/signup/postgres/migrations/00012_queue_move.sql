-- +goose Up

-- +goose StatementBegin
-- queue_move moves a signup to p_position, or to the end of a queue of p_live if that
-- is nearer. It returns the numbers whose keys changed. It looks for the one who stands
-- there now, which reads the buckets once, and finds the neighbour by its key.
CREATE OR REPLACE FUNCTION queue_move(p_waitlist uuid, p_number bigint, p_position bigint, p_live bigint) RETURNS bigint[]
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

-- +goose Down
-- +goose StatementBegin
-- queue_move puts a signup at a position, at most the last one.
CREATE OR REPLACE FUNCTION queue_move(p_waitlist uuid, p_number bigint, p_position bigint, p_live bigint) RETURNS bigint[]
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
