package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/idempotency"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/signup"
)

// createScope is the idempotency scope of new waitlists.
const createScope = "waitlists.create"

// Waitlists is signup.WaitlistStore. Lock order: owner before waitlist.
type Waitlists struct {
	pool *pgxpool.Pool
	now  func() time.Time
	wake func()
}

// NewWaitlists returns the store on a pool of the service's schema. wake is
// called after commits with events.
func NewWaitlists(pool *pgxpool.Pool, wake func(), now func() time.Time) *Waitlists {
	return &Waitlists{pool: pool, now: now, wake: wake}
}

// waitlistSQL selects the columns that scanWaitlist reads. Every waitlist has an owner
// row.
const waitlistSQL = `
	SELECT w.id, w.owner_id, w.name, w.settings, w.version, w.created_at,
	       o.tier, o.status, o.valid_until, o.trial, o.version,
	       coalesce((SELECT c.total FROM change c WHERE c.waitlist_id = w.id ORDER BY c.no DESC LIMIT 1), 0)
	FROM waitlist w JOIN owner o ON o.id = w.owner_id
	WHERE w.deleted_at IS NULL AND `

func scanWaitlist(row pgx.Row) (*signup.Waitlist, error) {
	var (
		w          signup.Waitlist
		settings   []byte
		validUntil *time.Time
	)
	err := row.Scan(&w.ID, &w.OwnerID, &w.Name, &settings, &w.Version, &w.CreatedAt,
		&w.Owner.Tier, &w.Owner.Status, &validUntil, &w.Owner.Trial, &w.Owner.Version, &w.SignupCount)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, signup.ErrNoWaitlist()
	}
	if err != nil {
		return nil, fmt.Errorf("read waitlist: %w", err)
	}
	if validUntil != nil {
		w.Owner.ValidUntil = *validUntil
	}
	if w.Settings, err = signup.DecodeSettings(settings); err != nil {
		return nil, fmt.Errorf("waitlist %s: %w", w.ID, err)
	}
	return &w, nil
}

// Waitlist implements signup.WaitlistStore.
func (s *Waitlists) Waitlist(ctx context.Context, id string) (*signup.Waitlist, error) {
	return scanWaitlist(s.pool.QueryRow(ctx, waitlistSQL+`w.id = $1`, id))
}

