-- name: VerifySignup :execrows
-- By signup_pkey.
UPDATE signup SET email_verified_at = @at::timestamptz
WHERE waitlist_id = @waitlist_id AND number = @number AND email_verified_at IS NULL;

-- name: OptOutSignup :execrows
-- By signup_pkey.
UPDATE signup SET email_opt_out_at = @at::timestamptz
WHERE waitlist_id = @waitlist_id AND number = @number AND email_opt_out_at IS NULL;

-- name: HasSignup :one
-- By signup_pkey.
SELECT EXISTS (SELECT FROM signup WHERE waitlist_id = $1 AND number = $2);

-- name: Leaderboard :many
-- The first rows of signup_leaderboard.
SELECT referral_count FROM signup
WHERE waitlist_id = @waitlist_id AND referral_count > 0
ORDER BY referral_count DESC, referral_at, number
LIMIT @most;

-- name: TopReferrers :many
-- The first rows of signup_leaderboard.
SELECT email, first_name, referral_count FROM signup
WHERE waitlist_id = @waitlist_id AND referral_count > 0
ORDER BY referral_count DESC, referral_at, number
LIMIT @most;
