-- +goose Up

-- What the referral guard found, by the number of the referred signup. A row of its own
-- keeps the rows of signup as they are; lists and exports join it.
--
-- From now on, a signup may have a referrer_token without a referrer_number: the referrer
-- has no credit for it yet.
CREATE TABLE flagged (
    waitlist_id uuid   NOT NULL,
    number      bigint NOT NULL,
    -- Names of signals, separated by commas.
    reasons     text   NOT NULL,
    PRIMARY KEY (waitlist_id, number)
);

-- The referrals that the guard compares with new ones, for 30 days. Lists without a guard
-- have no rows.
CREATE TABLE referral_seen (
    waitlist_id uuid        NOT NULL,
    -- The referrer's token.
    referrer    uuid        NOT NULL,
    -- The number of the referred signup.
    number      bigint      NOT NULL,
    -- Keyed hash of the waitlist and the client's /24 or /48; zero bytes: unknown.
    network     bytea       NOT NULL,
    -- Keyed hash of the waitlist and the address, without what its provider ignores.
    person      bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (waitlist_id, referrer, number)
);
CREATE INDEX referral_seen_person ON referral_seen (waitlist_id, referrer, person);
CREATE INDEX referral_seen_created_at ON referral_seen (created_at);

-- +goose Down
DROP TABLE referral_seen, flagged;
