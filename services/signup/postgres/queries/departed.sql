-- name: ForgetDeparted :many
-- By departed_pkey.
DELETE FROM departed WHERE waitlist_id = @waitlist_id AND hash = ANY (@hashes::bytea[]) RETURNING offboarded;

-- name: InsertDeparted :exec
INSERT INTO departed (waitlist_id, hash, opt_out_at, offboarded) VALUES ($1, $2, $3, $4);

-- name: OptedOutDeparted :many
-- Looks up each hash by itself, so that no plan reads the whole waitlist. By departed_pkey.
SELECT d.hash, d.opt_out_at::timestamptz AS opt_out_at FROM unnest(@hashes::bytea[]) AS h (hash), LATERAL (
    SELECT p.hash, p.opt_out_at FROM departed p
    WHERE p.waitlist_id = @waitlist_id::uuid AND p.hash = h.hash AND p.opt_out_at IS NOT NULL LIMIT 1) d;

-- name: Offboarded :one
-- By departed_pkey.
SELECT offboarded FROM departed WHERE waitlist_id = @waitlist_id AND hash = ANY (@hashes::bytea[]) AND offboarded > 0 LIMIT 1;

-- name: OptOutDeparted :exec
-- Keeps the time of an earlier opt-out. By departed_pkey.
UPDATE departed SET opt_out_at = coalesce(opt_out_at, @at::timestamptz)
WHERE waitlist_id = @waitlist_id AND hash = ANY (@hashes::bytea[]) AND offboarded > 0;
