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
	// settled is how long after its beginning a call is surely over at the
	// provider: what was fetched since shows its effect, or that it had none.
	settled = time.Minute
	// keyKept is how long the provider remembers a key, less some time for safety.
	keyKept = 23 * time.Hour
)

// once makes a call that changes something at the provider under a key that a
// repetition has too, until the outcome is known. wish is what is asked for; memory
// is how long an attempt without outcome is repeated rather than begun anew.
//
// A crash before the call leaves an operation without effect, one after it an
// operation whose repetition finds the effect.
func (b *Billing) once(ctx context.Context, l Locked, accountID, name, wish string, memory time.Duration, call func(key string) error) error {
	for attempt := 0; ; attempt++ {
		now := b.now()
		epoch, err := l.Begin(ctx, name, wish, now, now.Add(-memory))
		if err != nil {
			return fmt.Errorf("begin %s: %w", name, err)
		}
		err = call(idempotencyKey(accountID, name, epoch))
		if err != nil && !known(err) {
			return err
		}
		// An answer that failed is remembered by its key; what has happened all the
		// same is fetched before anything else is done.
		if endErr := l.End(context.WithoutCancel(ctx), name, b.now()); endErr != nil {
			b.Log.LogAttrs(ctx, slog.LevelWarn, "the end of a call to the provider was not kept; it may be repeated",
				slog.String("operation", name), telemetry.Err(endErr))
		}
		if because(err, KeyReused) && attempt == 0 {
			continue // of another version or configuration
		}
		return err
	}
}

// known reports whether a failed call has surely had its effect, or none, or was
// answered in a way that its key remembers.
func known(err error) bool {
	e, ok := errors.AsType[*ProviderError](err)
	return ok && e.Reason != Throttled && (e.Reason != Away || e.Answered)
}

// idempotencyKey is the same for the same attempt, everywhere.
func idempotencyKey(accountID, name string, epoch int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", accountID, name, epoch))
	return "waitlist-" + hex.EncodeToString(sum[:])
}
