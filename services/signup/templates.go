package signup

import (
	"context"
	"fmt"

	"waitlist.internal/libs/body"
)

// Templates knows the owners' mail templates, which are another service's.
type Templates interface {
	// Unknown returns those of the assignments that name no template of that
	// owner and of the mail's type.
	Unknown(ctx context.Context, ownerID string, of []Assignment) ([]Assignment, error)
}

// askedTemplates is what came back about the templates that a body assigns.
type askedTemplates struct {
	unknown []Assignment
	// err is why nothing is known.
	err error
}

// ask asks about the templates that the body of a request assigns, before there
// is a lock that others would wait for meanwhile. What is no id is not asked
// about; draft refuses it.
func (o *Owners) ask(ctx context.Context, ownerID string, raw []byte) askedTemplates {
	in, err := body.Parse(raw)
	if err != nil {
		return askedTemplates{} // draft says so
	}
	settings, ok := in.Object("settings")
	if !ok {
		return askedTemplates{}
	}
	templates, ok := settings.Object("email_templates")
	if !ok {
		return askedTemplates{}
	}
	var of []Assignment
	for _, f := range new(EmailTemplates).fields() {
		given, _ := templates.String(f.mail, 0)
		if id, ok := ParseID(given); ok {
			of = append(of, Assignment{f.mail, id})
		}
	}
	if len(of) == 0 {
		return askedTemplates{}
	}
	unknown, err := o.templates.Unknown(ctx, ownerID, of)
	if err != nil {
		return askedTemplates{err: fmt.Errorf("check templates: %w", err)}
	}
	return askedTemplates{unknown: unknown}
}
