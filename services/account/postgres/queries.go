package postgres

// These are all statements of the service. The comment beside each names the indexes
// that it uses.

// accountColumns are the columns that scanAccount reads, in its order.
const accountColumns = `id, email, email_verified_at, password_hash, password_generation,
	api_key_lookup, api_key_hash,
	tier, status, valid_until, trial, entitlement_version, trial_ends_at, has_used_trial,
	verify_cycle, verify_started_at, verify_resends, verify_resent_at, reset_sent_at, created_at, payment_customer_id`

const (
	// By account_email_key.
	accountByEmail = `-- name: AccountByEmail
SELECT ` + accountColumns + ` FROM account WHERE email = $1`

	// By account_pkey.
	accountByID = `-- name: Account
SELECT ` + accountColumns + ` FROM account WHERE id = $1`

	// By account_pkey.
	lockAccount = `-- name: LockAccount
SELECT ` + accountColumns + ` FROM account WHERE id = $1 FOR UPDATE`

	// By account_email_key.
	lockAccountByEmail = `-- name: LockAccountByEmail
SELECT ` + accountColumns + ` FROM account WHERE email = $1 FOR UPDATE`

	insertAccount = `-- name: InsertAccount
INSERT INTO account (` + accountColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)`

	// actorRows returns the caller's own account, then the accounts whose team the
	// caller is on, in order of invitation (team_member_email_no, account_pkey). The
	// limit keeps logins possible for an address that very many accounts invite.
	actorRows = `
SELECT c.id, c.email, 'owner', c.tier, c.status, c.valid_until, c.trial, c.entitlement_version, c.verified, c.api_key_hash
FROM caller c
UNION ALL
SELECT o.id, o.email, m.role, o.tier, o.status, o.valid_until, o.trial, o.entitlement_version, false, ''
FROM caller c
JOIN LATERAL (SELECT owner_id, role FROM team_member WHERE email = c.email ORDER BY no LIMIT 1000) m ON true
JOIN account o ON o.id = m.owner_id`

	callerColumns = `a.id, a.email, a.tier, a.status, a.valid_until, a.trial, a.entitlement_version,
	a.email_verified_at IS NOT NULL AS verified, a.api_key_hash`

	// By session_pkey, account_pkey.
	actorBySession = `-- name: ActorBySession
WITH caller AS (
	SELECT ` + callerColumns + `
	FROM session s JOIN account a ON a.id = s.account_id
	WHERE s.id = $1 AND s.account_id = $2 AND s.expires_at > $3
)` + actorRows

	// By account_api_key_lookup_key.
	actorByAPIKey = `-- name: ActorByAPIKey
WITH caller AS (
	SELECT ` + callerColumns + ` FROM account a WHERE a.api_key_lookup = $1
)` + actorRows

	// By account_pkey.
	setAPIKey = `-- name: SetAPIKey
UPDATE account SET api_key_lookup = $2, api_key_hash = $3 WHERE id = $1`

	// By account_pkey.
	setPasswordHash = `-- name: SetPasswordHash
UPDATE account SET password_hash = $3 WHERE id = $1 AND password_generation = $2`

	// By account_pkey.
	setPassword = `-- name: SetPassword
UPDATE account SET password_hash = $2, password_generation = password_generation + 1 WHERE id = $1`

	// By account_pkey.
	updateVerification = `-- name: UpdateVerification
UPDATE account
SET email_verified_at = $2, verify_cycle = $3, verify_started_at = $4, verify_resends = $5, verify_resent_at = $6
WHERE id = $1`

	// By account_pkey.
	setResetSent = `-- name: SetResetSent
UPDATE account SET reset_sent_at = $2 WHERE id = $1`

	// By account_pkey.
	setEntitlement = `-- name: SetEntitlement
UPDATE account
SET tier = $2, status = $3, valid_until = $4, trial = $5, entitlement_version = $6, trial_ends_at = $7, has_used_trial = $8,
	-- A trial with another end gets another reminder.
	trial_ending_at = CASE WHEN trial_ends_at IS NOT DISTINCT FROM $7 THEN trial_ending_at END
WHERE id = $1`

	// By account_pkey.
	setPaymentCustomer = `-- name: SetPaymentCustomer
UPDATE account SET payment_customer_id = $2 WHERE id = $1`

	// By account_trial_ending, account_pkey.
	takeTrialEnding = `-- name: TakeTrialEnding
