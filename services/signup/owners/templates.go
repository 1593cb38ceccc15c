package owners

import (
	"context"
	"errors"
	"fmt"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/body"
	"waitlist.internal/services/signup/waitlist"
)

// Templates knows the owners' mail templates, which messaging stores.
type Templates interface {
	// Unknown returns the assignments that name no template of the owner of the mail's
	// type.
	Unknown(ctx context.Context, ownerID string, of []waitlist.Assignment) ([]waitlist.Assignment, error)
}

// templateStore counts the deletions of templates, which messaging stores: no foreign key leads there, and no transaction
// waits for a call. A deletion that arrives between messaging's answer and the commit would find nothing to remove, and the
// settings would name the template for ever. Nothing else of an owner's row tells that one has arrived.
type templateStore interface {
	// UpsertEntitlement stores an entitlement unless the stored one is at least as new.
	UpsertEntitlement(ctx context.Context, ownerID string, e access.Entitlement) error
	// TemplatesDeleted counts the deleted templates of an owner. The count passed to
	// build and change of WaitlistStore holds until their result is committed. A template that is
	// deleted after that is removed from the stored settings.
	TemplatesDeleted(ctx context.Context, ownerID string) (int64, error)
}

// templateChecker asks about the templates that settings name.
type templateChecker struct {
	store     templateStore
	templates Templates
}

// errCheckAgain says that the owner deleted a template after the answer.
var errCheckAgain = errors.New("signup: templates changed")

// templateCheck is messaging's answer about the templates that a body assigns.
type templateCheck struct {
	// any is false if the body assigns none.
	any     bool
	unknown []waitlist.Assignment
	// err says why there is no answer.
	err error
	// deleted is how many templates the owner had deleted before messaging answered.
	deleted int64
}

// stillValid returns errCheckAgain if the owner has deleted templates since.
func (c templateCheck) stillValid(deleted int64) error {
	if c.any && c.deleted != deleted {
		return errCheckAgain
	}
	return nil
}

// withTemplateCheck returns the result of store, which gets the answer about the templates that a request body
// assigns. It asks before store takes a lock, so that nobody waits for the call, and asks again
// if a template was deleted between the answer and the lock.
func withTemplateCheck[T any](
	ctx context.Context, c templateChecker, owner access.Grant, raw []byte, store func(templateCheck) (T, error),
) (out T, err error) {
	for {
		check, err := c.checkTemplates(ctx, owner, raw)
		if err != nil {
			return out, err
		}
		if out, err = store(check); !errors.Is(err, errCheckAgain) {
			return out, err
		}
	}
}

// checkTemplates asks about the templates that a body assigns. It skips invalid ids, which draft
// rejects.
func (c templateChecker) checkTemplates(ctx context.Context, owner access.Grant, raw []byte) (templateCheck, error) {
	of := assignments(raw)
	if len(of) == 0 {
		return templateCheck{}, nil
	}
	// The store counts deletions only for owners that it has. An owner without a
	// waitlist is not stored yet.
	if err := c.store.UpsertEntitlement(ctx, owner.OwnerID, owner.Entitlement); err != nil {
		return templateCheck{}, err
	}
	deleted, err := c.store.TemplatesDeleted(ctx, owner.OwnerID)
	if err != nil {
		return templateCheck{}, err
	}
	check := templateCheck{any: true, deleted: deleted}
	if check.unknown, err = c.templates.Unknown(ctx, owner.OwnerID, of); err != nil {
		check.err = fmt.Errorf("check templates: %w", err)
	}
	return check, nil
}

// assignments returns the assignments of a request body that have valid ids.
func assignments(raw []byte) (of []waitlist.Assignment) {
	in, err := body.Parse(raw)
	if err != nil {
		return nil
	}
	settings, ok := in.Object("settings")
	if !ok {
		return nil
	}
	templates, ok := settings.Object("email_templates")
	if !ok {
		return nil
	}
	for _, f := range new(waitlist.EmailTemplates).Fields() {
		given, _ := templates.String(f.Mail, 0)
		if id, ok := waitlist.ParseID(given); ok {
			of = append(of, waitlist.Assignment{Mail: f.Mail, TemplateID: id})
		}
	}
	return of
}
