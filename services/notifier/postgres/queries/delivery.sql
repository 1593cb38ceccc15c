-- name: QueueDelivery :exec
-- Leaves a delivery that is already there as it is. By delivery_pkey.
INSERT INTO delivery (
    event_id, channel, event, waitlist_id, owner_id, number, position, referral_count, occurred_at, traceparent, holder
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (event_id, channel) DO NOTHING;

-- name: ForgetWaitlist :exec
-- By delivery_log.
DELETE FROM delivery WHERE waitlist_id = $1;

-- name: ClaimDeliveries :many
-- A row whose attempted_at is already @at was claimed by the same call, whose
-- first answer was lost. The CASE rules out plans by delivery_open, which read every
-- open delivery of the holder. By delivery_pkey.
UPDATE delivery d SET attempted_at = @at::timestamptz
FROM ROWS FROM (unnest(@event_ids::uuid[]), unnest(@channels::text[])) k (event_id, channel)
WHERE d.event_id = k.event_id AND d.channel = k.channel
  AND CASE WHEN d.ended_at IS NULL THEN d.holder = @holder AND (d.attempted_at IS NULL OR d.attempted_at = @at) END
RETURNING d.event_id, d.channel;

-- name: EndDeliveries :exec
-- The result of an attempt replaces 'unknown', which another holder wrote when it
-- took this one for dead. By delivery_pkey.
UPDATE delivery d
SET ended_at = clock_timestamp(), outcome = k.outcome, reason = k.reason, host = k.host,
    status = k.status, took_ms = k.took_ms
FROM ROWS FROM (
    unnest(@event_ids::uuid[]), unnest(@channels::text[]), unnest(@outcomes::text[]), unnest(@reasons::text[]),
    unnest(@hosts::text[]), unnest(@attempted::boolean[]), unnest(@statuses::int[]), unnest(@took_ms::bigint[])
) k (event_id, channel, outcome, reason, host, attempted, status, took_ms)
WHERE d.event_id = k.event_id AND d.channel = k.channel
  AND CASE
      WHEN k.attempted THEN d.attempted_at IS NOT NULL AND d.outcome IN ('', 'unknown')
      ELSE d.attempted_at IS NULL AND d.ended_at IS NULL AND d.holder = @holder
  END;

-- name: DeleteQueued :exec
-- The CASE is there as in ClaimDeliveries. By delivery_pkey.
DELETE FROM delivery d
USING ROWS FROM (unnest(@event_ids::uuid[]), unnest(@channels::text[])) k (event_id, channel)
WHERE d.event_id = k.event_id AND d.channel = k.channel
  AND CASE WHEN d.ended_at IS NULL THEN d.attempted_at IS NULL AND d.holder = @holder END;

-- name: EndAttemptsOf :execrows
-- By delivery_open.
UPDATE delivery SET ended_at = clock_timestamp(), outcome = 'unknown'
WHERE holder = @dead AND ended_at IS NULL AND attempted_at IS NOT NULL;

-- name: AdoptDeliveries :many
-- By delivery_open.
UPDATE delivery d SET holder = @holder
FROM (
    SELECT q.event_id, q.channel FROM delivery q
    WHERE q.holder = @dead AND q.ended_at IS NULL AND q.attempted_at IS NULL
    ORDER BY q.event_id LIMIT @most FOR UPDATE SKIP LOCKED
) k
WHERE d.event_id = k.event_id AND d.channel = k.channel
RETURNING d.event_id, d.channel, d.event, d.waitlist_id, d.owner_id, d.number, d.position, d.referral_count,
    d.occurred_at, d.traceparent;

-- name: TrimLog :exec
-- Leaves the @kept + 1 newest ended rows of each waitlist. By delivery_log.
DELETE FROM delivery d
USING unnest(@waitlist_ids::uuid[]) w (id), LATERAL (
    SELECT e.ended_at FROM delivery e
    WHERE e.waitlist_id = w.id AND e.ended_at IS NOT NULL
    ORDER BY e.ended_at DESC OFFSET @kept LIMIT 1
) oldest
WHERE d.waitlist_id = w.id AND d.ended_at < oldest.ended_at;

-- name: PruneLog :execrows
-- By delivery_ended.
DELETE FROM delivery WHERE (event_id, channel) IN (
    SELECT e.event_id, e.channel FROM delivery e
    WHERE e.ended_at < @before::timestamptz ORDER BY e.ended_at LIMIT @most
);
