-- name: CountEvents :exec
-- Stores the number 0 as NULL.
INSERT INTO arrival (event_id, waitlist_id, day, views, signups, referral_signups, number, source, medium, campaign)
SELECT event_id, waitlist_id, day, views, signups, referral_signups, nullif(number, 0), source, medium, campaign
FROM ROWS FROM (
    unnest(@event_ids::uuid[]), unnest(@waitlist_ids::uuid[]), unnest(@days::date[]), unnest(@views::bigint[]),
    unnest(@signups::bigint[]), unnest(@referral_signups::bigint[]), unnest(@numbers::bigint[]),
    unnest(@sources::text[]), unnest(@mediums::text[]), unnest(@campaigns::text[])
) AS e (event_id, waitlist_id, day, views, signups, referral_signups, number, source, medium, campaign);

-- name: LockSums :exec
-- Waits for the advisory lock that every change of the sums holds.
SELECT pg_advisory_xact_lock(hashtextextended('admin_analytics.sums', 0));

-- name: TryLockSums :one
SELECT pg_try_advisory_xact_lock(hashtextextended('admin_analytics.sums', 0))::boolean;

-- name: ArrivalsWait :one
-- Reports whether there are arrivals with an id above @behind. By arrival_pkey.
SELECT EXISTS (SELECT FROM arrival WHERE id > @behind);

-- name: FoldArrivals :one
-- Moves up to @most arrivals with an id above @behind into the sums. By primary
-- keys; touches each waitlist's row once. OFFSET 0 keeps takes_counts from being called for
-- each arrival.
WITH gone AS (
    DELETE FROM arrival WHERE id = ANY (ARRAY(SELECT a.id FROM arrival a WHERE a.id > @behind ORDER BY a.id LIMIT @most))
    RETURNING *
), list AS MATERIALIZED (
    SELECT l.waitlist_id, coalesce((SELECT w.built_to FROM waitlist w WHERE w.waitlist_id = l.waitlist_id), 0) AS built_to
    FROM (SELECT DISTINCT waitlist_id FROM gone OFFSET 0) l
    WHERE takes_counts(l.waitlist_id)
), fresh AS (
    SELECT gone.* FROM gone JOIN list USING (waitlist_id) WHERE number IS NULL OR number > built_to
), origin AS (
    SELECT waitlist_id, u.field, u.value, sum(signups)::bigint AS count, max(number) AS last_number
    FROM fresh, ROWS FROM (
        unnest(ARRAY['utm_source', 'utm_medium', 'utm_campaign']), unnest(ARRAY[source, medium, campaign])
    ) AS u (field, value)
    WHERE u.value <> ''
    GROUP BY waitlist_id, u.field, u.value
), days AS (
    INSERT INTO day AS d (waitlist_id, day, views, signups, referral_signups)
    SELECT waitlist_id, day, sum(views), sum(signups), sum(referral_signups) FROM fresh GROUP BY waitlist_id, day
    ON CONFLICT (waitlist_id, day) DO UPDATE
    SET views = d.views + excluded.views, signups = d.signups + excluded.signups,
        referral_signups = d.referral_signups + excluded.referral_signups
), totals AS (
    INSERT INTO utm_total AS t (waitlist_id, field, count)
    SELECT waitlist_id, field, sum(count) FROM origin GROUP BY waitlist_id, field
    ON CONFLICT (waitlist_id, field) DO UPDATE SET count = t.count + excluded.count
), "values" AS (
    INSERT INTO utm_value AS v (waitlist_id, field, value, count, last_number)
    SELECT waitlist_id, field, value, count, last_number FROM origin
    ON CONFLICT (waitlist_id, field, value) DO UPDATE
    SET count = v.count + excluded.count, last_number = greatest(v.last_number, excluded.last_number)
)
SELECT count(*) AS folded, coalesce(max(id), 0)::bigint AS last_id FROM gone;
