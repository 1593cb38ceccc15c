-- name: InsertSession :execrows
-- The share lock waits for a concurrent password reset, which changes the generation.
-- By account_pkey.
INSERT INTO session (id, account_id, created_at, expires_at)
SELECT @id::uuid, a.id, sqlc.arg(created_at)::timestamptz, sqlc.arg(expires_at)::timestamptz FROM (
	SELECT c.id FROM account c WHERE c.id = @account_id::uuid AND c.password_generation = @generation::bigint FOR SHARE
) a;

-- name: ExtendSession :execrows
-- By session_pkey.
UPDATE session SET expires_at = $2 WHERE id = $1;

-- name: DeleteSession :execrows
-- By session_pkey, refresh_token_session_id.
DELETE FROM session WHERE id = $1;

-- name: DeleteSessions :exec
-- By session_account_id, refresh_token_session_id.
DELETE FROM session WHERE account_id = $1;

-- name: SweepSessions :execrows
-- By session_expires_at, session_pkey.
DELETE FROM session WHERE id = ANY (ARRAY(
	SELECT s.id FROM session s WHERE s.expires_at <= sqlc.arg(until)
	ORDER BY s.expires_at LIMIT @most::bigint FOR UPDATE SKIP LOCKED));
