-- +goose Up

-- Mails about accounts are claimed before those about signups.
CREATE INDEX sent_mail_due_account ON sent_mail (due_at) WHERE state = 'queued' AND waitlist_id IS NULL;

-- +goose Down
DROP INDEX sent_mail_due_account;
