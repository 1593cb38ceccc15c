-- name: InsertRefreshToken :exec
INSERT INTO refresh_token (session_id, hash, created_at, expires_at) VALUES ($1, $2, $3, $4);

-- name: SpendRefreshToken :one
-- By refresh_token_pkey.
WITH spent AS (
	UPDATE refresh_token t SET spent_at = sqlc.arg(now)::timestamptz
	WHERE t.hash = @hash AND t.spent_at IS NULL AND t.expires_at > sqlc.arg(now)::timestamptz
	RETURNING 1
)
SELECT EXISTS (SELECT FROM spent);

-- name: LockSessionByToken :one
-- By refresh_token_pkey, session_pkey.
SELECT s.id, s.account_id, s.created_at
FROM session s
WHERE s.id = (SELECT t.session_id FROM refresh_token t WHERE t.hash = $1)
FOR UPDATE;

-- name: SweepRefreshTokens :execrows
-- By refresh_token_expires_at, refresh_token_pkey.
DELETE FROM refresh_token WHERE hash = ANY (ARRAY(
	SELECT t.hash FROM refresh_token t WHERE t.expires_at <= sqlc.arg(until)
	ORDER BY t.expires_at LIMIT @most::bigint FOR UPDATE SKIP LOCKED));
