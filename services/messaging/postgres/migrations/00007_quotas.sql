-- +goose Up

-- The one ledger of mails and text messages that are limited by the day, by the hour of their decision. Rows are
-- deleted after a day. It takes the place of blast_trial, which only the version before this one writes; a later
-- migration drops that table.
CREATE TABLE quota_use (
    quota   text        NOT NULL,
    -- SHA-256 of an owner's id, a recipient's address or the prefix of a phone number.
    subject bytea       NOT NULL,
    hour    timestamptz NOT NULL,
    used    bigint      NOT NULL,
    PRIMARY KEY (quota, subject, hour)
);
CREATE INDEX quota_use_hour ON quota_use (hour);

-- Whether the mails are in the ledger. They are counted once, however often they are tried.
ALTER TABLE sent_mail ADD COLUMN charged boolean NOT NULL DEFAULT false;
ALTER TABLE blast_batch ADD COLUMN charged boolean NOT NULL DEFAULT false;

-- How many more recipients the plan may have, since they were counted when the blast was requested; NULL: no limit.
ALTER TABLE blast ADD COLUMN left_to_plan bigint;

-- +goose Down
ALTER TABLE blast DROP COLUMN left_to_plan;
ALTER TABLE blast_batch DROP COLUMN charged;
ALTER TABLE sent_mail DROP COLUMN charged;
DROP TABLE quota_use;
