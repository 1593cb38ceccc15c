-- +goose Up

-- The order of "C" stays when the operating system is updated; any other one may change,
-- and then an index misses rows that are there. Each table is locked while its indexes
-- on these columns are built again; its rows are not rewritten. In a database of before
-- the first release they are few.
-- squawk-ignore-file changing-column-type
ALTER TABLE subscriber ALTER COLUMN customer_id TYPE text COLLATE "C";
ALTER TABLE known_subscription ALTER COLUMN subscription_id TYPE text COLLATE "C";
ALTER TABLE operation ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE provider_event ALTER COLUMN id TYPE text COLLATE "C";
ALTER TABLE deletion ALTER COLUMN customer_id TYPE text COLLATE "C";
ALTER TABLE inbox ALTER COLUMN consumer TYPE text COLLATE "C";
