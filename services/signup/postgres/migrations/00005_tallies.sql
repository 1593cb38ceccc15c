-- +goose Up

-- What the signups that have left would add to a tally. The counts by day and by
-- origin do not fall when somebody leaves, so a tally from the rows needs these
-- sums beside them; nothing else stays of who left.
CREATE TABLE removed_day (
    waitlist_id      uuid   NOT NULL,
    -- UTC day of created_at.
    day              date   NOT NULL,
    signups          bigint NOT NULL,
    -- Those of them with a credited referrer.
    referral_signups bigint NOT NULL,
    PRIMARY KEY (waitlist_id, day)
);

CREATE TABLE removed_value (
    waitlist_id uuid   NOT NULL,
    -- utm_source, utm_medium or utm_campaign.
    field       text   COLLATE "C" NOT NULL,
    value       text   COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    -- The highest number that left.
    last_number bigint NOT NULL,
    PRIMARY KEY (waitlist_id, field, value)
);

-- +goose Down
DROP TABLE removed_value, removed_day;
