-- name: HoldOffPurge :exec
-- Keeps the purge of an account or waitlist waiting until the transaction ends.
SELECT pg_advisory_xact_lock_shared(hashtextextended('purge/' || @id::text, 0));

-- name: LockBound :exec
-- Makes an owner's concurrent insertions of bounded rows wait for each other, so that
-- each counts the rows of the others.
SELECT pg_advisory_xact_lock(hashtextextended('bound/' || @owner_id::text, 0));

-- name: CountTemplates :one
-- By template_owner.
SELECT count(*) FROM template WHERE owner_id = $1;

-- name: InsertTemplate :execrows
-- Inserts nothing if the owner is deleted. By gone_pkey and tombstone_pkey.
INSERT INTO template (id, owner_id, template_type, name, subject, html_body, text_body, created_at)
SELECT @id::uuid, @owner_id::uuid, @type::text, @name::text, @subject::text, @html::text, @text::text, @created_at::timestamptz
WHERE NOT EXISTS (SELECT FROM gone g WHERE g.id = @owner_id::uuid)
  AND NOT EXISTS (SELECT FROM tombstone b WHERE b.hash = sha256(uuid_send(@owner_id::uuid)));

-- name: ListTemplates :many
-- Without bodies. By template_owner.
SELECT id, owner_id, template_type AS type, name, subject, ''::text AS html, ''::text AS text, created_at
FROM template WHERE owner_id = $1 ORDER BY id;

-- name: GetTemplate :one
-- By template_pkey.
SELECT id, owner_id, template_type AS type, name, subject, html_body AS html, text_body AS text, created_at
FROM template WHERE id = $1 AND owner_id = $2;

-- name: LockTemplate :one
-- By template_pkey.
SELECT id, owner_id, template_type AS type, name, subject, html_body AS html, text_body AS text, created_at
FROM template WHERE id = $1 AND owner_id = $2 FOR UPDATE;

-- name: ChangeTemplate :exec
-- By template_pkey.
UPDATE template SET template_type = @type, name = @name, subject = @subject, html_body = @html, text_body = @text WHERE id = @id;

-- name: DeleteTemplate :execrows
-- By template_pkey.
DELETE FROM template WHERE id = $1 AND owner_id = $2;

-- name: TemplateTypes :many
-- By template_pkey.
SELECT id, template_type AS type FROM template WHERE id = ANY (@ids::uuid[]) AND owner_id = @owner_id;
