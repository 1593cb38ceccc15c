-- +goose Up

-- The sums over removed signups. The counts by day and by origin do not fall when a
-- signup is removed, so a tally adds these sums to those over the rows. Nothing else of
-- a removed signup is kept.
CREATE TABLE removed_day (
    waitlist_id      uuid   NOT NULL,
    -- UTC day of created_at.
    day              date   NOT NULL,
    signups          bigint NOT NULL,
    -- The ones with a credited referrer.
    referral_signups bigint NOT NULL,
    PRIMARY KEY (waitlist_id, day)
);

CREATE TABLE removed_value (
    waitlist_id uuid   NOT NULL,
    -- utm_source, utm_medium or utm_campaign.
    field       text   COLLATE "C" NOT NULL,
    value       text   COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    -- The highest number of a removed signup.
    last_number bigint NOT NULL,
    PRIMARY KEY (waitlist_id, field, value)
);

-- +goose Down
DROP TABLE removed_value, removed_day;
