-- +goose Up
-- Accounts that billing has something to do with.
CREATE TABLE subscriber (
    account_id           uuid        PRIMARY KEY,
    -- Who the account is at the provider; NULL: nobody yet.
    customer_id          text,
    -- The subscription that counts, as last fetched; '': there is none.
    subscription_id      text        NOT NULL DEFAULT '',
    subscription_status  text        NOT NULL DEFAULT '',
    price_id             text        NOT NULL DEFAULT '',
    cancel_at_period_end boolean     NOT NULL DEFAULT false,
    current_period_end   timestamptz,
    synced_at            timestamptz,
    -- The entitlement as last decided here; version 0: none was.
    tier                 text        NOT NULL DEFAULT '' CHECK (tier IN ('', 'basic', 'advanced', 'pro')),
    status               text        NOT NULL DEFAULT '' CHECK (status IN ('', 'trialing', 'active', 'canceling', 'inactive')),
    valid_until          timestamptz,
    trial                boolean     NOT NULL DEFAULT false,
    version              bigint      NOT NULL DEFAULT 0,
    -- What account is still to be told, and when that is next tried.
    push_entitlement     boolean     NOT NULL DEFAULT false,
    push_customer        boolean     NOT NULL DEFAULT false,
    push_at              timestamptz,
    -- When to look at the provider without being told to; NULL: never.
    check_at             timestamptz,
    CONSTRAINT subscriber_customer_id_key UNIQUE (customer_id)
);
CREATE INDEX subscriber_push_at ON subscriber (push_at) WHERE push_at IS NOT NULL;
CREATE INDEX subscriber_check_at ON subscriber (check_at) WHERE check_at IS NOT NULL;

-- Every subscription that was ever seen at a customer of ours. What shows up after
-- the account's deletion was paid by somebody who had gone.
CREATE TABLE known_subscription (
    -- The hash of the account's id; see deletion.
    grave           uuid        NOT NULL,
    subscription_id text        NOT NULL,
    -- When it was seen first.
    seen_at         timestamptz NOT NULL,
    PRIMARY KEY (grave, subscription_id)
);

-- Calls that change something at the provider: written before they are made, so
-- that a repetition carries the same idempotency key.
CREATE TABLE operation (
    account_id uuid        NOT NULL,
    name       text        NOT NULL,
    -- What is asked for; another wish is another attempt.
    wish       text        NOT NULL,
    -- Counts the attempts whose outcome became known.
    epoch      bigint      NOT NULL,
    started_at timestamptz NOT NULL,
    -- NULL while nobody knows what became of it.
    ended_at   timestamptz,
    PRIMARY KEY (account_id, name)
);
CREATE INDEX operation_started_at ON operation (started_at);

-- Events of the provider that had their effect.
CREATE TABLE provider_event (
    id          text        PRIMARY KEY,
    received_at timestamptz NOT NULL
);
CREATE INDEX provider_event_received_at ON provider_event (received_at);

-- Accounts that were deleted. A row stays after the work is done, for what is
-- paid afterwards, without the account's id.
CREATE TABLE deletion (
    -- The first half of the SHA-256 of the account's id.
    grave       uuid        PRIMARY KEY,
    -- NULL when the work is done.
    account_id  uuid,
    customer_id text,
    deleted_at  timestamptz NOT NULL,
    -- When the work is next tried; NULL: done.
    due_at      timestamptz
);
CREATE INDEX deletion_customer_id ON deletion (customer_id) WHERE customer_id IS NOT NULL;
CREATE INDEX deletion_due_at ON deletion (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX deletion_done ON deletion (grave) WHERE due_at IS NULL;
CREATE INDEX deletion_deleted_at ON deletion (deleted_at);

-- When the reconciler last began; one row.
CREATE TABLE reconciliation (
    one        boolean     PRIMARY KEY CHECK (one),
    started_at timestamptz NOT NULL
);

-- libs/kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);
