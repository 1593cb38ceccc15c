-- +goose Up

-- Who did what in an owner's account; see package audit. Nothing updates a row.
CREATE TABLE audit (
    owner_id   uuid        NOT NULL,
    id         uuid        NOT NULL,
    at         timestamptz NOT NULL,
    actor      uuid,
    credential text        NOT NULL,
    role       text        NOT NULL,
    action     text        NOT NULL,
    target     text        NOT NULL,
    request_id text        NOT NULL,
    PRIMARY KEY (owner_id, id)
);
CREATE INDEX audit_action ON audit (owner_id, action, id);
CREATE INDEX audit_at ON audit (at);

-- +goose Down
DROP TABLE audit;
