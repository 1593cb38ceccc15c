-- name: UseQuotas :exec
-- Locks the rows in the order of their key, so that concurrent calls do not deadlock. By quota_use_pkey.
INSERT INTO quota_use AS q (quota, subject, hour, used)
SELECT @quota::text, u.subject, date_trunc('hour', @at::timestamptz, 'UTC'), u.used
FROM ROWS FROM (unnest(@subjects::bytea[]), unnest(@used::bigint[])) AS u (subject, used) ORDER BY u.subject
ON CONFLICT (quota, subject, hour) DO UPDATE SET used = q.used + excluded.used;

-- name: QuotaUses :many
-- By quota_use_pkey.
SELECT q.subject, q.hour AS at, q.used FROM unnest(@subjects::bytea[]) AS s (subject), LATERAL (
    SELECT u.subject, u.hour, u.used FROM quota_use u
    WHERE u.quota = @quota::text AND u.subject = s.subject AND u.hour > @after::timestamptz LIMIT 25) q
ORDER BY q.hour;

-- name: ChargeMail :execrows
-- By sent_mail_pkey.
UPDATE sent_mail SET charged = true WHERE event_id = @event_id AND NOT charged;

-- name: ChargeBatch :execrows
-- By blast_batch_pkey.
UPDATE blast_batch SET charged = true WHERE blast_id = @blast_id AND batch = @batch AND claim = @claim::uuid AND NOT charged;

-- name: PruneQuotaUses :execrows
-- By quota_use_hour and quota_use_pkey.
DELETE FROM quota_use WHERE (quota, subject, hour) IN (
    SELECT u.quota, u.subject, u.hour FROM quota_use u WHERE u.hour < @before::timestamptz ORDER BY u.hour LIMIT @most::bigint);
