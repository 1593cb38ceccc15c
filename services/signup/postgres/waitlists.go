package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/idempotency"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	"waitlist.internal/services/signup/owners"
	"waitlist.internal/services/signup/postgres/db"
	"waitlist.internal/services/signup/waitlist"
)

// createScope is the idempotency scope of new waitlists.
const createScope = "waitlists.create"

// Waitlists implements owners.WaitlistStore. Lock order: owner before waitlist.
type Waitlists struct {
	pool *pgxpool.Pool
	db   *db.Queries
	now  func() time.Time
	wake func()
}

// NewWaitlists returns the store on a pool of the service's schema. wake is
// called after commits with events.
func NewWaitlists(pool *pgxpool.Pool, wake func(), now func() time.Time) *Waitlists {
	return &Waitlists{pool: pool, db: db.New(pool), now: now, wake: wake}
}

// getWaitlist reads a waitlist that is not deleted.
func getWaitlist(ctx context.Context, q *db.Queries, id string) (*waitlist.Waitlist, error) {
	row, err := q.GetWaitlist(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, waitlist.ErrNotFound()
	}
	if err != nil {
		return nil, fmt.Errorf("read waitlist: %w", err)
	}
	return waitlistOf(row)
}

func waitlistOf(row db.GetWaitlistRow) (w *waitlist.Waitlist, err error) {
	w = &waitlist.Waitlist{
		ID: row.ID, OwnerID: row.OwnerID, Name: row.Name, Version: row.Version, CreatedAt: row.CreatedAt,
		Owner: access.Entitlement{
			Tier: row.Tier, Status: row.Status, ValidUntil: time.Time(row.ValidUntil), Trial: row.Trial, Version: row.OwnerVersion,
		},
		SignupCount: row.SignupCount,
	}
	if w.Settings, err = waitlist.DecodeSettings(row.Settings); err != nil {
		return nil, fmt.Errorf("waitlist %s: %w", row.ID, err)
	}
	return w, nil
}

// Waitlist implements owners.WaitlistStore.
func (s *Waitlists) Waitlist(ctx context.Context, id string) (*waitlist.Waitlist, error) {
	return getWaitlist(ctx, s.db, id)
}

// Waitlists implements owners.WaitlistStore.
func (s *Waitlists) Waitlists(ctx context.Context, ownerID string) (out []owners.ListedWaitlist, ownerVersion int64, err error) {
	rows, err := s.db.ListWaitlists(ctx, ownerID)
	if err != nil {
		return nil, 0, fmt.Errorf("list waitlists: %w", err)
	}
	out = make([]owners.ListedWaitlist, len(rows))
	for i, row := range rows {
		out[i] = owners.ListedWaitlist{ID: row.ID, Name: row.Name, SignupCount: row.SignupCount, CreatedAt: row.CreatedAt}
		ownerVersion = row.OwnerVersion
	}
	return out, ownerVersion, nil
}

// creation is what is stored about a new waitlist under its Idempotency-Key.
type creation struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
}

