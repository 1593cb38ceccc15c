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

-- Blasts; their ids are UUIDv7, and so in order of creation. The counters are
-- those of the batches that have ended.
CREATE TABLE blast (
    id              uuid        PRIMARY KEY,
    waitlist_id     uuid        NOT NULL,
    owner_id        uuid        NOT NULL,
    subject         text        NOT NULL,
    -- Empty where there is none, and both once the blast has ended.
    html_body       text        NOT NULL,
    text_body       text        NOT NULL,
    traceparent     text        NOT NULL,
    state           text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'sending', 'sent', 'failed')),
    created_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    -- The plan has everybody up to this number.
    planned_to      bigint      NOT NULL DEFAULT 0,
    planned         boolean     NOT NULL DEFAULT false,
    -- When the plan may be gone on with: now, after a pause, or after a lease.
    plan_at         timestamptz NOT NULL DEFAULT now(),
    batches         bigint      NOT NULL DEFAULT 0,
    batches_ended   bigint      NOT NULL DEFAULT 0,
    recipient_count bigint      NOT NULL DEFAULT 0,
    failed_count    bigint      NOT NULL DEFAULT 0,
    -- Whether its batches and recipients are still here.
    ledger          boolean     NOT NULL DEFAULT true,
    CHECK ((ended_at IS NULL) = (state IN ('queued', 'sending')))
);
CREATE INDEX blast_waitlist ON blast (waitlist_id, id);
CREATE INDEX blast_owner ON blast (owner_id);
CREATE INDEX blast_plan ON blast (plan_at) WHERE ended_at IS NULL AND NOT planned;
CREATE INDEX blast_running ON blast (id) WHERE ended_at IS NULL;
CREATE INDEX blast_ended ON blast (ended_at) WHERE ended_at IS NOT NULL AND ledger;

-- Up to 100 recipients with numbers without others between them.
CREATE TABLE blast_batch (
    blast_id     uuid        NOT NULL,
    batch        bigint      NOT NULL,
    first_number bigint      NOT NULL,
    last_number  bigint      NOT NULL,
    -- Published: queued until its event comes, then ready.
    state        text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'ready', 'ended')),
    -- How often it was put off.
    deferrals    int         NOT NULL DEFAULT 0,
    -- When it may be claimed: now, after a pause, or after a claim's lease.
    due_at       timestamptz NOT NULL DEFAULT now(),
    -- The claim that has it.
    claim        uuid,
    PRIMARY KEY (blast_id, batch)
);
CREATE INDEX blast_batch_due ON blast_batch (blast_id, due_at) WHERE state = 'ready';

-- The ledger of blasts: one row for each recipient, without the address. Skipped
-- are those who had gone or opted out when their turn came.
CREATE TABLE blast_recipient (
    blast_id uuid   NOT NULL,
    number   bigint NOT NULL,
    state    text   NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'sent', 'failed', 'skipped')),
    PRIMARY KEY (blast_id, number)
) WITH (fillfactor = 50); -- A row changes once: its new version fits beside it.

-- When the next mails of blasts may go out, over all replicas, where their
-- rate is limited.
CREATE TABLE blast_pace (
    one     boolean     PRIMARY KEY DEFAULT true CHECK (one),
    next_at timestamptz NOT NULL
);

-- What an owner's trial has mailed in the last day. It outlives the blasts.
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
