-- +goose Up

-- The order of "C" stays when the operating system is updated; any other one may change,
-- and then an index misses rows that are there. Each table is locked while its indexes
-- on these columns are built again; its rows are not rewritten. In a database of before
-- the first release they are few.
-- squawk-ignore-file changing-column-type
ALTER TABLE account
    ALTER COLUMN email TYPE text COLLATE "C",
    ALTER COLUMN api_key_lookup TYPE text COLLATE "C";
ALTER TABLE team_member ALTER COLUMN email TYPE text COLLATE "C";
ALTER TABLE reset_request ALTER COLUMN email TYPE text COLLATE "C";
ALTER TABLE audit ALTER COLUMN action TYPE text COLLATE "C";