// Waitlists implements signup.WaitlistStore.
func (s *Waitlists) Waitlists(ctx context.Context, ownerID string) ([]*signup.Waitlist, error) {
	// UUIDv7s sort by creation.
	rows, err := s.pool.Query(ctx, waitlistSQL+`w.owner_id = $1 ORDER BY w.id`, ownerID)
	if err != nil {
		return nil, fmt.Errorf("list waitlists: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*signup.Waitlist, error) { return scanWaitlist(row) })
	if err != nil {
		return nil, fmt.Errorf("list waitlists: %w", err)
	}
	return out, nil
}

// creation is what is stored about a new waitlist under its Idempotency-Key.
type creation struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
}

// CreateWaitlist implements signup.WaitlistStore.
func (s *Waitlists) CreateWaitlist(
	ctx context.Context, c signup.Creation, build func(templatesDeleted int64) (signup.Draft, error),
) (w *signup.Waitlist, replayed bool, err error) {
	req := idempotency.Request{Scope: createScope, AccountID: c.AccountID, Key: c.Key, Content: c.Content}
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var response []byte
		response, replayed, err = idempotency.Do(ctx, tx, req, func() ([]byte, error) {
			// setOwner locks the owner. A concurrent closing of the owner or deletion of a
			// template is either visible here or sees the new waitlist.
			if err := setOwner(ctx, tx, c.OwnerID, c.Owner); err != nil {
				return nil, err
			}
			deleted, err := templatesDeleted(ctx, tx, c.OwnerID)
			if err != nil {
				return nil, err
			}
			draft, err := build(deleted)
			if err != nil {
				return nil, err
			}
			tag, err := tx.Exec(ctx, `
				INSERT INTO waitlist (id, owner_id, name, settings, created_at)
				SELECT $1, id, $3, $4, $5 FROM owner WHERE id = $2 AND closed_at IS NULL`,
				c.ID, c.OwnerID, draft.Name, draft.Settings, c.CreatedAt)
			if err != nil {
				return nil, fmt.Errorf("insert waitlist: %w", err)
			}
			if tag.RowsAffected() == 0 {
				return nil, apierr.New(apierr.AuthenticationRequired, "This account was deleted.")
			}
			return json.Marshal(creation{ID: c.ID, Name: draft.Name, CreatedAt: c.CreatedAt})
		})
		if err != nil {
			return err
		}
		var made creation
		if err := json.Unmarshal(response, &made); err != nil {
			return fmt.Errorf("decode stored response: %w", err)
		}
		w = &signup.Waitlist{ID: made.ID, OwnerID: c.OwnerID, Name: made.Name, CreatedAt: made.CreatedAt, Version: 1, Owner: c.Owner}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return w, replayed, nil
}

// ChangeWaitlist implements signup.WaitlistStore.
func (s *Waitlists) ChangeWaitlist(
	ctx context.Context, id string, change func(w signup.Waitlist, templatesDeleted int64) (signup.Draft, error),
) (w *signup.Waitlist, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		// The owner is locked before the waitlist. A later deletion of a template sees the
		// assignment.
		var deleted int64
		err := tx.QueryRow(ctx, `
			SELECT templates_deleted FROM owner WHERE id = (SELECT owner_id FROM waitlist WHERE id = $1)
			FOR SHARE`, id).Scan(&deleted)
		if errors.Is(err, pgx.ErrNoRows) {
			return signup.ErrNoWaitlist()
		}
		if err != nil {
			return fmt.Errorf("lock owner: %w", err)
		}
		// Every change of a waitlist waits for this lock. A statement of its own reads the
		// row and sees what was committed meanwhile.
		tag, err := tx.Exec(ctx, `SELECT FROM waitlist WHERE id = $1 FOR NO KEY UPDATE`, id)
		if err != nil {
			return fmt.Errorf("lock waitlist: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return signup.ErrNoWaitlist()
		}
		if w, err = scanWaitlist(tx.QueryRow(ctx, waitlistSQL+`w.id = $1`, id)); err != nil {
			return err
		}
		draft, err := change(*w, deleted)
		if err != nil {
			return err
		}
		before, err := w.Settings.Stored()
		if err != nil {
			return err
		}
		if draft.Name == w.Name && string(draft.Settings) == string(before) {
			return nil
		}
		w.Name, w.Version = draft.Name, w.Version+1
		if w.Settings, err = signup.DecodeSettings(draft.Settings); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE waitlist SET name = $2, settings = $3, version = $4 WHERE id = $1`,
			id, w.Name, draft.Settings, w.Version)
		if err != nil {
			return fmt.Errorf("update waitlist: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// DeleteWaitlist implements signup.WaitlistStore.
func (s *Waitlists) DeleteWaitlist(ctx context.Context, id string) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		return s.remove(ctx, tx, `id = $1`, id, true)
	})
	if err == nil {
		s.wake()
	}
	return err
}

// remove marks the matching waitlists as deleted and announces each. If must is set and
// none matches, it returns NOT_FOUND.
func (s *Waitlists) remove(ctx context.Context, tx pgx.Tx, where, id string, must bool) error {
	rows, err := tx.Query(ctx, `
		UPDATE waitlist SET deleted_at = now() WHERE deleted_at IS NULL AND `+where+`
		RETURNING id::text, owner_id::text`, id)
	if err != nil {
		return fmt.Errorf("delete waitlist: %w", err)
	}
	type gone struct{ ID, OwnerID string }
	lists, err := pgx.CollectRows(rows, pgx.RowToStructByPos[gone])
	if err != nil {
		return fmt.Errorf("delete waitlist: %w", err)
	}
	if must && len(lists) == 0 {
		return signup.ErrNoWaitlist()
	}
	msgs := make([]outbox.Message, 0, len(lists))
	for _, w := range lists {
		msgs = append(msgs, message(w.ID, signup.WaitlistDeleted(w.ID, w.OwnerID, s.now())))
	}
	return outbox.Insert(ctx, tx, msgs...)
}

// SetOwner implements signup.WaitlistStore.
func (s *Waitlists) SetOwner(ctx context.Context, ownerID string, e access.Entitlement) error {
	return setOwner(ctx, s.pool, ownerID, e)
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// setOwner stores e unless the stored entitlement is at least as new. It locks the
// owner's row either way.
func setOwner(ctx context.Context, db execer, ownerID string, e access.Entitlement) error {
	var validUntil *time.Time
	if !e.ValidUntil.IsZero() {
		validUntil = &e.ValidUntil
	}
	_, err := db.Exec(ctx, `
		INSERT INTO owner (id, tier, status, valid_until, trial, version) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (id) DO UPDATE SET tier = excluded.tier, status = excluded.status,
			valid_until = excluded.valid_until, trial = excluded.trial, version = excluded.version
		WHERE owner.version < excluded.version`,
		ownerID, e.Tier, e.Status, validUntil, e.Trial, e.Version)
	if err != nil {
		return fmt.Errorf("store entitlement: %w", err)
	}
	return nil
}

// UpdateOwner is SetOwner for events, within tx. It ignores owners that are not stored;
// they are stored with their first waitlist.
func (s *Waitlists) UpdateOwner(ctx context.Context, tx pgx.Tx, ownerID string, e access.Entitlement) error {
	var known bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM owner WHERE id = $1)`, ownerID).Scan(&known)
	if err != nil {
		return fmt.Errorf("read owner: %w", err)
	}
	if !known {
		return nil
	}
	return setOwner(ctx, tx, ownerID, e)
}

// CloseOwner implements signup.WaitlistStore.
func (s *Waitlists) CloseOwner(ctx context.Context, ownerID string) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error { return s.CloseOwnerIn(ctx, tx, ownerID) })
	if err == nil {
		s.wake()
	}
	return err
}

// CloseOwnerIn is CloseOwner within tx.
func (s *Waitlists) CloseOwnerIn(ctx context.Context, tx pgx.Tx, ownerID string) error {
	// An unknown owner is stored as closed, because a request that was authorized
	// earlier may still try to create a waitlist.
	_, err := tx.Exec(ctx, `
		INSERT INTO owner (id, tier, status, trial, version, closed_at) VALUES ($1, '', 'inactive', false, 0, now())
		ON CONFLICT (id) DO UPDATE SET closed_at = coalesce(owner.closed_at, now())`, ownerID)
	if err != nil {
		return fmt.Errorf("close owner: %w", err)
	}
	return s.remove(ctx, tx, `owner_id = $1`, ownerID, false)
}
