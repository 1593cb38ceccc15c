-- name: LoginFailures :one
-- The offsets are the limits minus one. The count elsewhere stops at @most. Uses
-- login_failure_account twice, login_failure_address.
SELECT
	(SELECT p.failed_at FROM login_failure p
	 WHERE p.account = @account AND p.address = @address AND p.failed_at > sqlc.arg(since)::timestamptz
	 ORDER BY p.failed_at DESC OFFSET @pair_offset::bigint LIMIT 1) AS pair,
	(SELECT n.failed_at FROM login_failure n
	 WHERE n.address = @address AND n.failed_at > sqlc.arg(since)::timestamptz
	 ORDER BY n.failed_at DESC OFFSET @address_offset::bigint LIMIT 1) AS address,
	(SELECT count(*) FROM (
		SELECT FROM login_failure e
		WHERE e.account = @account AND e.address <> @address AND e.failed_at > sqlc.arg(since)::timestamptz
		LIMIT @most::bigint
	) f) AS elsewhere;

-- name: AddLoginFailure :exec
INSERT INTO login_failure (account, address, failed_at) VALUES (@account, @address, sqlc.arg(at)::timestamptz);

-- name: SweepLoginFailures :execrows
-- By login_failure_failed_at, login_failure_pkey.
DELETE FROM login_failure WHERE id = ANY (ARRAY(
	SELECT f.id FROM login_failure f WHERE f.failed_at <= sqlc.arg(until)::timestamptz
	ORDER BY f.failed_at LIMIT @most::bigint FOR UPDATE SKIP LOCKED));
