package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/postgres/db"
	"waitlist.internal/services/messaging/templates"
)

// Templates implements templates.Store.
type Templates struct {
	pool *pgxpool.Pool
	db   *db.Queries
	wake func()
}

// NewTemplates returns Templates over a pool whose search path is the schema. wake is called after each
// transaction that added rows to the outbox.
func NewTemplates(pool *pgxpool.Pool, wake func()) *Templates {
	return &Templates{pool: pool, db: db.New(pool), wake: wake}
}

// InsertTemplate implements templates.Store.
func (s *Templates) InsertTemplate(ctx context.Context, t templates.Template, most int64, by audit.Entry) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := holdOff(ctx, tx, t.OwnerID); err != nil {
			return err
		}
		q := s.db.WithTx(tx)
		if most > 0 {
			if err := q.LockBound(ctx, t.OwnerID); err != nil {
				return err
			}
			have, err := q.CountTemplates(ctx, t.OwnerID)
			if err != nil {
				return err
			}
			if have >= most {
				return templates.ErrTooMany(most)
			}
		}
		n, err := q.InsertTemplate(ctx, db.InsertTemplateParams{
			ID: t.ID, OwnerID: t.OwnerID, Type: string(t.Type), Name: t.Name,
			Subject: t.Subject, HTML: t.HTML, Text: t.Text, CreatedAt: t.CreatedAt,
		})
		if err == nil && n == 0 {
			return apierr.New(apierr.AuthenticationRequired, "This account has been deleted.")
		}
		if err != nil {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	if err != nil {
		return fmt.Errorf("insert template: %w", err)
	}
	return nil
}

// Templates implements templates.Store.
func (s *Templates) Templates(ctx context.Context, ownerID string) ([]templates.Template, error) {
	rows, err := s.db.ListTemplates(ctx, ownerID)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	list := make([]templates.Template, len(rows))
	for i, row := range rows {
		list[i] = templates.Template(row)
	}
	return list, nil
}

// found returns a template that was read, or the error for one that does not exist.
func found(t templates.Template, err error) (templates.Template, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return t, templates.ErrNotFound()
	}
	if err != nil {
		return t, fmt.Errorf("read template: %w", err)
	}
	return t, nil
}

// Template implements templates.Store.
func (s *Templates) Template(ctx context.Context, ownerID, id string) (templates.Template, error) {
	row, err := s.db.GetTemplate(ctx, id, ownerID)
	return found(templates.Template(row), err)
}

// ChangeTemplate implements templates.Store.
func (s *Templates) ChangeTemplate(
	ctx context.Context, ownerID, id string, by audit.Entry, change func(templates.Template) (templates.Template, error),
) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		row, err := s.db.WithTx(tx).LockTemplate(ctx, id, ownerID)
		old, err := found(templates.Template(row), err)
		if err != nil {
			return err
		}
		t, err := change(old)
		if err != nil || t == old {
			return err
		}
		if err := s.db.WithTx(tx).ChangeTemplate(ctx, db.ChangeTemplateParams{
			ID: id, Type: t.Type, Name: t.Name, Subject: t.Subject, HTML: t.HTML, Text: t.Text,
		}); err != nil {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	if err != nil {
		return fmt.Errorf("change template: %w", err)
	}
	return nil
}

// DeleteTemplate implements templates.Store.
func (s *Templates) DeleteTemplate(ctx context.Context, ownerID, id string, now time.Time, by audit.Entry) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		n, err := s.db.WithTx(tx).DeleteTemplate(ctx, id, ownerID)
		if err != nil {
			return err
		}
		if n == 0 {
			return templates.ErrNotFound()
		}
		ev, err := outbox.NewEvent(now)
		if err != nil {
			return err
		}
		ev.Payload = &eventv1.Event_TemplateDeleted{TemplateDeleted: &eventv1.TemplateDeleted{AccountId: ownerID, TemplateId: id}}
		m := outbox.Message{Topic: kafka.AccountsTopic, Key: ownerID, Events: []*eventv1.Event{ev}}
		if err := outbox.Insert(ctx, tx, m); err != nil {
			return err
		}
		return audit.Insert(ctx, tx, by)
	})
	if err != nil {
		return fmt.Errorf("delete template: %w", err)
	}
	s.wake()
	return nil
}

// TemplateTypes implements templates.Store.
func (s *Templates) TemplateTypes(ctx context.Context, ownerID string, ids []string) (map[string]templates.Type, error) {
	rows, err := s.db.TemplateTypes(ctx, ids, ownerID)
	if err != nil {
		return nil, fmt.Errorf("read the types of templates: %w", err)
	}
	types := make(map[string]templates.Type, len(rows))
	for _, row := range rows {
		types[row.ID] = row.Type
	}
	return types, nil
}

// holdOff keeps the purge of an account or waitlist waiting until tx ends. A transaction that inserts
// rows for it calls holdOff and then checks whether it is deleted. So either the purge finds the rows,
// or the transaction finds the deletion and inserts none.
func holdOff(ctx context.Context, tx pgx.Tx, id string) error {
	return db.New(tx).HoldOffPurge(ctx, id)
}
