-- name: InsertRefreshToken :exec
INSERT INTO refresh_token (session_id, hash, created_at, expires_at) VALUES ($1, $2, $3, $4);

-- name: SpendRefreshToken :execrows
-- By refresh_token_pkey.
UPDATE refresh_token SET spent_at = sqlc.arg(now)::timestamptz
WHERE hash = @hash AND spent_at IS NULL AND expires_at > sqlc.arg(now)::timestamptz;

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
