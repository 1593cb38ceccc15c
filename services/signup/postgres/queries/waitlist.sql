-- name: GetWaitlist :one
-- Every waitlist has an owner row. By waitlist_pkey, owner_pkey and change_pkey.
SELECT w.id, w.owner_id, w.name, w.settings, w.version, w.created_at,
    o.tier, o.status, o.valid_until, o.trial, o.version AS owner_version,
    coalesce((SELECT c.total FROM change c WHERE c.waitlist_id = w.id ORDER BY c.no DESC LIMIT 1), 0)::bigint AS signup_count
FROM waitlist w JOIN owner o ON o.id = w.owner_id
WHERE w.deleted_at IS NULL AND w.id = @id;

-- name: ListWaitlists :many
-- UUIDv7s sort by creation. By waitlist_owner, owner_pkey and change_pkey.
SELECT w.id, w.name, w.created_at, o.version AS owner_version,
    coalesce((SELECT c.total FROM change c WHERE c.waitlist_id = w.id ORDER BY c.no DESC LIMIT 1), 0)::bigint AS signup_count
FROM waitlist w JOIN owner o ON o.id = w.owner_id
WHERE w.deleted_at IS NULL AND w.owner_id = @owner_id ORDER BY w.id;

-- name: CountWaitlists :one
-- By waitlist_owner.
SELECT count(*) FROM waitlist WHERE deleted_at IS NULL AND owner_id = $1;

-- name: ListWaitlistIDs :many
-- By waitlist_pkey.
SELECT id FROM waitlist WHERE id > @after::uuid AND deleted_at IS NULL ORDER BY id LIMIT @most;

-- name: InsertWaitlist :execrows
-- Inserts nothing if the owner is closed. By owner_pkey.
INSERT INTO waitlist (id, owner_id, name, settings, created_at)
SELECT @id, o.id, @name, @settings, @created_at FROM owner o WHERE o.id = @owner_id AND o.closed_at IS NULL;

-- name: LockWaitlist :execrows
-- By waitlist_pkey.
SELECT FROM waitlist WHERE id = $1 FOR NO KEY UPDATE;

-- name: UpdateWaitlist :exec
-- By waitlist_pkey.
UPDATE waitlist SET name = @name, settings = @settings, version = @version WHERE id = @id;

-- name: ListSealed :many
-- The waitlists that have a channel, and so a sealed URL. By waitlist_pkey.
SELECT id, settings FROM waitlist
WHERE id > @after::uuid AND settings ?| '{webhook_url,slack_webhook_url,discord_webhook_url}'::text[] ORDER BY id LIMIT @most;

-- name: ReplaceSettings :execrows
-- Unless they have changed meanwhile. By waitlist_pkey.
UPDATE waitlist SET settings = @settings WHERE id = @id AND settings = @former;

-- name: DeleteWaitlist :one
-- By waitlist_pkey.
UPDATE waitlist SET deleted_at = now() WHERE deleted_at IS NULL AND id = $1 RETURNING owner_id;

-- name: DeleteWaitlistsOf :many
-- By waitlist_owner.
UPDATE waitlist SET deleted_at = now() WHERE deleted_at IS NULL AND owner_id = $1 RETURNING id;

-- name: ListAssigned :many
-- Locks in the order of ids, so that two deletions of one owner do not deadlock. The
-- lock orders the removal and changes of settings. By waitlist_owner.
SELECT id, settings FROM waitlist
WHERE owner_id = @owner_id AND deleted_at IS NULL AND @template_id::text IN (
    settings #>> '{email_templates,signup_confirmation}',
    settings #>> '{email_templates,referral_milestone}',
    settings #>> '{email_templates,offboarding}')
ORDER BY id
FOR NO KEY UPDATE;

-- name: UpdateSettings :batchexec
-- By waitlist_pkey.
UPDATE waitlist SET settings = @settings, version = version + 1 WHERE id = @id;
