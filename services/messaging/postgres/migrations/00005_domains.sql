-- +goose Up

-- Owners' claims on sending domains. Claims made by another method than the current mail provider's are invisible.
CREATE TABLE domain (
    id          uuid        PRIMARY KEY,
    method      text        NOT NULL,
    owner_id    uuid        NOT NULL,
    name        text        NOT NULL,
    state       text        NOT NULL CHECK (state IN ('pending', 'verified', 'failed')),
    since       timestamptz NOT NULL,
    created_at  timestamptz NOT NULL,
    -- The DNS records for the owner to publish.
    records     jsonb       NOT NULL,
    -- The sealed DKIM key; empty if the mail provider signs.
    selector    text        NOT NULL,
    key         text        NOT NULL,
    -- The domain's id at the mail provider, and whether deleting the claim removes it there.
    external_id text        NOT NULL,
    registered  boolean     NOT NULL,
    -- When the claim is checked again.
    due_at      timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX domain_claim ON domain (owner_id, method, name);
-- Only one account can verify a domain.
CREATE UNIQUE INDEX domain_verified ON domain (method, name) WHERE state = 'verified';
CREATE INDEX domain_due ON domain (method, due_at) WHERE state <> 'failed';
CREATE INDEX domain_external ON domain (external_id) WHERE external_id <> '';

-- Domains of deleted accounts that have to be removed from the mail provider.
CREATE TABLE domain_release (
    external_id text        PRIMARY KEY,
    method      text        NOT NULL,
    due_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX domain_release_due ON domain_release (method, due_at);

-- Suppressed addresses, by their SHA-256.
CREATE TABLE suppression (
    hash       bytea       PRIMARY KEY,
    reason     text        NOT NULL CHECK (reason IN ('bounce', 'complaint')),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The ids of processed notifications from the mail provider.
CREATE TABLE notification (
    id          text        PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX notification_received_at ON notification (received_at);

-- +goose Down
DROP TABLE notification, suppression, domain_release, domain;
