-- name: LockAccount :exec
-- Waits for the lock of an account, which the connection then holds.
SELECT pg_advisory_lock(hashtextextended('billing/' || @account_id::text, 0));

-- name: UnlockAccount :exec
-- It runs on the connection that holds the lock.
SELECT pg_advisory_unlock(hashtextextended('billing/' || @account_id::text, 0));

-- name: GetSubscriber :one
-- By subscriber_pkey.
SELECT * FROM subscriber WHERE account_id = $1;

-- name: SaveSubscriber :exec
-- One statement, so that events and seen subscriptions commit with the subscriber.
-- By subscriber_pkey, provider_event_pkey, known_subscription_pkey.
WITH events AS (
	INSERT INTO provider_event (id, received_at)
	SELECT unnest(@events::text[]), sqlc.arg(now)::timestamptz ON CONFLICT DO NOTHING
), seen AS (
	INSERT INTO known_subscription (grave, subscription_id, seen_at)
	SELECT @grave::uuid, unnest(@seen::text[]), sqlc.arg(now)::timestamptz ON CONFLICT DO NOTHING
)
INSERT INTO subscriber (
	account_id, customer_id, subscription_id, subscription_status, price_id, cancel_at_period_end, current_period_end, synced_at,
	tier, status, valid_until, trial, version, push_entitlement, push_customer, push_at, check_at
) VALUES (
	@account_id, @customer_id, @subscription_id, @subscription_status, @price_id, @cancel_at_period_end, @current_period_end, @synced_at,
	@tier, @status, @valid_until, @trial, @version, @push_entitlement, @push_customer, @push_at, @check_at
)
ON CONFLICT (account_id) DO UPDATE SET
	customer_id = excluded.customer_id, subscription_id = excluded.subscription_id,
	subscription_status = excluded.subscription_status, price_id = excluded.price_id,
	cancel_at_period_end = excluded.cancel_at_period_end, current_period_end = excluded.current_period_end,
	synced_at = excluded.synced_at, tier = excluded.tier, status = excluded.status, valid_until = excluded.valid_until,
	trial = excluded.trial, version = excluded.version, push_entitlement = excluded.push_entitlement,
	push_customer = excluded.push_customer, push_at = excluded.push_at, check_at = excluded.check_at;

-- name: SeenSubscriptions :many
-- By known_subscription_pkey.
SELECT subscription_id FROM known_subscription WHERE grave = ANY (@graves::uuid[]) AND seen_at <= sqlc.arg(until);

-- name: AccountOf :one
-- By subscriber_customer_id_key, deletion_customer_id.
SELECT s.account_id FROM subscriber s WHERE s.customer_id = @customer_id::text
UNION ALL
SELECT coalesce(d.account_id, d.grave)::uuid FROM deletion d WHERE d.customer_id = @customer_id::text
LIMIT 1;

-- name: HeardOf :one
-- By subscriber_pkey, operation_pkey, deletion_pkey.
SELECT (EXISTS (SELECT FROM subscriber s WHERE s.account_id = @account_id::uuid)
	OR EXISTS (SELECT FROM operation o WHERE o.account_id = @account_id::uuid)
	OR EXISTS (SELECT FROM deletion d WHERE d.grave = ANY (@graves::uuid[])))::boolean;

-- name: TakePush :one
-- By subscriber_push_at, subscriber_pkey.
UPDATE subscriber SET push_at = sqlc.arg(retry_at)::timestamptz
WHERE account_id = (
	SELECT due.account_id FROM subscriber due WHERE due.push_at <= sqlc.arg(now)::timestamptz
	ORDER BY due.push_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING account_id;

-- name: TakeCheck :one
-- By subscriber_check_at, subscriber_pkey.
UPDATE subscriber SET check_at = sqlc.arg(retry_at)::timestamptz
WHERE account_id = (
	SELECT due.account_id FROM subscriber due WHERE due.check_at <= sqlc.arg(now)::timestamptz
	ORDER BY due.check_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING account_id;

-- name: Customers :many
-- By subscriber_pkey.
SELECT * FROM subscriber WHERE account_id > @after AND customer_id IS NOT NULL ORDER BY account_id LIMIT @most::bigint;
