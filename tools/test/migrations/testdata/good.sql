-- +goose NO TRANSACTION
-- +goose Up
-- A try that failed leaves an invalid index behind.
DROP INDEX CONCURRENTLY IF EXISTS mail_due;
CREATE INDEX CONCURRENTLY IF NOT EXISTS mail_due ON mail (due);

-- +goose Down
DROP TABLE mail;
