-- name: TakeDeletion :one
-- By deletion_due_at, deletion_pkey.
UPDATE deletion SET due_at = sqlc.arg(retry_at)::timestamptz
WHERE grave = (
	SELECT due.grave FROM deletion due WHERE due.due_at <= sqlc.arg(now)::timestamptz
	ORDER BY due.due_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING account_id::uuid AS account_id;

-- name: GetDeletion :one
-- By deletion_pkey.
SELECT coalesce(account_id, grave)::uuid AS account_id, customer_id, deleted_at FROM deletion WHERE grave = ANY (@graves::uuid[]);

-- name: InsertDeletion :exec
-- By deletion_pkey, subscriber_pkey.
INSERT INTO deletion (grave, account_id, customer_id, deleted_at, due_at)
VALUES (
	@grave, @account_id::uuid, (SELECT s.customer_id FROM subscriber s WHERE s.account_id = @account_id::uuid),
	sqlc.arg(deleted_at)::timestamptz, sqlc.arg(deleted_at)::timestamptz
)
ON CONFLICT (grave) DO NOTHING;

-- name: Bury :exec
-- It keeps the completed deletion. By subscriber_pkey, operation_pkey,
-- provider_event_pkey, deletion_pkey.
WITH subscribers AS (
	DELETE FROM subscriber s WHERE s.account_id = @account_id::uuid
), operations AS (
	DELETE FROM operation o WHERE o.account_id = @account_id::uuid
), events AS (
	INSERT INTO provider_event (id, received_at)
	SELECT unnest(@events::text[]), sqlc.arg(now)::timestamptz ON CONFLICT DO NOTHING
)
UPDATE deletion SET account_id = NULL, customer_id = coalesce(deletion.customer_id, sqlc.arg(customer_id)), due_at = NULL
WHERE deletion.grave = ANY (@graves::uuid[]);

-- name: Deletions :many
-- By deletion_done.
SELECT grave AS account_id, customer_id, deleted_at FROM deletion
WHERE grave > sqlc.arg(after) AND deleted_at > sqlc.arg(since) AND due_at IS NULL ORDER BY grave LIMIT @most::bigint;

-- name: SweepDeletions :execrows
-- It keeps deletions that are not complete. By deletion_deleted_at, deletion_pkey,
-- known_subscription_pkey.
WITH gone AS (
	DELETE FROM deletion WHERE grave = ANY (ARRAY(
		SELECT d.grave FROM deletion d WHERE d.deleted_at <= sqlc.arg(until) AND d.due_at IS NULL
		ORDER BY d.deleted_at LIMIT @most::bigint FOR UPDATE SKIP LOCKED))
	RETURNING grave
), forgotten AS (
	DELETE FROM known_subscription k WHERE k.grave IN (SELECT g.grave FROM gone g)
)
SELECT g.grave FROM gone g;
