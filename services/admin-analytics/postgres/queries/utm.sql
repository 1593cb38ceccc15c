-- name: GetOrigins :many
-- Reads each field's first rows of utm_value_top, in order, and its total from
-- utm_total. A value with the name of the rest (@other) counts towards the rest.
SELECT t.field, t.count, v.names::text[] AS names, v.counts::bigint[] AS counts
FROM utm_total t, LATERAL (
    SELECT array_agg(o.value) AS names, array_agg(o.count) AS counts
    FROM (
        SELECT u.value, u.count FROM utm_value u
        WHERE u.waitlist_id = @waitlist_id AND u.field = t.field AND u.value <> @other
        ORDER BY u.count DESC, u.last_number
        LIMIT @most
    ) o
) v
WHERE t.waitlist_id = @waitlist_id;

-- name: DeleteValues :exec
DELETE FROM utm_value WHERE waitlist_id = $1;

-- name: CopyValues :copyfrom
INSERT INTO utm_value (waitlist_id, field, value, count, last_number) VALUES ($1, $2, $3, $4, $5);

-- name: DeleteTotals :exec
DELETE FROM utm_total WHERE waitlist_id = $1;

-- name: AddUpTotals :exec
INSERT INTO utm_total (waitlist_id, field, count)
SELECT v.waitlist_id, v.field, sum(v.count) FROM utm_value v WHERE v.waitlist_id = $1 GROUP BY v.waitlist_id, v.field;
