-- +goose Up

-- What signup knows of the accounts that own waitlists. The account service owns
-- this data; a higher version replaces a lower one.
CREATE TABLE owner (
    id          uuid        PRIMARY KEY,
    tier        text        NOT NULL,
    status      text        NOT NULL,
    valid_until timestamptz,
    trial       boolean     NOT NULL,
    version     bigint      NOT NULL,
    -- Set when the account is deleted. Nothing is created for it after that.
    closed_at   timestamptz
);

-- One row per waitlist. The row's lock orders all changes of the waitlist.
CREATE TABLE waitlist (
    id         uuid        PRIMARY KEY,
    owner_id   uuid        NOT NULL,
    name       text        NOT NULL,
    -- The settings that differ from their defaults, with sealed channel URLs.
    settings   jsonb       NOT NULL,
    -- Counts the changes of name and settings.
    version    bigint      NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    -- The waitlist is invisible from then on. Its row is deleted last.
    deleted_at timestamptz
);

-- The waitlists of an owner in order of creation (ids are UUIDv7).
CREATE INDEX waitlist_owner ON waitlist (owner_id, id);
-- The waitlists that the purge still has to delete.
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
