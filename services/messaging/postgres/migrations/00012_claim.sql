-- +goose Up

-- Identifies the present claim of a mail. A process whose lease has ended can't change what another one has claimed since.
ALTER TABLE sent_mail ADD COLUMN claim uuid;
