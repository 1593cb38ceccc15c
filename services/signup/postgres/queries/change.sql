-- name: HasChange :one
-- By change_pkey; signup_pkey.
SELECT EXISTS (SELECT FROM change c WHERE c.waitlist_id = $1 AND c.no = $2 AND c.nonce = $3) AS held,
       EXISTS (SELECT FROM signup s WHERE s.waitlist_id = $1 AND s.number = $4 AND s.referral_count = $5) AS same;
