-- name: InsertBlast :execrows
-- Inserts nothing if the owner or waitlist is deleted. By gone_pkey and tombstone_pkey.
INSERT INTO blast (id, waitlist_id, owner_id, subject, html_body, text_body, traceparent, created_at, left_to_plan)
SELECT @id::uuid, @waitlist_id::uuid, @owner_id::uuid, @subject::text, @html::text, @text::text, @traceparent::text,
    @created_at::timestamptz, sqlc.narg(most)::bigint
WHERE NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[@waitlist_id::uuid, @owner_id::uuid]))
  AND NOT EXISTS (SELECT FROM tombstone b WHERE b.hash = ANY (
    ARRAY[sha256(uuid_send(@waitlist_id::uuid)), sha256(uuid_send(@owner_id::uuid))]));

-- name: CountBlasts :one
-- By blast_owner.
SELECT count(*) FROM blast WHERE owner_id = $1;

-- name: StoreAnswer :exec
-- By idempotency_key_pkey.
UPDATE idempotency_key SET response = @response WHERE account_id = @account_id AND scope = @scope AND key = @key;

-- name: GetBlast :one
-- A blast whose owner or waitlist is deleted has failed. By blast_pkey and gone_pkey.
SELECT subject, (CASE
        WHEN NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[b.owner_id, b.waitlist_id])) THEN state
        ELSE 'failed' END)::text AS state,
    coalesce(ended_at, created_at)::timestamptz AS at, recipient_count, failed_count
FROM blast b WHERE b.id = $1;

-- name: ListBlasts :many
-- By blast_waitlist.
SELECT id, subject, state, coalesce(ended_at, created_at)::timestamptz AS at, recipient_count AS recipients, failed_count AS failed
FROM blast WHERE waitlist_id = $1 ORDER BY id DESC;

-- name: ClaimPlan :one
-- By blast_plan and gone_pkey.
UPDATE blast p SET plan_at = now() + sqlc.arg(lease)::interval WHERE p.id = (
    SELECT b.id FROM blast b WHERE b.ended_at IS NULL AND NOT b.planned AND b.plan_at <= now()
    AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[b.owner_id, b.waitlist_id]))
    ORDER BY b.plan_at LIMIT 1 FOR UPDATE OF b SKIP LOCKED)
RETURNING p.id AS blast_id, p.waitlist_id, p.planned_to AS "to", coalesce(p.left_to_plan, 9223372036854775807)::bigint AS "left";

-- name: LockPlan :one
-- Returns the number of batches. By blast_pkey and gone_pkey.
SELECT b.batches FROM blast b WHERE b.id = @blast_id AND b.planned_to = @planned_to AND NOT b.planned AND b.ended_at IS NULL
AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[b.owner_id, b.waitlist_id]))
FOR NO KEY UPDATE OF b;

-- name: InsertRecipients :exec
INSERT INTO blast_recipient (blast_id, number) SELECT @blast_id::uuid, unnest(@numbers::bigint[]);

-- name: InsertBatches :exec
-- Numbers the batches from @batch.
INSERT INTO blast_batch (blast_id, batch, first_number, last_number)
SELECT @blast_id::uuid, sqlc.arg(batch)::bigint + b.n - 1, b.f, b.l
FROM ROWS FROM (unnest(@firsts::bigint[]), unnest(@lasts::bigint[])) WITH ORDINALITY AS b (f, l, n);

-- name: ExtendPlan :exec
-- Ends the blast if its plan is complete and all its batches have ended. By blast_pkey.
UPDATE blast SET planned_to = @planned_to, planned = @planned::boolean, plan_at = now(), batches = batches + sqlc.arg(added)::bigint,
    left_to_plan = left_to_plan - @recipients::bigint,
    state = CASE WHEN NOT (@planned::boolean AND batches_ended = batches + sqlc.arg(added)::bigint) THEN 'sending'
        WHEN failed_count > 0 AND failed_count = recipient_count THEN 'failed' ELSE 'sent' END,
    ended_at = CASE WHEN @planned::boolean AND batches_ended = batches + sqlc.arg(added)::bigint THEN now() END,
    html_body = CASE WHEN @planned::boolean AND batches_ended = batches + sqlc.arg(added)::bigint THEN '' ELSE html_body END,
    text_body = CASE WHEN @planned::boolean AND batches_ended = batches + sqlc.arg(added)::bigint THEN '' ELSE text_body END
