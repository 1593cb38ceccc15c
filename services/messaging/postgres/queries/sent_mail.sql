-- name: QueueMail :exec
-- Inserts nothing if the account or waitlist is deleted, or the mail is queued already. By sent_mail_pkey, gone_pkey and tombstone_pkey.
INSERT INTO sent_mail (event_id, kind, recipient, account_id, generation, owner_email, role, waitlist_id, waitlist_name,
    number, expires_at, requested_at, traceparent, first_name, last_name, milestone)
SELECT @event_id::uuid, @kind::text, @recipient::text, sqlc.narg(account_id)::uuid, @generation::bigint, @owner_email::text, @role::text,
    sqlc.narg(waitlist_id)::uuid, @waitlist_name::text, @number::bigint, sqlc.narg(expires_at)::timestamptz, @requested_at::timestamptz,
    @traceparent::text, @first_name::text, @last_name::text, @milestone::bigint
WHERE NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[sqlc.narg(account_id)::uuid, sqlc.narg(waitlist_id)::uuid]))
  AND NOT EXISTS (SELECT FROM tombstone b WHERE b.hash = ANY (
    ARRAY[sha256(uuid_send(sqlc.narg(account_id)::uuid)), sha256(uuid_send(sqlc.narg(waitlist_id)::uuid))]))
ON CONFLICT (event_id) DO NOTHING;

-- name: MarkGone :exec
-- By gone_pkey.
INSERT INTO gone (id) VALUES ($1) ON CONFLICT (id) DO NOTHING;

-- name: MailNotified :one
-- By sent_mail_told.
SELECT (EXISTS (
    SELECT FROM sent_mail m WHERE m.waitlist_id = @waitlist_id::uuid AND m.number = @number::bigint AND m.kind = @kind::text
    AND m.kind IN ('referral_notification', 'sms', 'signup_link') AND m.state IN ('queued', 'sent') AND m.ended_at IS NULL
) OR EXISTS (
    SELECT FROM sent_mail m WHERE m.waitlist_id = @waitlist_id::uuid AND m.number = @number::bigint AND m.kind = @kind::text
    AND m.kind IN ('referral_notification', 'sms', 'signup_link') AND m.state IN ('queued', 'sent')
    AND m.ended_at > now() - interval '1 hour'
))::boolean AS notified;

-- The statements below write state = 'queued' in a form that the indexes sent_mail_due_… cannot serve: a plan made
-- while the table was small could otherwise scan all queued rows for a single one.

-- name: ClaimAccountMails :many
-- By sent_mail_due_account and gone_pkey.
UPDATE sent_mail m SET due_at = now() + sqlc.arg(lease)::interval, claim = gen_random_uuid()
FROM (
    SELECT s.event_id FROM sent_mail s
    WHERE s.state = 'queued' AND s.due_at <= now() AND s.waitlist_id IS NULL
    AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[s.account_id, s.waitlist_id]))
    ORDER BY s.due_at LIMIT @most::bigint FOR UPDATE OF s SKIP LOCKED) due
WHERE m.event_id = due.event_id
RETURNING m.event_id, m.kind, m.recipient, m.account_id, m.generation, m.owner_email, m.role, m.waitlist_id, m.waitlist_name, m.number,
    m.expires_at, m.requested_at, m.traceparent, m.first_name, m.last_name, m.milestone, m.deferrals, m.claim::uuid AS claim;

-- name: ClaimMails :many
-- By sent_mail_due_mail and gone_pkey.
UPDATE sent_mail m SET due_at = now() + sqlc.arg(lease)::interval, claim = gen_random_uuid()
FROM (
    SELECT s.event_id FROM sent_mail s
    WHERE s.state = 'queued' AND s.kind <> 'sms' AND s.due_at <= now()
    AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[s.account_id, s.waitlist_id]))
    ORDER BY s.due_at LIMIT @most::bigint FOR UPDATE OF s SKIP LOCKED) due
WHERE m.event_id = due.event_id
RETURNING m.event_id, m.kind, m.recipient, m.account_id, m.generation, m.owner_email, m.role, m.waitlist_id, m.waitlist_name, m.number,
    m.expires_at, m.requested_at, m.traceparent, m.first_name, m.last_name, m.milestone, m.deferrals, m.claim::uuid AS claim;

-- name: ClaimTexts :many
-- By sent_mail_due_text and gone_pkey.
UPDATE sent_mail m SET due_at = now() + sqlc.arg(lease)::interval, claim = gen_random_uuid()
FROM (
    SELECT s.event_id FROM sent_mail s
    WHERE s.state = 'queued' AND s.kind = 'sms' AND s.due_at <= now()
    AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[s.account_id, s.waitlist_id]))
    ORDER BY s.due_at LIMIT @most::bigint FOR UPDATE OF s SKIP LOCKED) due
WHERE m.event_id = due.event_id
RETURNING m.event_id, m.kind, m.recipient, m.account_id, m.generation, m.owner_email, m.role, m.waitlist_id, m.waitlist_name, m.number,
    m.expires_at, m.requested_at, m.traceparent, m.first_name, m.last_name, m.milestone, m.deferrals, m.claim::uuid AS claim;

-- Each claim of a mail has a value of its own, which goes when the mail is canceled, ended or returned. So the statements
-- below change nothing once the claim is gone.

-- name: EndMail :execrows
-- By sent_mail_pkey.
UPDATE sent_mail SET state = @state, error = @reason, ended_at = now(), claim = NULL,
    recipient = '', waitlist_name = '', owner_email = '', first_name = '', last_name = ''
WHERE event_id = @event_id AND claim = @claim::uuid;

-- name: DeferMail :execrows
-- By sent_mail_pkey.
UPDATE sent_mail SET due_at = now() + sqlc.arg(pause)::interval, deferrals = deferrals + 1, error = @reason, claim = NULL
WHERE event_id = @event_id AND claim = @claim::uuid;

-- name: ReturnMails :exec
-- By sent_mail_pkey.
UPDATE sent_mail SET due_at = now() + sqlc.arg(pause)::interval, claim = NULL
WHERE event_id = ANY (@event_ids::uuid[]) AND claim = ANY (@claims::uuid[]);

-- name: RenewMails :many
-- By sent_mail_pkey.
UPDATE sent_mail SET due_at = now() + sqlc.arg(lease)::interval
WHERE event_id = ANY (@event_ids::uuid[]) AND claim = ANY (@claims::uuid[]) RETURNING claim::uuid AS claim;

-- name: PruneMails :execrows
-- By sent_mail_ended and sent_mail_pkey.
DELETE FROM sent_mail WHERE event_id IN (
    SELECT m.event_id FROM sent_mail m WHERE m.ended_at < @before::timestamptz LIMIT @most::bigint);

-- name: OldestMail :one
-- When the oldest of the @most mails and of the @most text messages that are due first was requested; no row if none waits.
-- By sent_mail_due_mail and sent_mail_due_text.
SELECT w.requested_at FROM (
    (SELECT s.requested_at FROM sent_mail s WHERE s.state = 'queued' AND s.kind <> 'sms' ORDER BY s.due_at LIMIT @most::bigint)
    UNION ALL
    (SELECT t.requested_at FROM sent_mail t WHERE t.state = 'queued' AND t.kind = 'sms' ORDER BY t.due_at LIMIT @most::bigint)) w
ORDER BY w.requested_at LIMIT 1;
