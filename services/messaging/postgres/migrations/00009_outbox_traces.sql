-- +goose Up

-- W3C trace contexts, one for each payload, or NULL: then traceparent is that of all.
ALTER TABLE outbox ADD COLUMN traceparents text[];
