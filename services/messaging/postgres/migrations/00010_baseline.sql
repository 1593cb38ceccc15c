-- +goose Up

-- The mail queue: one row per requested mail. The personal data is erased when the row ends.
CREATE TABLE sent_mail (
    event_id      uuid        PRIMARY KEY,
    kind          text        NOT NULL,
    state         text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'sent', 'failed', 'canceled')),
    recipient     text        NOT NULL,
    account_id    uuid,
    generation    bigint      NOT NULL,
    waitlist_id   uuid,
    waitlist_name text        NOT NULL,
    number        bigint      NOT NULL,
    expires_at    timestamptz,
    requested_at  timestamptz NOT NULL,
    traceparent   text        NOT NULL,
    -- How often the provider deferred the mail.
    deferrals     int         NOT NULL DEFAULT 0,
    -- When the mail can be claimed: now, after a pause, or when the lease of a claim expires.
    due_at        timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    error         text        NOT NULL DEFAULT '',
    -- The content of invitations; empty in other mails. The address is erased together with the recipient's.
    owner_email   text        NOT NULL DEFAULT '',
    role          text        NOT NULL DEFAULT '',
    -- Data that only the event contains: the name of a removed signup, and the milestone that was reached (0: none).
    -- Names are erased together with the address.
    first_name    text        NOT NULL DEFAULT '',
    last_name     text        NOT NULL DEFAULT '',
    milestone     bigint      NOT NULL DEFAULT 0,
    -- Whether the mail is in the ledger quota_use. It is counted once, however often it is tried.
    charged       boolean     NOT NULL DEFAULT false
);
CREATE INDEX sent_mail_due ON sent_mail (due_at) WHERE state = 'queued';
-- Mails about accounts are claimed before those about signups.
CREATE INDEX sent_mail_due_account ON sent_mail (due_at) WHERE state = 'queued' AND waitlist_id IS NULL;
-- The purge looks for mails in every state.
CREATE INDEX sent_mail_account ON sent_mail (account_id) WHERE account_id IS NOT NULL;
CREATE INDEX sent_mail_signup ON sent_mail (waitlist_id, number) WHERE waitlist_id IS NOT NULL;
CREATE INDEX sent_mail_ended ON sent_mail (ended_at) WHERE ended_at IS NOT NULL;
-- Finds a referrer's queued notifications and a signup's queued links, and those of the last hour.
CREATE INDEX sent_mail_told ON sent_mail (waitlist_id, number, kind, ended_at)
    WHERE kind IN ('referral_notification', 'sms', 'signup_link') AND state IN ('queued', 'sent');

-- The owners' mail templates. Their ids are UUIDv7, hence in order of creation.
CREATE TABLE template (
    id            uuid        PRIMARY KEY,
    owner_id      uuid        NOT NULL,
    template_type text        NOT NULL,
    name          text        NOT NULL,
    subject       text        NOT NULL,
    -- Either body may be empty, but not both.
    html_body     text        NOT NULL,
    text_body     text        NOT NULL,
    created_at    timestamptz NOT NULL,
    CHECK (html_body <> '' OR text_body <> '')
);
CREATE INDEX template_owner ON template (owner_id, id);

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
    -- How many more recipients the plan may have, since they were counted when the blast was requested; NULL: no limit.
    left_to_plan    bigint,
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
    -- Whether the mails are in the ledger quota_use. They are counted once, however often they are tried.
    charged      boolean     NOT NULL DEFAULT false,
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

-- Nothing reads or writes this table any more; a later migration drops it.
CREATE TABLE blast_trial (
    blast_id   uuid        PRIMARY KEY,
    owner_id   uuid        NOT NULL,
    recipients bigint      NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX blast_trial_owner ON blast_trial (owner_id, created_at);
CREATE INDEX blast_trial_created ON blast_trial (created_at);

-- The one ledger of mails and text messages that are limited by the day, by the hour of their decision. Rows are
-- deleted after a day.
CREATE TABLE quota_use (
    quota   text        NOT NULL,
    -- SHA-256 of an owner's id, a recipient's address or the prefix of a phone number.
    subject bytea       NOT NULL,
    hour    timestamptz NOT NULL,
    used    bigint      NOT NULL,
    PRIMARY KEY (quota, subject, hour)
);
CREATE INDEX quota_use_hour ON quota_use (hour);

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

-- Deleted accounts and waitlists that the purge has not finished. Nothing is queued or claimed for them.
CREATE TABLE gone (
    id      uuid        PRIMARY KEY,
    gone_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX gone_gone_at ON gone (gone_at);

-- Purged accounts and waitlists, by the SHA-256 of the id, so that a late or repeated event queues nothing.
CREATE TABLE tombstone (
    hash       bytea       PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tombstone_created_at ON tombstone (created_at);

-- The events that consumers have handled; see package kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);

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
INSERT INTO goose_db_version (version_id, is_applied) SELECT no, true FROM generate_series(1, 9) no;
