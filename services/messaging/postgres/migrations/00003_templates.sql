-- +goose Up

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

-- See package outbox.
CREATE TABLE outbox (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic       text        NOT NULL,
    key         text        NOT NULL,
    payloads    bytea[]     NOT NULL,
    traceparent text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    parked_at   timestamptz,
    error       text        NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX outbox_parked ON outbox (parked_at) WHERE parked_at IS NOT NULL;

-- Data that only the event contains: the name of a removed signup, and the milestone that was reached (0: none).
-- Names are erased together with the address.
ALTER TABLE sent_mail
    ADD COLUMN first_name text   NOT NULL DEFAULT '',
    ADD COLUMN last_name  text   NOT NULL DEFAULT '',
    ADD COLUMN milestone  bigint NOT NULL DEFAULT 0;

-- Finds a referrer's queued notifications, and those of the last hour.
CREATE INDEX sent_mail_told ON sent_mail (waitlist_id, number, kind, ended_at)
    WHERE kind IN ('referral_notification', 'sms') AND state IN ('queued', 'sent');

-- +goose Down
DROP INDEX sent_mail_told;
ALTER TABLE sent_mail DROP COLUMN first_name, DROP COLUMN last_name, DROP COLUMN milestone;
DROP TABLE outbox, template;
