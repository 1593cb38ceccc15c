-- +goose Up
-- When the mail about the end of this trial was asked for; NULL: not yet.
ALTER TABLE account ADD COLUMN trial_ending_at timestamptz;

-- Trials that may still get the mail, by their end.
CREATE INDEX account_trial_ending ON account (valid_until) WHERE status = 'trialing' AND trial_ending_at IS NULL;

-- +goose Down
DROP INDEX account_trial_ending;
ALTER TABLE account DROP COLUMN trial_ending_at;
