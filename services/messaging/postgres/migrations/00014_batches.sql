-- +goose Up

-- Batches of blasts are ready when they are planned; no event makes them so. Whatever an older replica plans from here on is
-- ready, too, and its events find nothing to do.
ALTER TABLE blast_batch ALTER COLUMN state SET DEFAULT 'ready';
UPDATE blast_batch SET state = 'ready' WHERE state = 'queued';