UPDATE account SET trial_ending_at = $1
WHERE id = (
	SELECT id FROM account
	WHERE status = 'trialing' AND trial_ending_at IS NULL AND valid_until > $1 AND valid_until <= $2
		AND created_at + $3::interval <= valid_until
	ORDER BY valid_until LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, email, valid_until`

	// By account_pkey; its cascades by session_account_id, refresh_token_session_id
	// and team_member_pkey.
	deleteAccount = `-- name: DeleteAccount
DELETE FROM account WHERE id = $1`

	// By team_member_pkey.
	members = `-- name: Members
SELECT email, role, invited_at FROM team_member WHERE owner_id = $1 ORDER BY no`

	// By team_member_pkey.
	insertMember = `-- name: InsertMember
INSERT INTO team_member (owner_id, email, role, invited_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (owner_id, email) DO NOTHING`

	// By team_member_pkey.
	deleteMember = `-- name: DeleteMember
DELETE FROM team_member WHERE owner_id = $1 AND email = $2`

	// By account_pkey. A window that started at or before $3 has ended.
	countInvitation = `-- name: CountInvitation
UPDATE account
SET invites = CASE WHEN invites_since > $3 THEN invites + 1 ELSE 1 END,
	invites_since = CASE WHEN invites_since > $3 THEN invites_since ELSE $2 END
WHERE id = $1
RETURNING invites, invites_since`

	// By team_member_email_no.
	deleteMemberships = `-- name: DeleteMemberships
DELETE FROM team_member WHERE email = $1`

	insertClosing = `-- name: InsertClosing
INSERT INTO closing (account_id, due_at) VALUES ($1, $2)`

	// By closing_due_at, closing_pkey.
	takeClosing = `-- name: TakeClosing
UPDATE closing SET due_at = $2
WHERE account_id = (
	SELECT account_id FROM closing WHERE due_at <= $1 ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING account_id`

	// By closing_pkey.
	deleteClosing = `-- name: DeleteClosing
DELETE FROM closing WHERE account_id = $1`

	// By used_trial_pkey.
	useTrial = `-- name: UseTrial
INSERT INTO used_trial (address_hash, used_at) VALUES ($1, $2) ON CONFLICT (address_hash) DO NOTHING`

	// By account_pkey. The share lock waits for a concurrent password reset, which
	// changes the generation.
	insertSession = `-- name: InsertSession
INSERT INTO session (id, account_id, created_at, expires_at)
SELECT $1, a.id, $4, $5 FROM (
	SELECT id FROM account WHERE id = $2 AND password_generation = $3 FOR SHARE
) a`

	insertRefreshToken = `-- name: InsertRefreshToken
INSERT INTO refresh_token (hash, session_id, created_at, expires_at) VALUES ($1, $2, $3, $4)`

	// By refresh_token_pkey, session_pkey.
	lockSessionByToken = `-- name: LockSessionByToken
SELECT s.id, s.account_id, s.expires_at
FROM session s
WHERE s.id = (SELECT t.session_id FROM refresh_token t WHERE t.hash = $1)
FOR UPDATE`

	// By refresh_token_pkey.
	spendRefreshToken = `-- name: SpendRefreshToken
UPDATE refresh_token SET spent_at = $2 WHERE hash = $1 AND spent_at IS NULL AND expires_at > $2`

	// By session_pkey.
	extendSession = `-- name: ExtendSession
UPDATE session SET expires_at = $2 WHERE id = $1`

	// By session_pkey, refresh_token_session_id.
	deleteSession = `-- name: DeleteSession
DELETE FROM session WHERE id = $1`

	// By session_account_id, refresh_token_session_id.
	deleteSessions = `-- name: DeleteSessions
DELETE FROM session WHERE account_id = $1`

	// By refresh_token_pkey, session_pkey, refresh_token_session_id.
	deleteSessionByToken = `-- name: DeleteSessionByToken
DELETE FROM session WHERE id = (SELECT session_id FROM refresh_token WHERE hash = $1)`

	// By login_failure_account twice, login_failure_address. $4 and $5 are the limits
	// minus one. Counting stops at $6.
	loginFailures = `-- name: LoginFailures
SELECT
	(SELECT failed_at FROM login_failure
	 WHERE account = $1 AND address = $2 AND failed_at > $3 ORDER BY failed_at DESC OFFSET $4 LIMIT 1),
	(SELECT failed_at FROM login_failure
	 WHERE address = $2 AND failed_at > $3 ORDER BY failed_at DESC OFFSET $5 LIMIT 1),
	(SELECT count(*) FROM (
		SELECT FROM login_failure WHERE account = $1 AND address <> $2 AND failed_at > $3 LIMIT $6
	) f)`

	addLoginFailure = `-- name: AddLoginFailure
INSERT INTO login_failure (account, address, failed_at) VALUES ($1, $2, $3)`

	// By reset_request_pkey.
	queueReset = `-- name: QueueReset
INSERT INTO reset_request (email, requested_at) VALUES ($1, $2) ON CONFLICT (email) DO NOTHING`

	// By reset_request_requested_at, reset_request_pkey.
	takeReset = `-- name: TakeReset
DELETE FROM reset_request
WHERE email = (SELECT email FROM reset_request ORDER BY requested_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING email, requested_at`
)

// sweepRows bounds the rows that one statement of a sweep deletes ($2). $1 is the
// newest time to delete.
const sweepRows = 1000

const (
	// By session_expires_at, session_pkey.
	sweepSessions = `-- name: SweepSessions
DELETE FROM session WHERE id = ANY (ARRAY(
	SELECT id FROM session WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	// By refresh_token_expires_at, refresh_token_pkey.
	sweepRefreshTokens = `-- name: SweepRefreshTokens
DELETE FROM refresh_token WHERE hash = ANY (ARRAY(
	SELECT hash FROM refresh_token WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	// By login_failure_failed_at, login_failure_pkey.
	sweepLoginFailures = `-- name: SweepLoginFailures
DELETE FROM login_failure WHERE id = ANY (ARRAY(
	SELECT id FROM login_failure WHERE failed_at <= $1 ORDER BY failed_at LIMIT $2 FOR UPDATE SKIP LOCKED))`
)
