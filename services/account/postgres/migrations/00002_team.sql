-- +goose Up
-- The order of invitation; times may be equal, and go back with the clock.
ALTER TABLE team_member ADD COLUMN no bigint GENERATED ALWAYS AS IDENTITY;
CREATE INDEX team_member_email_no ON team_member (email, no);
DROP INDEX team_member_email;

-- The invitations since invites_since; see account.InviteLimit.
ALTER TABLE account
    ADD COLUMN invites       integer NOT NULL DEFAULT 0,
    ADD COLUMN invites_since timestamptz;
