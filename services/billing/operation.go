package billing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"waitlist.internal/libs/telemetry"
)

const (
	// settled is the time after which a call is certainly over at the provider. A later
	// fetch shows whether it took effect.
	settled = time.Minute
	// keyKept is how long the provider remembers a key (24 h), less a safety margin.
	keyKept = 23 * time.Hour
)

// once makes a provider call that has an effect. Repetitions use the same
// idempotency key until the outcome is known. request identifies the requested
// effect. keyTTL is how long an attempt with an unknown outcome is repeated before
// another one, with another key, replaces it.
//
// After a crash before the call, the operation has no effect. After a crash
// following the call, a repetition returns the same response.
func (b *Billing) once(
	ctx context.Context, l Locked, accountID, name, request string, keyTTL time.Duration, call func(key string) error,
) error {
	for attempt := 0; ; attempt++ {
		now := b.now()
		epoch, err := l.Begin(ctx, name, request, now, now.Add(-keyTTL))
		if err != nil {
			return fmt.Errorf("begin %s: %w", name, err)
		}
		err = call(idempotencyKey(accountID, name, epoch))
		if err != nil && !known(err) {
			return err
		}
		// The same key would get the same failed response again, so the operation ends.
		// The next request fetches the provider's state before it makes another call.
		if endErr := l.End(context.WithoutCancel(ctx), name, b.now()); endErr != nil {
			b.Log.LogAttrs(ctx, slog.LevelWarn, "failed to record the end of a provider call; it may be repeated",
				slog.String("operation", name), telemetry.Err(endErr))
		}
		if because(err, KeyReused) && attempt == 0 {
			continue // another version or configuration used the key
		}
		return err
	}
}

// finally makes a call that removes an object, once. A missing object is not an error.
func (b *Billing) finally(
	ctx context.Context, l Locked, accountID, name, id string, call func(ctx context.Context, key, id string) error,
) error {
	err := b.once(ctx, l, accountID, name+id, id, keyKept, func(key string) error { return call(ctx, key, id) })
	if because(err, Missing) {
		return nil
	}
	return err
}

// known reports whether the outcome of a failed call is known: the provider
// responded, and the key returns the same response again.
func known(err error) bool {
	e, ok := errors.AsType[*ProviderError](err)
	return ok && e.Reason != Throttled && (e.Reason != Away || e.Answered)
}

// idempotencyKey returns the same key for the same attempt on every replica.
func idempotencyKey(accountID, name string, epoch int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", accountID, name, epoch))
	return "waitlist-" + hex.EncodeToString(sum[:])
}
