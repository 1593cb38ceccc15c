-- name: Members :many
-- By team_member_pkey.
SELECT email, role, invited_at FROM team_member WHERE owner_id = $1 ORDER BY no;

-- name: InsertMember :one
-- Returns no row if the address is a member already. By team_member_pkey.
INSERT INTO team_member (owner_id, email, role, invited_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (owner_id, email) DO NOTHING RETURNING no::text AS id;

-- name: CountMembers :one
-- By team_member_pkey.
SELECT count(*) FROM team_member WHERE owner_id = $1;

-- name: DeleteMember :one
-- By team_member_pkey.
DELETE FROM team_member WHERE owner_id = $1 AND email = $2 RETURNING no::text AS id;

-- name: DeleteTeam :many
-- By team_member_pkey.
DELETE FROM team_member WHERE owner_id = $1 RETURNING no::text AS id;

-- name: DeleteMemberships :exec
-- By team_member_email_no.
DELETE FROM team_member WHERE email = $1;
