package signup

import (
	"context"
	"errors"
	"fmt"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/body"
)

// Templates knows the owners' mail templates, which messaging stores.
type Templates interface {
	// Unknown returns the assignments that name no template of the owner of the mail's
	// type.
	Unknown(ctx context.Context, ownerID string, of []Assignment) ([]Assignment, error)
}

// errAskAgain says that the owner deleted a template after the answer.
var errAskAgain = errors.New("signup: templates changed")

// askedTemplates is the answer about the templates that a body assigns.
type askedTemplates struct {
	// any is false if the body assigns none.
	any     bool
	unknown []Assignment
	// err says why there is no answer.
	err error
	// deleted is how many templates the owner had deleted before messaging answered.
	deleted int64
}

// holds returns errAskAgain if the owner has deleted templates since.
func (a askedTemplates) holds(deleted int64) error {
	if a.any && a.deleted != deleted {
		return errAskAgain
	}
	return nil
}

// asking runs store with the answer about the templates that a request body assigns.
// It asks before store takes a lock, so that nobody waits for the call, and asks again
// if a template was deleted between the answer and the lock.
func (o *Owners) asking(ctx context.Context, owner access.Grant, raw []byte, store func(askedTemplates) error) error {
	for {
		asked, err := o.ask(ctx, owner, raw)
		if err != nil {
			return err
		}
		if err := store(asked); !errors.Is(err, errAskAgain) {
			return err
		}
	}
}

// ask asks about the templates that a body assigns. It skips invalid ids, which draft
// rejects.
func (o *Owners) ask(ctx context.Context, owner access.Grant, raw []byte) (askedTemplates, error) {
	of := assignments(raw)
	if len(of) == 0 {
		return askedTemplates{}, nil
	}
	// The store counts deletions only for owners that it has. An owner without a
	// waitlist is not stored yet.
	if err := o.store.SetOwner(ctx, owner.OwnerID, owner.Entitlement); err != nil {
		return askedTemplates{}, err
	}
	deleted, err := o.store.TemplatesDeleted(ctx, owner.OwnerID)
	if err != nil {
		return askedTemplates{}, err
	}
	asked := askedTemplates{any: true, deleted: deleted}
	if asked.unknown, err = o.templates.Unknown(ctx, owner.OwnerID, of); err != nil {
		asked.err = fmt.Errorf("check templates: %w", err)
	}
	return asked, nil
}

// assignments returns the assignments of a request body that have valid ids.
func assignments(raw []byte) (of []Assignment) {
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
	for _, f := range new(EmailTemplates).fields() {
		given, _ := templates.String(f.mail, 0)
		if id, ok := ParseID(given); ok {
			of = append(of, Assignment{f.mail, id})
		}
	}
	return of
}
