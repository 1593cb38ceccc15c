-- +goose Up

-- See package kafka.
CREATE TABLE inbox (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX inbox_received_at ON inbox (received_at);

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
    error         text        NOT NULL DEFAULT ''
);
CREATE INDEX sent_mail_due ON sent_mail (due_at) WHERE state = 'queued';
CREATE INDEX sent_mail_account ON sent_mail (account_id) WHERE state = 'queued' AND account_id IS NOT NULL;
CREATE INDEX sent_mail_signup ON sent_mail (waitlist_id, number) WHERE state = 'queued' AND waitlist_id IS NOT NULL;
CREATE INDEX sent_mail_ended ON sent_mail (ended_at) WHERE ended_at IS NOT NULL;

-- +goose Down
DROP TABLE sent_mail, inbox;
