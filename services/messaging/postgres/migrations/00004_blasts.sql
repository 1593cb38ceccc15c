-- +goose Up

-- See package idempotency.
CREATE TABLE idempotency_key (
    scope        text        NOT NULL,
    account_id   uuid        NOT NULL,
    key          text        NOT NULL,
    request_hash bytea       NOT NULL,
    response     bytea       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, scope, key)
);
CREATE INDEX idempotency_key_created ON idempotency_key (created_at);

-- Blasts. Their ids are UUIDv7, hence in order of creation. The counters cover the ended batches.
CREATE TABLE blast (
    id              uuid        PRIMARY KEY,
    waitlist_id     uuid        NOT NULL,
    owner_id        uuid        NOT NULL,
    subject         text        NOT NULL,
    -- Either body may be empty; both are when the blast has ended.
    html_body       text        NOT NULL,
    text_body       text        NOT NULL,
    traceparent     text        NOT NULL,
    state           text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'sending', 'sent', 'failed')),
    created_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    -- The plan contains all recipients up to this number.
    planned_to      bigint      NOT NULL DEFAULT 0,
    planned         boolean     NOT NULL DEFAULT false,
    -- When the plan can be claimed: now, after a pause, or when the lease of a claim expires.
    plan_at         timestamptz NOT NULL DEFAULT now(),
    batches         bigint      NOT NULL DEFAULT 0,
    batches_ended   bigint      NOT NULL DEFAULT 0,
    recipient_count bigint      NOT NULL DEFAULT 0,
    failed_count    bigint      NOT NULL DEFAULT 0,
    -- Whether its batches and recipients still exist.
    ledger          boolean     NOT NULL DEFAULT true,
    CHECK ((ended_at IS NULL) = (state IN ('queued', 'sending')))
);
CREATE INDEX blast_waitlist ON blast (waitlist_id, id);
CREATE INDEX blast_owner ON blast (owner_id);
CREATE INDEX blast_plan ON blast (plan_at) WHERE ended_at IS NULL AND NOT planned;
CREATE INDEX blast_running ON blast (id) WHERE ended_at IS NULL;
CREATE INDEX blast_ended ON blast (ended_at) WHERE ended_at IS NOT NULL AND ledger;

-- Batches of up to 100 recipients. The ranges of their numbers do not overlap.
CREATE TABLE blast_batch (
    blast_id     uuid        NOT NULL,
    batch        bigint      NOT NULL,
    first_number bigint      NOT NULL,
    last_number  bigint      NOT NULL,
    -- Queued until the event of the batch is consumed, then ready.
    state        text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'ready', 'ended')),
    -- How often the batch was deferred.
    deferrals    int         NOT NULL DEFAULT 0,
    -- When the batch can be claimed: now, after a pause, or when the lease of a claim expires.
    due_at       timestamptz NOT NULL DEFAULT now(),
    -- The id of the current claim.
    claim        uuid,
    PRIMARY KEY (blast_id, batch)
);
CREATE INDEX blast_batch_due ON blast_batch (blast_id, due_at) WHERE state = 'ready';

-- The recipients of blasts, without their addresses. Skipped recipients had left or opted out before their batch
-- was sent.
CREATE TABLE blast_recipient (
    blast_id uuid   NOT NULL,
    number   bigint NOT NULL,
    state    text   NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'sent', 'failed', 'skipped')),
    PRIMARY KEY (blast_id, number)
) WITH (fillfactor = 50); -- Each row changes once; its new version fits into the page.

-- When the next mail of any blast may be sent, if the rate is limited. All replicas share this row.
CREATE TABLE blast_pace (
    one     boolean     PRIMARY KEY DEFAULT true CHECK (one),
    next_at timestamptz NOT NULL
);

-- The mails that blasts count towards the daily cap of a trial. The rows outlive the blasts.
CREATE TABLE blast_trial (
    blast_id   uuid        PRIMARY KEY,
    owner_id   uuid        NOT NULL,
    recipients bigint      NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX blast_trial_owner ON blast_trial (owner_id, created_at);
CREATE INDEX blast_trial_created ON blast_trial (created_at);

-- +goose Down
DROP TABLE blast_trial, blast_pace, blast_recipient, blast_batch, blast, idempotency_key;
