// Package idempotency gives a request with an Idempotency-Key its effect once. It
// stores the first response in the transaction of the effect and replays it for
// 24 hours.
//
//	same key, same request       → the first response, replayed
//	same key, another request    → 409 CONFLICT
//	the first is still running   → 409 CONFLICT
//	the first failed             → nothing was stored; runs as if new
//
// A service that uses it adds Schema to its migrations and runs Prune
// periodically.
package idempotency

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
)

// Schema creates the table of the package.
const Schema = `
CREATE TABLE idempotency_key (
    scope        text        COLLATE "C" NOT NULL,
    account_id   uuid        NOT NULL,
    key          text        COLLATE "C" NOT NULL,
    request_hash bytea       NOT NULL,
    response     bytea       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, scope, key)
);
CREATE INDEX idempotency_key_created ON idempotency_key (created_at);
`

const (
	// Header is the name of the request header, and of the field in errors about it.
	Header = "Idempotency-Key"
	// maxKey is the longest key, in bytes.
	maxKey = 255
	// pruneChunk bounds the rows that one statement of Prune deletes.
	pruneChunk = 1000
)

// Request identifies one request.
type Request struct {
	// Scope names the operation, for instance waitlists.create.
	Scope string
	// AccountID is the caller's account.
	AccountID string
	// Key is the header's value; empty means that the request is not idempotent.
	Key string
	// Content is everything that distinguishes the request from others.
	Content []byte
}

// Check returns a VALIDATION_ERROR unless the key has at most 255 printable ASCII
// characters.
func (r Request) Check() error {
	ok := len(r.Key) <= maxKey
	for i := range len(r.Key) {
		ok = ok && r.Key[i] >= 0x20 && r.Key[i] <= 0x7e
	}
	if !ok {
		return apierr.Validation(apierr.Field{Field: Header, Message: "This must have at most 255 printable ASCII characters."})
	}
	return nil
}

// Do returns the stored response of the same request, with replayed set, or runs
// effect within tx and stores its response. It returns an error of effect
// unchanged; the caller then rolls tx back.
func Do(
	ctx context.Context, tx pgx.Tx, r Request, effect func() (response []byte, err error),
) (response []byte, replayed bool, err error) {
	if r.Key == "" {
		response, err = effect()
		return response, false, err
	}
	if err := r.Check(); err != nil {
		return nil, false, err
	}
	// The lock lasts until tx ends, when others can see the row.
	var locked bool
	err = tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`,
		"idempotency/"+r.AccountID+"/"+r.Scope+"/"+r.Key).Scan(&locked)
	if err != nil {
		return nil, false, fmt.Errorf("lock idempotency key: %w", err)
	}
	if !locked {
		return nil, false, apierr.New(apierr.Conflict, "A request with this "+Header+" is still running.").WithRetryAfter(time.Second)
	}
	var hash []byte
	err = tx.QueryRow(ctx, `
		SELECT request_hash, response FROM idempotency_key
		WHERE account_id = $1 AND scope = $2 AND key = $3 AND created_at > now() - interval '24 hours'`,
		r.AccountID, r.Scope, r.Key).Scan(&hash, &response)
	sum := sha256.Sum256(r.Content)
	switch {
	case err == nil && string(hash) == string(sum[:]):
		return response, true, nil
	case err == nil:
		return nil, false, apierr.New(apierr.Conflict, "This "+Header+" was used for another request.")
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, false, fmt.Errorf("read idempotency key: %w", err)
	}
	if response, err = effect(); err != nil {
		return nil, false, err
	}
	// A row older than a day may still be there until Prune deletes it.
	if _, err = tx.Exec(ctx, `
		INSERT INTO idempotency_key (scope, account_id, key, request_hash, response) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (account_id, scope, key) DO UPDATE
		SET request_hash = excluded.request_hash, response = excluded.response, created_at = excluded.created_at`,
		r.Scope, r.AccountID, r.Key, sum[:], response); err != nil {
		return nil, false, fmt.Errorf("store idempotency key: %w", err)
	}
	return response, false, nil
}

// Prune deletes rows older than a day, in chunks, and returns their number. It is
// safe to run concurrently.
func Prune(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	for total := int64(0); ; {
		tag, err := pool.Exec(ctx, `
			DELETE FROM idempotency_key WHERE (account_id, scope, key) IN (
				SELECT account_id, scope, key FROM idempotency_key
				WHERE created_at <= now() - interval '24 hours'
				ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, pruneChunk)
		if err != nil {
			return total, fmt.Errorf("prune idempotency keys: %w", err)
		}
		total += tag.RowsAffected()
		if tag.RowsAffected() < pruneChunk {
			return total, nil
		}
	}
}
