-- name: SeenReferrals :many
-- Looks back for the last 30 referrals of each referrer in 30 days, and for one of the same
-- person. By referral_seen_pkey and referral_seen_person.
SELECT p.referrer::uuid AS referrer, p.network::bytea AS network, p.person::bytea AS person, s.from_network, s.lately,
    EXISTS (SELECT FROM referral_seen r
            WHERE r.waitlist_id = @waitlist_id AND r.referrer = p.referrer AND r.person = p.person
              AND r.created_at > now() - interval '30 days') AS again
FROM ROWS FROM (unnest(@referrers::uuid[]), unnest(@networks::bytea[]), unnest(@persons::bytea[])) AS p (referrer, network, person),
LATERAL (
    SELECT count(*) FILTER (WHERE l.network = p.network) AS from_network,
        count(*) FILTER (WHERE l.created_at > now() - interval '10 minutes') AS lately
    FROM (
        SELECT r.network, r.created_at FROM referral_seen r
        WHERE r.waitlist_id = @waitlist_id AND r.referrer = p.referrer AND r.created_at > now() - interval '30 days'
        ORDER BY r.number DESC LIMIT 30
    ) l
) s;

-- name: InsertSeenReferrals :exec
INSERT INTO referral_seen (waitlist_id, referrer, number, network, person)
SELECT @waitlist_id, r.referrer, r.number, r.network, r.person
FROM ROWS FROM (
    unnest(@referrers::uuid[]), unnest(@numbers::bigint[]), unnest(@networks::bytea[]), unnest(@persons::bytea[])
) AS r (referrer, number, network, person);

-- name: InsertFlagged :exec
INSERT INTO flagged (waitlist_id, number, reasons)
SELECT @waitlist_id, f.number, f.reasons
FROM ROWS FROM (unnest(@numbers::bigint[]), unnest(@reasons::text[])) AS f (number, reasons);

-- name: DeleteFlagged :exec
-- By flagged_pkey.
DELETE FROM flagged WHERE waitlist_id = $1 AND number = $2;

-- name: HasFlagged :one
-- By flagged_pkey.
SELECT EXISTS (SELECT FROM flagged WHERE waitlist_id = $1);

-- name: GetReferral :one
-- The referrer is 0 without one, or if it has left. By signup_pkey and signup_token_key.
SELECT (s.referrer_number IS NOT NULL)::boolean AS credited, coalesce(r.number, 0)::bigint AS referrer,
    coalesce(r.referral_count, 0)::bigint AS referral_count
FROM signup s LEFT JOIN LATERAL (
    SELECT t.number, t.referral_count FROM signup t WHERE t.waitlist_id = s.waitlist_id AND t.token = s.referrer_token LIMIT 1
) r ON true
WHERE s.waitlist_id = @waitlist_id AND s.number = @number;

-- name: SetReferrer :exec
-- By signup_pkey.
UPDATE signup SET referrer_number = @referrer::bigint WHERE waitlist_id = @waitlist_id AND number = @number;
