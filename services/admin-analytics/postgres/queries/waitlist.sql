-- name: TakesCounts :one
SELECT takes_counts(@waitlist_id::uuid)::boolean;

-- name: ForgetWaitlist :exec
-- Marks a waitlist as deleted, unless its tombstone shows that the purge is done.
INSERT INTO waitlist AS w (waitlist_id, deleted_at)
SELECT @waitlist_id::uuid, now() WHERE NOT EXISTS (SELECT FROM tombstone WHERE hash = sha256(uuid_send(@waitlist_id)))
ON CONFLICT (waitlist_id) DO UPDATE SET deleted_at = coalesce(w.deleted_at, excluded.deleted_at);

-- name: NextDeleted :one
-- By waitlist_deleted.
SELECT deleted_at::timestamptz AS deleted_at, waitlist_id FROM waitlist
WHERE waitlist.deleted_at IS NOT NULL AND (waitlist.deleted_at, waitlist_id) > (@after::timestamptz, @after_id::uuid)
ORDER BY waitlist.deleted_at, waitlist_id LIMIT 1;

-- name: SetBuiltTo :exec
INSERT INTO waitlist (waitlist_id, built_to) VALUES ($1, $2)
ON CONFLICT (waitlist_id) DO UPDATE SET built_to = excluded.built_to;

-- name: DeleteWaitlist :exec
DELETE FROM waitlist WHERE waitlist_id = $1;

-- name: AddTombstone :exec
INSERT INTO tombstone (hash) VALUES (sha256(uuid_send(@waitlist_id::uuid))) ON CONFLICT DO NOTHING;

-- name: DeleteTombstones :exec
-- By tombstone_created_at.
DELETE FROM tombstone WHERE created_at < now() - @kept::interval;
