-- +goose Up
-- Who the account is at the payment provider; NULL: nobody yet.
ALTER TABLE account ADD COLUMN payment_customer_id text;

-- +goose Down
ALTER TABLE account DROP COLUMN payment_customer_id;
