-- name: BeginOperation :one
-- The epoch and the start stay the same if the outcome of the same wish is unknown and
-- it started after oldest. Otherwise a new epoch starts. By operation_pkey.
INSERT INTO operation AS o (account_id, name, wish, epoch, started_at) VALUES (@account_id, @name, @wish, 1, @started_at)
ON CONFLICT (account_id, name) DO UPDATE SET
	epoch = CASE WHEN o.ended_at IS NULL AND o.wish = excluded.wish AND o.started_at > sqlc.arg(oldest)::timestamptz
		THEN o.epoch ELSE o.epoch + 1 END,
	started_at = CASE WHEN o.ended_at IS NULL AND o.wish = excluded.wish AND o.started_at > sqlc.arg(oldest)::timestamptz
		THEN o.started_at ELSE excluded.started_at END,
	wish = excluded.wish, ended_at = NULL
RETURNING epoch;

-- name: EndOperation :exec
-- By operation_pkey.
UPDATE operation SET ended_at = sqlc.arg(now)::timestamptz WHERE account_id = @account_id AND name = @name;

-- name: EventSeen :one
-- By provider_event_pkey.
SELECT EXISTS (SELECT FROM provider_event WHERE id = $1);

-- name: RecordEvents :exec
-- By provider_event_pkey.
INSERT INTO provider_event (id, received_at) SELECT unnest(@ids::text[]), sqlc.arg(now)::timestamptz ON CONFLICT DO NOTHING;

-- name: TakeReconciliation :execrows
-- By reconciliation_pkey.
INSERT INTO reconciliation AS r (one, started_at) VALUES (true, sqlc.arg(now)::timestamptz)
ON CONFLICT (one) DO UPDATE SET started_at = excluded.started_at WHERE r.started_at <= sqlc.arg(due)::timestamptz;

-- name: RetryReconciliation :exec
-- By reconciliation_pkey.
UPDATE reconciliation SET started_at = $1 WHERE one;

-- name: SweepEvents :execrows
-- By provider_event_received_at, provider_event_pkey.
DELETE FROM provider_event WHERE id = ANY (ARRAY(
	SELECT e.id FROM provider_event e WHERE e.received_at <= sqlc.arg(until)
	ORDER BY e.received_at LIMIT @most::bigint FOR UPDATE SKIP LOCKED));

-- name: SweepOperations :execrows
-- By operation_started_at, operation_pkey.
DELETE FROM operation WHERE (account_id, name) IN (
	SELECT o.account_id, o.name FROM operation o WHERE o.started_at <= sqlc.arg(until)
	ORDER BY o.started_at LIMIT @most::bigint FOR UPDATE SKIP LOCKED);
