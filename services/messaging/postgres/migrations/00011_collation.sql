-- +goose Up

-- The order of "C" stays when the operating system is updated; any other one may change,
-- and then an index misses rows that are there. Each table is locked while its indexes
-- on these columns are built again; its rows are not rewritten. In a database of before
-- the first release they are few.
-- squawk-ignore-file changing-column-type
ALTER TABLE sent_mail ALTER COLUMN kind TYPE text COLLATE "C";
ALTER TABLE domain
    ALTER COLUMN method TYPE text COLLATE "C",
    ALTER COLUMN name TYPE text COLLATE "C",
    ALTER COLUMN external_id TYPE text COLLATE "C";
ALTER TABLE domain_release
    ALTER COLUMN external_id TYPE text COLLATE "C",
    ALTER COLUMN method TYPE text COLLATE "C";
ALTER TABLE notification ALTER COLUMN id TYPE text COLLATE "C";
ALTER TABLE quota_use ALTER COLUMN quota TYPE text COLLATE "C";
ALTER TABLE idempotency_key
    ALTER COLUMN scope TYPE text COLLATE "C",
    ALTER COLUMN key TYPE text COLLATE "C";
ALTER TABLE inbox ALTER COLUMN consumer TYPE text COLLATE "C";
ALTER TABLE audit ALTER COLUMN action TYPE text COLLATE "C";
