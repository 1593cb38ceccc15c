-- +goose Up

-- What is remembered of removed signups who opted out or got an offboarding mail. Whoever
-- is imported again stays opted out, and nobody gets a second offboarding mail. Of people
-- on the list, the row in signup decides; their row here is written again when they leave.
CREATE TABLE departed (
    waitlist_id uuid  NOT NULL,
    -- Keyed hash of waitlist and address.
    hash        bytea NOT NULL,
    opt_out_at  timestamptz,
    -- The number of the signup whose removal asked for the offboarding mail, which the mail's
    -- token is bound to; 0: none did.
    offboarded  bigint NOT NULL,
    PRIMARY KEY (waitlist_id, hash)
);

-- +goose Down
DROP TABLE departed;
