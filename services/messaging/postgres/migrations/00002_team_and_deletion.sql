-- +goose Up

-- The content of invitations; empty in other mails. The address is erased together with the recipient's.
ALTER TABLE sent_mail
    ADD COLUMN owner_email text NOT NULL DEFAULT '',
    ADD COLUMN role        text NOT NULL DEFAULT '';

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

-- The purge looks for mails in every state.
DROP INDEX sent_mail_account, sent_mail_signup;
CREATE INDEX sent_mail_account ON sent_mail (account_id) WHERE account_id IS NOT NULL;
CREATE INDEX sent_mail_signup ON sent_mail (waitlist_id, number) WHERE waitlist_id IS NOT NULL;

-- +goose Down
DROP INDEX sent_mail_account, sent_mail_signup;
CREATE INDEX sent_mail_account ON sent_mail (account_id) WHERE state = 'queued' AND account_id IS NOT NULL;
CREATE INDEX sent_mail_signup ON sent_mail (waitlist_id, number) WHERE state = 'queued' AND waitlist_id IS NOT NULL;
DROP TABLE tombstone, gone;
ALTER TABLE sent_mail DROP COLUMN owner_email, DROP COLUMN role;
