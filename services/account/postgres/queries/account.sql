-- name: AccountByEmail :one
-- By account_email_key.
SELECT * FROM account WHERE email = $1;

-- name: GetAccount :one
-- By account_pkey.
SELECT * FROM account WHERE id = $1;

-- name: LockAccount :one
-- By account_pkey.
SELECT * FROM account WHERE id = $1 FOR UPDATE;

-- name: LockAccountByEmail :one
-- By account_email_key.
SELECT * FROM account WHERE email = $1 FOR UPDATE;

-- name: InsertAccount :exec
INSERT INTO account (
	id, email, email_verified_at, password_hash, password_generation, api_key_lookup, api_key_hash,
	tier, status, valid_until, trial, entitlement_version, trial_ends_at, has_used_trial,
	verify_cycle, verify_started_at, verify_resends, verify_resent_at, reset_sent_at, created_at, payment_customer_id
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21);

-- name: ActorBySession :many
-- It returns the caller's own account, then the accounts whose team the caller is on,
-- in order of invitation. The limit keeps logins possible for an address that very
-- many accounts invite. By session_pkey, account_pkey, team_member_email_no.
WITH caller AS (
	SELECT a.id, a.email, 'owner'::text AS role, a.tier, a.status, a.valid_until, a.trial, a.entitlement_version,
		(a.email_verified_at IS NOT NULL)::boolean AS verified, a.api_key_hash
	FROM session s JOIN account a ON a.id = s.account_id
	WHERE s.id = @session_id::uuid AND s.account_id = @account_id::uuid AND s.expires_at > sqlc.arg(now)::timestamptz
)
SELECT c.* FROM caller c
UNION ALL
SELECT o.id, o.email, m.role, o.tier, o.status, o.valid_until, o.trial, o.entitlement_version, false, ''
FROM caller c
JOIN LATERAL (SELECT t.owner_id, t.role FROM team_member t WHERE t.email = c.email ORDER BY t.no LIMIT 1000) m ON true
JOIN account o ON o.id = m.owner_id;

-- name: ActorByAPIKey :many
-- It returns the rows of ActorBySession. By account_api_key_lookup_key, account_pkey,
-- team_member_email_no.
WITH caller AS (
	SELECT a.id, a.email, 'owner'::text AS role, a.tier, a.status, a.valid_until, a.trial, a.entitlement_version,
		(a.email_verified_at IS NOT NULL)::boolean AS verified, a.api_key_hash
	FROM account a WHERE a.api_key_lookup = @lookup::text
)
SELECT c.* FROM caller c
UNION ALL
SELECT o.id, o.email, m.role, o.tier, o.status, o.valid_until, o.trial, o.entitlement_version, false, ''
FROM caller c
JOIN LATERAL (SELECT t.owner_id, t.role FROM team_member t WHERE t.email = c.email ORDER BY t.no LIMIT 1000) m ON true
JOIN account o ON o.id = m.owner_id;

-- name: HoldAccount :one
-- By account_pkey.
SELECT id FROM account WHERE id = $1 FOR KEY SHARE;

-- name: UpdateAccount :exec
-- For a row that the transaction has locked. A trial with another end gets another reminder. By account_pkey.
UPDATE account
SET email_verified_at = $2, password_hash = $3, password_generation = $4, api_key_lookup = $5, api_key_hash = $6,
	tier = $7, status = $8, valid_until = $9, trial = $10, entitlement_version = $11, trial_ends_at = $12, has_used_trial = $13,
	trial_ending_at = CASE WHEN trial_ends_at IS NOT DISTINCT FROM $12 THEN trial_ending_at END,
	verify_cycle = $14, verify_started_at = $15, verify_resends = $16, verify_resent_at = $17, reset_sent_at = $18,
	payment_customer_id = $19
WHERE id = $1;

-- name: TakeTrialEnding :one
-- By account_trial_ending, account_pkey.
UPDATE account SET trial_ending_at = sqlc.arg(now)::timestamptz
WHERE id = (
	SELECT a.id FROM account a
	WHERE a.status = 'trialing' AND a.trial_ending_at IS NULL
		AND a.valid_until > sqlc.arg(now)::timestamptz AND a.valid_until <= sqlc.arg(until)::timestamptz
		AND a.created_at + sqlc.arg(shortest)::interval <= a.valid_until
	ORDER BY a.valid_until LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id AS account_id, email, (email_verified_at IS NOT NULL)::boolean AS verified, valid_until::timestamptz AS ends_at;

-- name: CountInvitation :one
-- A window that started at or before oldest has ended. By account_pkey.
UPDATE account
SET invites = CASE WHEN invites_since > sqlc.arg(oldest)::timestamptz THEN invites + 1 ELSE 1 END,
	invites_since = CASE WHEN invites_since > sqlc.arg(oldest)::timestamptz THEN invites_since ELSE sqlc.arg(now)::timestamptz END
WHERE id = @id
RETURNING invites, invites_since::timestamptz AS since;

-- name: DeleteAccount :execrows
-- By account_pkey; its cascades by session_account_id, refresh_token_session_id and
-- team_member_pkey.
DELETE FROM account WHERE id = $1;

-- name: UseTrial :one
-- By used_trial_pkey.
WITH used AS (INSERT INTO used_trial (address_hash, used_at) VALUES ($1, $2) ON CONFLICT (address_hash) DO NOTHING RETURNING 1)
SELECT EXISTS (SELECT FROM used);
