-- name: Days :many
-- By day_pkey.
SELECT day, views, signups, referral_signups FROM day
WHERE waitlist_id = $1 AND day >= $2;

-- name: ClearSignups :exec
-- By day_pkey.
UPDATE day SET signups = 0, referral_signups = 0 WHERE waitlist_id = $1;

-- name: SetSignups :batchexec
-- By day_pkey.
INSERT INTO day (waitlist_id, day, views, signups, referral_signups) VALUES ($1, $2, 0, $3, $4)
ON CONFLICT (waitlist_id, day) DO UPDATE SET signups = excluded.signups, referral_signups = excluded.referral_signups;

-- name: DeleteEmptyDays :exec
-- By day_pkey.
DELETE FROM day WHERE waitlist_id = $1 AND views = 0 AND signups = 0;
