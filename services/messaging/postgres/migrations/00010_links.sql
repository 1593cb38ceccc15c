-- +goose Up

-- Finds also the queued mails with a signup's link, and those of the last hour.
DROP INDEX sent_mail_told;
CREATE INDEX sent_mail_told ON sent_mail (waitlist_id, number, kind, ended_at)
    WHERE kind IN ('referral_notification', 'sms', 'signup_link') AND state IN ('queued', 'sent');

-- +goose Down
DROP INDEX sent_mail_told;
CREATE INDEX sent_mail_told ON sent_mail (waitlist_id, number, kind, ended_at)
    WHERE kind IN ('referral_notification', 'sms') AND state IN ('queued', 'sent');
