-- name: HasChange :one
-- By change_pkey; signup_pkey.
SELECT EXISTS (SELECT FROM change c WHERE c.waitlist_id = @waitlist_id AND c.no = @no AND c.nonce = @nonce) AS held,
       ARRAY (
           SELECT p.number
           FROM ROWS FROM (unnest(@numbers::bigint[]), unnest(@referrals::bigint[])) AS p (number, referral_count), LATERAL (
               SELECT FROM signup s
               WHERE s.waitlist_id = @waitlist_id AND s.number = p.number AND s.referral_count = p.referral_count LIMIT 1) s
       )::bigint[] AS same;
