-- name: InsertSession :execrows
-- The share lock waits for a concurrent password reset, which changes the generation.
-- By account_pkey.
INSERT INTO session (id, account_id, created_at, last_used_at, expires_at, user_agent)
SELECT @id::uuid, a.id, sqlc.arg(created_at)::timestamptz, sqlc.arg(last_used_at)::timestamptz, sqlc.arg(expires_at)::timestamptz,
	@user_agent::text FROM (
	SELECT c.id FROM account c WHERE c.id = @account_id::uuid AND c.password_generation = @generation::bigint FOR SHARE
) a;

-- name: ExtendSession :exec
-- By session_pkey.
UPDATE session SET last_used_at = sqlc.arg(now)::timestamptz, expires_at = @expires_at WHERE id = @id;

-- name: Sessions :many
-- By session_account_id.
SELECT id, account_id, created_at, coalesce(last_used_at, created_at)::timestamptz AS last_used_at, expires_at, user_agent
FROM session WHERE account_id = @account_id AND expires_at > sqlc.arg(now)::timestamptz
ORDER BY created_at DESC, id LIMIT @most::bigint;

-- name: HasSession :one
-- By session_pkey.
SELECT EXISTS (SELECT FROM session WHERE account_id = @account_id AND id = @id);

-- name: DeleteSession :execrows
-- By session_pkey, refresh_token_session_id.
DELETE FROM session WHERE account_id = @account_id AND id = @id;

-- name: DeleteSessions :exec
-- By session_account_id, refresh_token_session_id.
DELETE FROM session WHERE account_id = @account_id AND id::text <> @keep::text;

-- name: SweepSessions :execrows
-- By session_expires_at, session_pkey.
DELETE FROM session WHERE id = ANY (ARRAY(
	SELECT s.id FROM session s WHERE s.expires_at <= sqlc.arg(until)
	ORDER BY s.expires_at LIMIT @most::bigint FOR UPDATE SKIP LOCKED));