WHERE id = @id;

-- name: PausePlan :exec
-- By blast_pkey.
UPDATE blast SET plan_at = now() + sqlc.arg(pause)::interval WHERE id = @id AND planned_to = @planned_to AND NOT planned;

-- name: FailBlastsOfOwner :exec
-- By blast_owner.
UPDATE blast SET state = 'failed', ended_at = now(), html_body = '', text_body = '' WHERE ended_at IS NULL AND owner_id = $1;

-- name: FailBlastsOfWaitlist :exec
-- By blast_waitlist.
UPDATE blast SET state = 'failed', ended_at = now(), html_body = '', text_body = '' WHERE ended_at IS NULL AND waitlist_id = $1;

-- name: ClaimBatches :many
-- One batch of each blast. By blast_running, blast_batch_due and gone_pkey.
WITH turn AS (
    SELECT b.id, d.batch, b.waitlist_id, b.owner_id, b.created_at, b.traceparent
    FROM blast b CROSS JOIN LATERAL (
        SELECT r.batch FROM blast_batch r WHERE r.blast_id = b.id AND r.state = 'ready' AND r.due_at <= now()
        ORDER BY r.due_at LIMIT 1 FOR UPDATE SKIP LOCKED) d
    WHERE b.ended_at IS NULL AND b.id > @after::uuid
    AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[b.owner_id, b.waitlist_id]))
    ORDER BY b.id LIMIT @most::bigint),
taken AS (
    UPDATE blast_batch t SET due_at = now() + sqlc.arg(lease)::interval, claim = @claim::uuid FROM turn
    WHERE t.blast_id = turn.id AND t.batch = turn.batch
    RETURNING t.blast_id, t.batch AS number, turn.waitlist_id, turn.owner_id, t.first_number AS first, t.last_number AS last,
        t.deferrals, turn.created_at, turn.traceparent)
SELECT k.blast_id, k.number, k.waitlist_id, k.owner_id, k.first, k.last, k.deferrals, k.created_at, k.traceparent
FROM taken k ORDER BY k.blast_id;

-- name: RenewBatch :exec
-- A claimed batch is always ready, but a condition on that would allow a plan by blast_batch_due, which may read all
-- batches of the blast. By blast_batch_pkey, blast_pkey and gone_pkey.
UPDATE blast_batch t SET due_at = now() + sqlc.arg(lease)::interval
WHERE t.blast_id = @blast_id::uuid AND t.batch = @batch::bigint AND t.claim = @claim::uuid
AND EXISTS (SELECT FROM blast b WHERE b.id = @blast_id::uuid AND b.ended_at IS NULL
    AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[b.owner_id, b.waitlist_id])));

-- name: PendingOfBatch :one
-- Finds no row if the blast has ended. By blast_pkey and blast_recipient_pkey.
SELECT b.subject, b.html_body AS html, b.text_body AS text, r.pending, r.ended
FROM blast b CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(p.number ORDER BY p.number) FILTER (WHERE p.state = 'queued'), '{}')::bigint[] AS pending,
        count(*) FILTER (WHERE p.state <> 'queued') AS ended
    FROM blast_recipient p WHERE p.blast_id = @blast_id::uuid AND p.number BETWEEN @first::bigint AND @last::bigint) r
WHERE b.id = @blast_id::uuid AND b.ended_at IS NULL;

-- name: RecordOutcome :exec
-- By blast_recipient_pkey.
UPDATE blast_recipient SET state = $3 WHERE blast_id = $1 AND number = $2 AND state = 'queued';

-- name: EndBatch :exec
-- Counts the batch's recipients, and ends the blast with its last batch. By blast_batch_pkey, blast_recipient_pkey and blast_pkey.
WITH ended AS (
    UPDATE blast_batch t SET state = 'ended', claim = NULL
    WHERE t.blast_id = @blast_id::uuid AND t.batch = @batch::bigint AND t.claim = @claim::uuid
    AND NOT EXISTS (SELECT FROM blast_recipient r
        WHERE r.blast_id = @blast_id::uuid AND r.number BETWEEN @first::bigint AND @last::bigint AND r.state = 'queued')
    RETURNING t.batch),
