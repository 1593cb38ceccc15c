-- name: Beat :exec
-- By holder_pkey.
INSERT INTO holder (id, seen_at) VALUES ($1, now()) ON CONFLICT (id) DO UPDATE SET seen_at = now();

-- name: Leave :exec
-- By holder_pkey.
DELETE FROM holder WHERE id = $1;

-- name: DeadHolders :many
-- Jumps from holder to holder of open deliveries and returns the dead ones. By
-- delivery_open and holder_pkey.
WITH RECURSIVE open (holder) AS (
    (SELECT d.holder FROM delivery d WHERE d.ended_at IS NULL ORDER BY d.holder LIMIT 1)
    UNION ALL
    SELECT (SELECT d.holder FROM delivery d WHERE d.ended_at IS NULL AND d.holder > open.holder ORDER BY d.holder LIMIT 1)
    FROM open WHERE open.holder IS NOT NULL
)
SELECT open.holder::uuid FROM open
WHERE open.holder IS NOT NULL AND open.holder <> @living::uuid
  AND NOT EXISTS (SELECT FROM holder h WHERE h.id = open.holder AND h.seen_at > now() - @dead_after::interval);

-- name: PruneHolders :exec
-- By holder_seen_at.
DELETE FROM holder WHERE seen_at < now() - interval '1 hour';