// CreateWaitlist implements owners.WaitlistStore.
func (s *Waitlists) CreateWaitlist(
	ctx context.Context, c owners.Creation, build func(templatesDeleted int64) (owners.Draft, error),
) (w *waitlist.Waitlist, replayed bool, err error) {
	req := idempotency.Request{Scope: createScope, AccountID: c.AccountID, Key: c.Key, Content: c.Content}
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		q := s.db.WithTx(tx)
		var response []byte
		response, replayed, err = idempotency.Do(ctx, tx, req, func() ([]byte, error) {
			// setOwner locks the owner. A concurrent closing of the owner, deletion of a
			// template or creation is either visible here or sees the new waitlist.
			if err := setOwner(ctx, q, c.OwnerID, c.Owner); err != nil {
				return nil, err
			}
			deleted, err := templatesDeleted(ctx, q, c.OwnerID)
			if err != nil {
				return nil, err
			}
			draft, err := build(deleted)
			if err != nil {
				return nil, err
			}
			have, err := q.CountWaitlists(ctx, c.OwnerID)
			if err != nil {
				return nil, fmt.Errorf("count waitlists: %w", err)
			}
			if err := c.WithinBound(have); err != nil {
				return nil, err
			}
			n, err := q.InsertWaitlist(ctx, db.InsertWaitlistParams{
				ID: c.ID, OwnerID: c.OwnerID, Name: draft.Name, Settings: draft.Settings, CreatedAt: c.CreatedAt,
			})
			if err != nil {
				return nil, fmt.Errorf("insert waitlist: %w", err)
			}
			if n == 0 {
				return nil, apierr.New(apierr.AuthenticationRequired, "This account has been deleted.")
			}
			if err := audit.Insert(ctx, tx, c.By); err != nil {
				return nil, err
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
		w = &waitlist.Waitlist{ID: made.ID, OwnerID: c.OwnerID, Name: made.Name, CreatedAt: made.CreatedAt, Version: 1, Owner: c.Owner}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return w, replayed, nil
}

// ChangeWaitlist implements owners.WaitlistStore.
func (s *Waitlists) ChangeWaitlist(
	ctx context.Context, id string, by audit.Entry, change func(w waitlist.Waitlist, templatesDeleted int64) (owners.Draft, error),
) (w *waitlist.Waitlist, err error) {
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		q := s.db.WithTx(tx)
		// The owner is locked before the waitlist. A later deletion of a template sees the
		// assignment.
		deleted, err := q.LockOwnerOf(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return waitlist.ErrNotFound()
		}
		if err != nil {
			return fmt.Errorf("lock owner: %w", err)
		}
		// Every change of a waitlist waits for this lock. A statement of its own reads the
		// row and sees what was committed meanwhile.
		n, err := q.LockWaitlist(ctx, id)
		if err != nil {
			return fmt.Errorf("lock waitlist: %w", err)
		}
		if n == 0 {
			return waitlist.ErrNotFound()
		}
		if w, err = getWaitlist(ctx, q, id); err != nil {
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
		if w.Settings, err = waitlist.DecodeSettings(draft.Settings); err != nil {
			return err
		}
		err = q.UpdateWaitlist(ctx, db.UpdateWaitlistParams{ID: id, Name: w.Name, Settings: draft.Settings, Version: w.Version})
		if err != nil {
			return fmt.Errorf("update waitlist: %w", err)
		}
		return audit.Insert(ctx, tx, by)
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// DeleteWaitlist implements owners.WaitlistStore.
func (s *Waitlists) DeleteWaitlist(ctx context.Context, id string, by audit.Entry) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		ownerID, err := s.db.WithTx(tx).DeleteWaitlist(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return waitlist.ErrNotFound()
		}
		if err != nil {
			return fmt.Errorf("delete waitlist: %w", err)
		}
		if err := s.announceDeletion(ctx, tx, ownerID, id); err != nil {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	if err == nil {
		s.wake()
	}
	return err
}

// announceDeletion writes an event for each deleted waitlist to the outbox.
func (s *Waitlists) announceDeletion(ctx context.Context, tx pgx.Tx, ownerID string, ids ...string) error {
	msgs := make([]outbox.Message, len(ids))
	for i, id := range ids {
		msgs[i] = message(id, owners.WaitlistDeleted(id, ownerID, s.now()))
	}
	return outbox.Insert(ctx, tx, msgs...)
}

// UpsertEntitlement implements owners.WaitlistStore.
func (s *Waitlists) UpsertEntitlement(ctx context.Context, ownerID string, e access.Entitlement) error {
	return setOwner(ctx, s.db, ownerID, e)
}

// setOwner stores e unless the stored entitlement is at least as new. It locks the
// owner's row either way.
func setOwner(ctx context.Context, q *db.Queries, ownerID string, e access.Entitlement) error {
	err := q.SetOwner(ctx, db.SetOwnerParams{
		ID: ownerID, Tier: e.Tier, Status: e.Status, ValidUntil: zeronull.Timestamptz(e.ValidUntil), Trial: e.Trial, Version: e.Version,
	})
	if err != nil {
		return fmt.Errorf("store entitlement: %w", err)
	}
	return nil
}

// UpdateOwner is SetOwner for events, within tx. It ignores owners that are not stored;
// they are stored with their first waitlist.
func (s *Waitlists) UpdateOwner(ctx context.Context, tx pgx.Tx, ownerID string, e access.Entitlement) error {
	q := s.db.WithTx(tx)
	known, err := q.HasOwner(ctx, ownerID)
	if err != nil {
		return fmt.Errorf("read owner: %w", err)
	}
	if !known {
		return nil
	}
	return setOwner(ctx, q, ownerID, e)
}

// CloseOwner implements owners.WaitlistStore.
func (s *Waitlists) CloseOwner(ctx context.Context, ownerID string) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error { return s.CloseOwnerIn(ctx, tx, ownerID) })
	if err == nil {
		s.wake()
	}
	return err
}

// CloseOwnerIn is CloseOwner within tx.
func (s *Waitlists) CloseOwnerIn(ctx context.Context, tx pgx.Tx, ownerID string) error {
	q := s.db.WithTx(tx)
	// An unknown owner is stored as closed, because a request that was authorized
	// earlier may still try to create a waitlist.
	if err := q.CloseOwner(ctx, ownerID); err != nil {
		return fmt.Errorf("close owner: %w", err)
	}
	ids, err := q.DeleteWaitlistsOf(ctx, ownerID)
	if err != nil {
		return fmt.Errorf("delete waitlists: %w", err)
	}
	return s.announceDeletion(ctx, tx, ownerID, ids...)
}

// Reseal puts the secrets of all waitlists under the first key of a ring and returns how
// many were under another one. renew is the ring's Renew. A secret that changes meanwhile may
// keep its key until the next run. The error names the waitlists with secrets that no key opens.
func (s *Waitlists) Reseal(ctx context.Context, renew func(sealed, aad string) (string, error)) (n int, err error) {
	const page = 200
	var failed []error
	for after := uuid.Nil.String(); ; {
		rows, err := s.db.ListSealed(ctx, after, page)
		if err != nil {
			return n, fmt.Errorf("list settings: %w", err)
		}
		for _, row := range rows {
			after = row.ID
			settings, renewed, err := waitlist.Reseal(row.Settings, row.ID, renew)
			if err != nil {
				failed = append(failed, fmt.Errorf("waitlist %s: %w", row.ID, err))
				continue
			}
			if renewed == 0 {
				continue
			}
			if _, err := s.db.ReplaceSettings(ctx, db.ReplaceSettingsParams{Settings: settings, ID: row.ID, Former: row.Settings}); err != nil {
				return n, fmt.Errorf("store settings: %w", err)
			}
			n += renewed
		}
		if len(rows) < page {
			return n, errors.Join(failed...)
		}
	}
}
