package postgres

// These are all statements of the service. The comment beside each names the indexes
// that it uses.

const subscriberColumns = `account_id, customer_id,
	subscription_id, subscription_status, price_id, cancel_at_period_end, current_period_end, synced_at,
	tier, status, valid_until, trial, version,
	push_entitlement, push_customer, push_at, check_at`

// grave is the hash that replaces the id of account $1 after its deletion. $1 may
// also be such a hash; graves matches both.
const (
	grave  = `encode(substring(sha256(uuid_send($1::uuid)) for 16), 'hex')::uuid`
	graves = `ANY (ARRAY[$1::uuid, ` + grave + `])`
)

const (
	// The lock of an account, which the connection holds.
	lockAccount   = `SELECT pg_advisory_lock(hashtextextended('billing/' || $1::text, 0))`
	unlockAccount = `SELECT pg_advisory_unlock(hashtextextended('billing/' || $1::text, 0))`

	// By subscriber_pkey.
	subscriber = `-- name: Subscriber
SELECT ` + subscriberColumns + ` FROM subscriber WHERE account_id = $1`

	// By subscriber_pkey.
	saveSubscriber = `-- name: SaveSubscriber
INSERT INTO subscriber (` + subscriberColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
ON CONFLICT (account_id) DO UPDATE SET
	customer_id = EXCLUDED.customer_id, subscription_id = EXCLUDED.subscription_id, subscription_status = EXCLUDED.subscription_status,
	price_id = EXCLUDED.price_id, cancel_at_period_end = EXCLUDED.cancel_at_period_end, current_period_end = EXCLUDED.current_period_end,
	synced_at = EXCLUDED.synced_at, tier = EXCLUDED.tier, status = EXCLUDED.status, valid_until = EXCLUDED.valid_until,
	trial = EXCLUDED.trial, version = EXCLUDED.version, push_entitlement = EXCLUDED.push_entitlement,
	push_customer = EXCLUDED.push_customer, push_at = EXCLUDED.push_at, check_at = EXCLUDED.check_at`

	// By known_subscription_pkey.
	saveSeen = `-- name: SaveSeen
INSERT INTO known_subscription (grave, subscription_id, seen_at) SELECT ` + grave + `, unnest($2::text[]), $3 ON CONFLICT DO NOTHING`

	// By known_subscription_pkey.
	seenSubscriptions = `-- name: SeenSubscriptions
SELECT subscription_id FROM known_subscription WHERE grave = ` + graves + ` AND seen_at <= $2`

	// By subscriber_customer_id_key, deletion_customer_id.
	accountOf = `-- name: AccountOf
SELECT account_id FROM subscriber WHERE customer_id = $1
UNION ALL
SELECT coalesce(account_id, grave) FROM deletion WHERE customer_id = $1
LIMIT 1`

	// By subscriber_pkey, operation_pkey, deletion_pkey.
	heardOf = `-- name: HeardOf
SELECT EXISTS (SELECT FROM subscriber WHERE account_id = $1)
	OR EXISTS (SELECT FROM operation WHERE account_id = $1)
	OR EXISTS (SELECT FROM deletion WHERE grave = ` + graves + `)`

	// By provider_event_pkey.
	eventSeen = `-- name: EventSeen
SELECT EXISTS (SELECT FROM provider_event WHERE id = $1)`

	// By provider_event_pkey.
	recordEvents = `-- name: RecordEvents
INSERT INTO provider_event (id, received_at) SELECT unnest($1::text[]), $2 ON CONFLICT DO NOTHING`

	// By operation_pkey. The epoch and the start stay the same if the outcome of the
	// same wish is unknown and it started after $5. Otherwise a new epoch starts.
	beginOperation = `-- name: BeginOperation
INSERT INTO operation AS o (account_id, name, wish, epoch, started_at) VALUES ($1, $2, $3, 1, $4)
ON CONFLICT (account_id, name) DO UPDATE SET
	epoch = CASE WHEN o.ended_at IS NULL AND o.wish = EXCLUDED.wish AND o.started_at > $5 THEN o.epoch ELSE o.epoch + 1 END,
	started_at = CASE WHEN o.ended_at IS NULL AND o.wish = EXCLUDED.wish AND o.started_at > $5 THEN o.started_at ELSE EXCLUDED.started_at END,
	wish = EXCLUDED.wish, ended_at = NULL
RETURNING epoch`

	// By operation_pkey.
	endOperation = `-- name: EndOperation
UPDATE operation SET ended_at = $3 WHERE account_id = $1 AND name = $2`

	// By subscriber_push_at, subscriber_pkey.
	takePush = `-- name: TakePush
UPDATE subscriber SET push_at = $2
WHERE account_id = (SELECT account_id FROM subscriber WHERE push_at <= $1 ORDER BY push_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING account_id`

	// By subscriber_check_at, subscriber_pkey.
	takeCheck = `-- name: TakeCheck
UPDATE subscriber SET check_at = $2
WHERE account_id = (SELECT account_id FROM subscriber WHERE check_at <= $1 ORDER BY check_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING account_id`

	// By deletion_due_at, deletion_pkey.
	takeDeletion = `-- name: TakeDeletion
UPDATE deletion SET due_at = $2
WHERE grave = (SELECT grave FROM deletion WHERE due_at <= $1 ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING account_id`

	// By deletion_pkey.
	deletion = `-- name: Deletion
SELECT coalesce(account_id, grave), customer_id, deleted_at FROM deletion WHERE grave = ` + graves

	// By deletion_pkey, subscriber_pkey.
	insertDeletion = `-- name: InsertDeletion
INSERT INTO deletion (grave, account_id, customer_id, deleted_at, due_at)
VALUES (` + grave + `, $1, (SELECT customer_id FROM subscriber WHERE account_id = $1), $2, $2)
ON CONFLICT (grave) DO NOTHING`

	// By deletion_pkey. The completed deletion remains.
	endDeletion = `-- name: EndDeletion
UPDATE deletion SET account_id = NULL, customer_id = coalesce(customer_id, $2), due_at = NULL WHERE grave = ` + graves

	// By subscriber_pkey.
	deleteSubscriber = `-- name: DeleteSubscriber
DELETE FROM subscriber WHERE account_id = $1`

	// By operation_pkey.
	deleteOperations = `-- name: DeleteOperations
DELETE FROM operation WHERE account_id = $1`

	// By subscriber_pkey.
	customers = `-- name: Customers
SELECT ` + subscriberColumns + ` FROM subscriber WHERE account_id > $1 AND customer_id IS NOT NULL ORDER BY account_id LIMIT $2`

	// By deletion_done.
	deletions = `-- name: Deletions
SELECT grave, customer_id, deleted_at FROM deletion WHERE grave > $1 AND deleted_at > $2 AND due_at IS NULL ORDER BY grave LIMIT $3`

	// By reconciliation_pkey.
	takeReconciliation = `-- name: TakeReconciliation
INSERT INTO reconciliation AS r (one, started_at) VALUES (true, $1)
ON CONFLICT (one) DO UPDATE SET started_at = EXCLUDED.started_at WHERE r.started_at <= $2`

	// By reconciliation_pkey.
	retryReconciliation = `-- name: RetryReconciliation
UPDATE reconciliation SET started_at = $1 WHERE one`
)

// The statements of a sweep delete at most $2 rows, up to the time $1.
const (
	// By provider_event_received_at, provider_event_pkey.
	sweepEvents = `-- name: SweepEvents
DELETE FROM provider_event WHERE id = ANY (ARRAY(
	SELECT id FROM provider_event WHERE received_at <= $1 ORDER BY received_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	// By operation_started_at, operation_pkey.
	sweepOperations = `-- name: SweepOperations
DELETE FROM operation WHERE (account_id, name) IN (
	SELECT account_id, name FROM operation WHERE started_at <= $1 ORDER BY started_at LIMIT $2 FOR UPDATE SKIP LOCKED)`

	// By deletion_deleted_at, deletion_pkey, known_subscription_pkey. It keeps
	// deletions that are not complete.
	sweepDeletions = `-- name: SweepDeletions
WITH gone AS (
	DELETE FROM deletion WHERE grave = ANY (ARRAY(
		SELECT grave FROM deletion WHERE deleted_at <= $1 AND due_at IS NULL ORDER BY deleted_at LIMIT $2 FOR UPDATE SKIP LOCKED))
	RETURNING grave
), forgotten AS (
	DELETE FROM known_subscription WHERE grave IN (SELECT grave FROM gone)
)
SELECT FROM gone`
)
