-- name: OwnerGone :one
-- By gone_pkey and tombstone_pkey.
SELECT (EXISTS (SELECT FROM gone g WHERE g.id = @id::uuid)
    OR EXISTS (SELECT FROM tombstone b WHERE b.hash = sha256(uuid_send(@id::uuid))))::boolean AS gone;

-- name: InsertDomain :execrows
-- By domain_claim.
INSERT INTO domain (id, method, owner_id, name, state, since, created_at, records, external_id, registered, selector, key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (owner_id, method, name) DO NOTHING;

-- name: GetDomain :one
-- By domain_claim.
SELECT d.* FROM domain d WHERE owner_id = $1 AND method = $2 AND name = $3;

-- name: ListDomains :many
-- By domain_claim: an owner has about a hundred at most.
SELECT id, owner_id, name, state, since, created_at FROM domain WHERE owner_id = $1 AND method = $2 ORDER BY id;

-- name: DomainTaken :one
-- The claims of deleted accounts exist until the purge. By domain_verified and gone_pkey.
SELECT EXISTS (
    SELECT FROM domain d WHERE d.method = @method AND d.name = @name AND d.state = 'verified' AND d.owner_id <> @owner_id
    AND NOT EXISTS (SELECT FROM gone g WHERE g.id = d.owner_id)
);

-- name: MoveDomain :execrows
-- By domain_pkey.
UPDATE domain SET state = @new_state, since = @since WHERE id = @id AND state = @old_state;

-- name: DeleteDomain :one
-- By domain_pkey.
DELETE FROM domain WHERE id = $1 RETURNING external_id, registered;

-- name: TakeOverDomain :execrows
-- Passes the registration with the mail provider on to the oldest other claim. By domain_external.
UPDATE domain SET registered = true WHERE id = (
    SELECT d.id FROM domain d WHERE d.external_id = @external_id AND d.external_id <> '' ORDER BY d.id LIMIT 1 FOR UPDATE
);

-- name: LockDomainOf :one
-- Any one claim of an owner. By domain_claim.
SELECT id, method FROM domain WHERE owner_id = $1 LIMIT 1 FOR UPDATE;

-- name: ClaimDueDomains :many
-- By domain_due.
UPDATE domain d SET due_at = now() + sqlc.arg(every)::interval WHERE d.id = ANY (ARRAY(
    SELECT u.id FROM domain u WHERE u.method = @method AND u.state <> 'failed' AND u.due_at <= now()
    ORDER BY u.due_at LIMIT @most FOR UPDATE SKIP LOCKED))
RETURNING d.*;

-- name: ListSealed :many
-- By domain_pkey.
SELECT id, key FROM domain WHERE id > @after::uuid AND key <> '' ORDER BY id LIMIT @most;

-- name: ReplaceKey :execrows
-- Unless it has changed meanwhile. By domain_pkey.
UPDATE domain SET key = @key WHERE id = @id AND key = @former;

-- name: SenderDomain :one
-- The newest verified domain. By domain_claim.
SELECT d.* FROM domain d WHERE owner_id = $1 AND method = $2 AND state = 'verified' ORDER BY id DESC LIMIT 1;

-- name: QueueRelease :exec
-- By domain_release_pkey.
INSERT INTO domain_release (external_id, method) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: ClaimReleases :many
-- By domain_release_due and domain_release_pkey.
UPDATE domain_release r SET due_at = now() + sqlc.arg(every)::interval WHERE r.external_id = ANY (ARRAY(
    SELECT u.external_id FROM domain_release u WHERE u.method = @method AND u.due_at <= now()
    ORDER BY u.due_at LIMIT @most FOR UPDATE SKIP LOCKED))
RETURNING r.external_id;

-- name: DeleteRelease :exec
-- By domain_release_pkey.
DELETE FROM domain_release WHERE external_id = $1;
