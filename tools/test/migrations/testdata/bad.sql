-- +goose Up
CREATE INDEX mail_due ON mail (due);
