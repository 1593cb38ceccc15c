-- name: HasChange :one
-- By change_pkey.
SELECT EXISTS (SELECT FROM change WHERE waitlist_id = $1 AND no = $2 AND nonce = $3);
