-- +goose Up
CREATE INDEX CONCURRENTLY IF NOT EXISTS mail_due ON mail (due);
