-- +goose Up

-- What this service knows of the accounts behind its waitlists. account owns
-- the truth; a higher version replaces a lower one.
CREATE TABLE owner (
    id          uuid        PRIMARY KEY,
    tier        text        NOT NULL,
    status      text        NOT NULL,
    valid_until timestamptz,
    trial       boolean     NOT NULL,
    version     bigint      NOT NULL,
    -- Set when the account is deleted: nothing is created for it any more.
    closed_at   timestamptz
);

-- One row a waitlist. The row's lock orders everything that happens to it.
CREATE TABLE waitlist (
    id         uuid        PRIMARY KEY,
    owner_id   uuid        NOT NULL,
    name       text        NOT NULL,
    -- What the owner chose, without defaults; channel URLs sealed.
    settings   jsonb       NOT NULL,
    -- Counts the changes of name and settings.
    version    bigint      NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    -- Invisible from then on; the row goes last, after everything it owns.
    deleted_at timestamptz
);

-- Lists of an owner, in order of creation (ids are UUIDv7).
CREATE INDEX waitlist_owner ON waitlist (owner_id, id);
-- What the purge has still to do.
CREATE INDEX waitlist_deleted ON waitlist (deleted_at, id) WHERE deleted_at IS NOT NULL;
CREATE INDEX owner_closed ON owner (closed_at) WHERE closed_at IS NOT NULL;

-- Answers to requests with an Idempotency-Key; see package idempotency.
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

-- +goose Down
DROP TABLE idempotency_key;
DROP TABLE waitlist;
DROP TABLE owner;
