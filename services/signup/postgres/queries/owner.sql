-- name: SetOwner :exec
-- Leaves an entitlement that is at least as new, but locks its row. By owner_pkey.
INSERT INTO owner (id, tier, status, valid_until, trial, version) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO UPDATE SET tier = excluded.tier, status = excluded.status,
    valid_until = excluded.valid_until, trial = excluded.trial, version = excluded.version
WHERE owner.version < excluded.version;

-- name: HasOwner :one
-- By owner_pkey.
SELECT EXISTS (SELECT FROM owner WHERE id = $1);

-- name: LockOwnerOf :one
-- By owner_pkey and waitlist_pkey.
SELECT o.templates_deleted FROM owner o WHERE o.id = (SELECT w.owner_id FROM waitlist w WHERE w.id = @waitlist_id)
FOR SHARE;

-- name: CloseOwner :exec
-- Stores an unknown owner as closed. By owner_pkey.
INSERT INTO owner (id, tier, status, trial, version, closed_at) VALUES ($1, '', 'inactive', false, 0, now())
ON CONFLICT (id) DO UPDATE SET closed_at = coalesce(owner.closed_at, now());

-- name: CountDeletedTemplate :exec
-- By owner_pkey.
UPDATE owner SET templates_deleted = templates_deleted + 1 WHERE id = $1;

-- name: TemplatesDeleted :one
-- By owner_pkey.
SELECT templates_deleted FROM owner WHERE id = $1;
