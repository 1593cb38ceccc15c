-- name: Suppressed :many
-- By suppression_pkey.
SELECT hash FROM suppression WHERE hash = ANY (@hashes::bytea[]);

-- name: Suppress :exec
-- Does nothing for a notification that was processed before. By notification_pkey and suppression_pkey.
WITH taken AS (INSERT INTO notification (id) VALUES (@notification_id) ON CONFLICT DO NOTHING RETURNING id)
INSERT INTO suppression (hash, reason) SELECT DISTINCT h.hash, @reason::text FROM taken, unnest(@hashes::bytea[]) h (hash)
ON CONFLICT DO NOTHING;
