package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/outbox"
	"waitlist.internal/libs/pg"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging"
)

// Templates implements messaging.TemplateStore.
type Templates struct {
	pool *pgxpool.Pool
	wake func()
}

// NewTemplates returns Templates over a pool whose search path is Schema. wake is called after each
// transaction that added rows to the outbox.
func NewTemplates(pool *pgxpool.Pool, wake func()) *Templates {
	return &Templates{pool: pool, wake: wake}
}

const templateColumns = "id, owner_id, template_type, name, subject, html_body, text_body, created_at"

func scanTemplate(row pgx.CollectableRow) (t messaging.Template, err error) {
	err = row.Scan(&t.ID, &t.OwnerID, &t.Type, &t.Name, &t.Subject, &t.HTML, &t.Text, &t.CreatedAt)
	return t, err //nolint:wrapcheck // wrapped where it is used
}

// InsertTemplate implements messaging.TemplateStore. By gone_pkey and tombstone_pkey.
func (s *Templates) InsertTemplate(ctx context.Context, t messaging.Template) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := holdOff(ctx, tx, t.OwnerID); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO template (`+templateColumns+`)
			SELECT $1::uuid, $2::uuid, $3::text, $4::text, $5::text, $6::text, $7::text, $8::timestamptz
			WHERE NOT EXISTS (SELECT FROM gone WHERE id = $2) AND NOT EXISTS (SELECT FROM tombstone WHERE hash = sha256(uuid_send($2)))`,
			t.ID, t.OwnerID, t.Type, t.Name, t.Subject, t.HTML, t.Text, t.CreatedAt)
		if err == nil && tag.RowsAffected() == 0 {
			return apierr.New(apierr.AuthenticationRequired, "The account has been deleted.")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("insert template: %w", err)
	}
	return nil
}

// Templates implements messaging.TemplateStore. By template_owner.
func (s *Templates) Templates(ctx context.Context, ownerID string) ([]messaging.Template, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT id, owner_id, template_type, name, subject, '', '', created_at FROM template WHERE owner_id = $1 ORDER BY id`, ownerID)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanTemplate)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	return list, nil
}

// one reads one template. By template_pkey.
func one(ctx context.Context, q interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, lock, ownerID, id string,
) (messaging.Template, error) {
	rows, err := q.Query(ctx, "SELECT "+templateColumns+" FROM template WHERE id = $1 AND owner_id = $2"+lock, id, ownerID)
	if err != nil {
		return messaging.Template{}, fmt.Errorf("read template: %w", err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanTemplate)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, messaging.ErrNoTemplate()
	}
	if err != nil {
		return t, fmt.Errorf("read template: %w", err)
	}
	return t, nil
}

// Template implements messaging.TemplateStore.
func (s *Templates) Template(ctx context.Context, ownerID, id string) (messaging.Template, error) {
	return one(ctx, s.pool, "", ownerID, id)
}

// ChangeTemplate implements messaging.TemplateStore.
func (s *Templates) ChangeTemplate(
	ctx context.Context, ownerID, id string, change func(messaging.Template) (messaging.Template, error),
) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		old, err := one(ctx, tx, " FOR UPDATE", ownerID, id)
		if err != nil {
			return err
		}
		t, err := change(old)
		if err != nil || t == old {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE template SET template_type = $2, name = $3, subject = $4, html_body = $5, text_body = $6 WHERE id = $1",
			id, t.Type, t.Name, t.Subject, t.HTML, t.Text)
		return err
	})
	if err != nil {
		return fmt.Errorf("change template: %w", err)
	}
	return nil
}

// DeleteTemplate implements messaging.TemplateStore. By template_pkey.
func (s *Templates) DeleteTemplate(ctx context.Context, ownerID, id string, now time.Time) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "DELETE FROM template WHERE id = $1 AND owner_id = $2", id, ownerID)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return messaging.ErrNoTemplate()
		}
		ev, err := outbox.NewEvent(now)
		if err != nil {
			return err
		}
		ev.Payload = &eventv1.Event_TemplateDeleted{TemplateDeleted: &eventv1.TemplateDeleted{AccountId: ownerID, TemplateId: id}}
		return outbox.Insert(ctx, tx, outbox.Message{Topic: kafka.AccountsTopic, Key: ownerID, Events: []*eventv1.Event{ev}})
	})
	if err != nil {
		return fmt.Errorf("delete template: %w", err)
	}
	s.wake()
	return nil
}

// TemplateTypes implements messaging.TemplateStore. By template_pkey.
func (s *Templates) TemplateTypes(ctx context.Context, ownerID string, ids []string) (map[string]messaging.TemplateType, error) {
	rows, err := s.pool.Query(ctx, "SELECT id, template_type FROM template WHERE id = ANY ($2::uuid[]) AND owner_id = $1", ownerID, ids)
	if err != nil {
		return nil, fmt.Errorf("read the types of templates: %w", err)
	}
	types := make(map[string]messaging.TemplateType, len(ids))
	var id string
	var t messaging.TemplateType
	if _, err := pgx.ForEachRow(rows, []any{&id, &t}, func() error { types[id] = t; return nil }); err != nil {
		return nil, fmt.Errorf("read the types of templates: %w", err)
	}
	return types, nil
}

// holdOff keeps the purge of an account or waitlist waiting until tx ends. A transaction that inserts
// rows for one calls holdOff and then checks whether it is deleted. So either the purge finds the rows,
// or the transaction finds the deletion and inserts none.
func holdOff(ctx context.Context, tx pgx.Tx, id string) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock_shared(hashtextextended('purge/' || $1, 0))", id)
	return err
}