c AS (
    SELECT count(*) FILTER (WHERE r.state IN ('sent', 'failed')) AS n, count(*) FILTER (WHERE r.state = 'failed') AS f
    FROM blast_recipient r WHERE r.blast_id = @blast_id::uuid AND r.number BETWEEN @first::bigint AND @last::bigint)
UPDATE blast b SET batches_ended = b.batches_ended + 1,
    recipient_count = b.recipient_count + c.n, failed_count = b.failed_count + c.f,
    state = CASE WHEN NOT (b.planned AND b.batches_ended + 1 = b.batches) THEN 'sending'
        WHEN b.failed_count + c.f > 0 AND b.failed_count + c.f = b.recipient_count + c.n THEN 'failed' ELSE 'sent' END,
    ended_at = CASE WHEN b.planned AND b.batches_ended + 1 = b.batches THEN now() END,
    html_body = CASE WHEN b.planned AND b.batches_ended + 1 = b.batches THEN '' ELSE b.html_body END,
    text_body = CASE WHEN b.planned AND b.batches_ended + 1 = b.batches THEN '' ELSE b.text_body END
FROM c WHERE b.id = @blast_id::uuid AND b.ended_at IS NULL AND EXISTS (SELECT FROM ended);

-- name: ReturnBatch :exec
-- By blast_batch_pkey.
UPDATE blast_batch SET due_at = now() + sqlc.arg(pause)::interval, claim = NULL,
    deferrals = deferrals + CASE WHEN @deferred::boolean THEN 1 ELSE 0 END
WHERE blast_id = @blast_id AND batch = @batch AND claim = @claim::uuid;

-- name: Pace :one
-- Reserves the next places in the stream of mails, and returns how long to wait for them. By blast_pace_pkey.
INSERT INTO blast_pace (next_at) VALUES (clock_timestamp() + sqlc.arg(took)::interval)
ON CONFLICT (one) DO UPDATE SET next_at = greatest(blast_pace.next_at, clock_timestamp()) + sqlc.arg(took)::interval
RETURNING (next_at - sqlc.arg(took)::interval - clock_timestamp())::interval AS wait;

-- name: EndedBlast :one
-- Finds a blast that still has recipients and batches. By blast_ended.
SELECT id FROM blast WHERE ended_at < @before::timestamptz AND ledger ORDER BY ended_at LIMIT 1;

-- name: MarkPruned :exec
-- By blast_pkey.
UPDATE blast SET ledger = false WHERE id = $1;

-- name: DeleteRecipients :execrows
-- By blast_recipient_pkey.
DELETE FROM blast_recipient WHERE blast_id = @blast_id::uuid AND number = ANY (ARRAY(
    SELECT r.number FROM blast_recipient r WHERE r.blast_id = @blast_id::uuid ORDER BY r.number LIMIT @most::bigint));

-- name: DeleteBatches :execrows
-- By blast_batch_pkey.
DELETE FROM blast_batch WHERE blast_id = @blast_id::uuid AND batch = ANY (ARRAY(
    SELECT t.batch FROM blast_batch t WHERE t.blast_id = @blast_id::uuid ORDER BY t.batch LIMIT @most::bigint));

-- name: BlastOfOwner :one
-- Any one blast. By blast_owner.
SELECT id FROM blast WHERE owner_id = $1 LIMIT 1;

-- name: BlastOfWaitlist :one
-- Any one blast. By blast_waitlist.
SELECT id FROM blast WHERE waitlist_id = $1 LIMIT 1;

-- name: DeleteBlast :exec
-- By blast_pkey.
DELETE FROM blast WHERE id = $1;

-- name: DeleteAnswers :exec
-- By idempotency_key_pkey.
DELETE FROM idempotency_key WHERE account_id = $1;

-- name: OldestBlast :one
-- When the oldest unfinished blast was created. By blast_running and gone_pkey.
SELECT b.created_at FROM blast b WHERE b.ended_at IS NULL
AND NOT EXISTS (SELECT FROM gone g WHERE g.id = ANY (ARRAY[b.owner_id, b.waitlist_id]))
ORDER BY b.id LIMIT 1;
