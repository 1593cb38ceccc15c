package signup

import (
	"context"
	"errors"
	"fmt"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/body"
)

// Templates knows the owners' mail templates, which are another service's.
type Templates interface {
	// Unknown returns those of the assignments that name no template of that
	// owner and of the mail's type.
	Unknown(ctx context.Context, ownerID string, of []Assignment) ([]Assignment, error)
}

// errAskAgain says that a template of the owner was deleted after the answer.
var errAskAgain = errors.New("signup: templates changed meanwhile")

// askedTemplates is what came back about the templates that a body assigns.
type askedTemplates struct {
	// any is false where the body assigns none.
	any     bool
	unknown []Assignment
	// err is why nothing is known.
	err error
	// deleted is how many of the owner's templates had been deleted before.
	deleted int64
}

// holds returns errAskAgain where the owner has deleted templates since.
func (a askedTemplates) holds(deleted int64) error {
	if a.any && a.deleted != deleted {
		return errAskAgain
	}
	return nil
}

// asking runs store with what is known about the templates that the body of a
// request assigns. It asks before there is a lock that others would wait for
// meanwhile, and again where a template was deleted between answer and lock.
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

// ask asks about the templates that a body assigns. What is no id is not asked
// about; draft refuses it.
func (o *Owners) ask(ctx context.Context, owner access.Grant, raw []byte) (askedTemplates, error) {
	of := assignments(raw)
	if len(of) == 0 {
		return askedTemplates{}, nil
	}
	// Deletions are counted for owners that are stored, which before their first
	// waitlist they are not.
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

// assignments are those of a request's body that may be valid.
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
