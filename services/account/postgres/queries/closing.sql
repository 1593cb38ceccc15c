-- name: InsertClosing :exec
INSERT INTO closing (account_id, due_at) VALUES ($1, $2);

-- name: TakeClosing :one
-- By closing_due_at, closing_pkey.
UPDATE closing SET due_at = sqlc.arg(retry_at)::timestamptz
WHERE account_id = (
	SELECT c.account_id FROM closing c WHERE c.due_at <= sqlc.arg(now)::timestamptz
	ORDER BY c.due_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING account_id;

-- name: DeleteClosing :exec
-- By closing_pkey.
DELETE FROM closing WHERE account_id = $1;
