-- +goose Up
-- What owners see of their sessions. A former version leaves both columns at their
-- defaults; the time of the login then stands for last_used_at.
ALTER TABLE session
	ADD COLUMN last_used_at timestamptz,
	ADD COLUMN user_agent text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE session DROP COLUMN last_used_at, DROP COLUMN user_agent;
