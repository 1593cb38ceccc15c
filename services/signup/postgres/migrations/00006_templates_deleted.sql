-- +goose Up
-- Counts the owner's deleted mail templates. A request that assigns a template checks
-- it before its transaction; an unchanged count says that the answer still holds.
ALTER TABLE owner ADD COLUMN templates_deleted bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE owner DROP COLUMN templates_deleted;
