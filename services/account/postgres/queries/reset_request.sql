-- name: QueueReset :exec
-- By reset_request_pkey.
INSERT INTO reset_request (email, requested_at) VALUES ($1, $2) ON CONFLICT (email) DO NOTHING;

-- name: TakeReset :one
-- By reset_request_requested_at, reset_request_pkey.
DELETE FROM reset_request
WHERE email = (SELECT r.email FROM reset_request r ORDER BY r.requested_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING email, requested_at;
