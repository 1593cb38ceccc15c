-- +goose Up

CREATE TABLE account (
    id                  uuid        PRIMARY KEY,
    -- Normalised; see libs/emailaddr.
    email               text        NOT NULL,
    email_verified_at   timestamptz,
    -- argon2id, PHC string.
    password_hash       text        NOT NULL,
    -- Counts the passwords; reset tokens are bound to it.
    password_generation bigint      NOT NULL DEFAULT 1,
    -- The part of the API key that finds it, and SHA-256 of the whole key.
    api_key_lookup      text        NOT NULL,
    api_key_hash        bytea       NOT NULL,
    -- The entitlement as last set. A trial that has run out still says trialing.
    tier                text        NOT NULL CHECK (tier IN ('basic', 'advanced', 'pro')),
    status              text        NOT NULL CHECK (status IN ('trialing', 'active', 'canceling', 'inactive')),
    valid_until         timestamptz,
    trial               boolean     NOT NULL,
    entitlement_version bigint      NOT NULL,
    -- Stays when the trial is over.
    trial_ends_at       timestamptz,
    has_used_trial      boolean     NOT NULL,
    -- The address verification's cycle; see account.Verification.
    verify_cycle        bigint      NOT NULL,
    verify_started_at   timestamptz NOT NULL,
    verify_resends      integer     NOT NULL,
    verify_resent_at    timestamptz,
    reset_sent_at       timestamptz,
    created_at          timestamptz NOT NULL,
    -- The invitations since invites_since; see account.InviteLimit.
    invites             integer     NOT NULL DEFAULT 0,
    invites_since       timestamptz,
    -- When the mail about the end of this trial was asked for; NULL: not yet.
    trial_ending_at     timestamptz,
    -- Who the account is at the payment provider; NULL: nobody yet.
    payment_customer_id text,
    CONSTRAINT account_email_key UNIQUE (email),
    CONSTRAINT account_api_key_lookup_key UNIQUE (api_key_lookup)
);
-- Trials that may still get the mail, by their end.
CREATE INDEX account_trial_ending ON account (valid_until) WHERE status = 'trialing' AND trial_ending_at IS NULL;

-- One login and the refresh tokens that descend from it.
CREATE TABLE session (
    id           uuid        PRIMARY KEY,
    account_id   uuid        NOT NULL REFERENCES account ON DELETE CASCADE,
    created_at   timestamptz NOT NULL,
    -- Moves on with each refresh.
    expires_at   timestamptz NOT NULL,
    -- What owners see of their sessions. While last_used_at is NULL, the time of the
    -- login stands for it.
    last_used_at timestamptz,
    user_agent   text        NOT NULL DEFAULT ''
);
CREATE INDEX session_account_id ON session (account_id);
CREATE INDEX session_expires_at ON session (expires_at);

-- Spent tokens stay until they expire, so that a second use is noticed.
CREATE TABLE refresh_token (
    -- SHA-256 of the token.
    hash       bytea       PRIMARY KEY,
    session_id uuid        NOT NULL REFERENCES session ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    spent_at   timestamptz
);
CREATE INDEX refresh_token_session_id ON refresh_token (session_id);
CREATE INDEX refresh_token_expires_at ON refresh_token (expires_at);

-- Who may act for an owner besides the owner. Invitations are to addresses,
-- which need no account yet.
CREATE TABLE team_member (
    owner_id   uuid        NOT NULL REFERENCES account ON DELETE CASCADE,
    email      text        NOT NULL,
    role       text        NOT NULL CHECK (role IN ('admin', 'viewer')),
    invited_at timestamptz NOT NULL,
    -- The order of invitation; times may be equal, and go back with the clock.
    no         bigint      GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (owner_id, email)
);
CREATE INDEX team_member_email_no ON team_member (email, no);

-- The addresses, as keyed hashes, that have had their trial. They outlive
-- their accounts.
CREATE TABLE used_trial (
    address_hash bytea       PRIMARY KEY,
    used_at      timestamptz NOT NULL
);

-- Wrong passwords of the last minutes, as keyed hashes of the account's and
-- the network's address.
CREATE TABLE login_failure (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account   bytea       NOT NULL,
    address   bytea       NOT NULL,
    failed_at timestamptz NOT NULL
);
CREATE INDEX login_failure_account ON login_failure (account, address, failed_at DESC);
CREATE INDEX login_failure_address ON login_failure (address, failed_at DESC);
CREATE INDEX login_failure_failed_at ON login_failure (failed_at);

-- Wishes to reset a password, of known and of unknown addresses, until a
-- worker has looked at them.
CREATE TABLE reset_request (
    email        text        PRIMARY KEY,
    requested_at timestamptz NOT NULL
);
CREATE INDEX reset_request_requested_at ON reset_request (requested_at);

-- Deleted accounts whose waitlists may still be open.
CREATE TABLE closing (
    account_id uuid        PRIMARY KEY,
    -- When the next attempt is due; a claim moves it on.
    due_at     timestamptz NOT NULL
);
CREATE INDEX closing_due_at ON closing (due_at);

-- See package outbox.
CREATE TABLE outbox (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text        NOT NULL,
    key          text        NOT NULL,
    -- One or more events of this topic and key, in order, as marshalled Events.
    payloads     bytea[]     NOT NULL,
    -- W3C trace context of the cause, or ''.
    traceparent  text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    -- Set when Kafka refuses the row for good; an operator decides.
    parked_at    timestamptz,
    error        text        NOT NULL DEFAULT '',
    -- W3C trace contexts, one for each payload, or NULL: then traceparent is that of all.
    traceparents text[]
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX outbox_parked ON outbox (parked_at) WHERE parked_at IS NOT NULL;

-- Who did what in an owner's account; see package audit. Nothing updates a row.
CREATE TABLE audit (
    owner_id   uuid        NOT NULL,
    id         uuid        NOT NULL,
    at         timestamptz NOT NULL,
    actor      uuid,
    credential text        NOT NULL,
    role       text        NOT NULL,
    action     text        NOT NULL,
    target     text        NOT NULL,
    request_id text        NOT NULL,
    PRIMARY KEY (owner_id, id)
);
CREATE INDEX audit_action ON audit (owner_id, action, id);
CREATE INDEX audit_at ON audit (at);

-- A program from before the baseline finds the migrations that it asks for.
INSERT INTO goose_db_version (version_id, is_applied) SELECT no, true FROM generate_series(1, 6) no;
