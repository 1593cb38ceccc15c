-- +goose Up

-- What an invitation says beside whom it is to; empty in other mails. The
-- address is emptied with the recipient's.
ALTER TABLE sent_mail
    ADD COLUMN owner_email text NOT NULL DEFAULT '',
    ADD COLUMN role        text NOT NULL DEFAULT '';

-- Accounts and waitlists that were deleted and whose mails still have to go.
-- From the moment of this row nothing is queued or claimed for them.
CREATE TABLE gone (
    id      uuid        PRIMARY KEY,
    gone_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX gone_gone_at ON gone (gone_at);

-- Those of which nothing is left, by the SHA-256 of the id: an event that comes
-- late, or again, queues nothing.
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
