-- +goose Up
-- Counts the owner's mail templates that were deleted. Who assigns a template was
-- told of it before the transaction: the count says whether that still holds.
ALTER TABLE owner ADD COLUMN templates_deleted bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE owner DROP COLUMN templates_deleted;
