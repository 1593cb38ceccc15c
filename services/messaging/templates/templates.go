// Package templates keeps owners' texts for mails and fills in their placeholders.
package templates

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/mailtext"
)

// Type is the purpose of the mails that a template is for.
type Type string

// The types of templates.
const (
	Confirmation Type = "signup_confirmation"
	Milestone    Type = "referral_milestone"
	Offboarding  Type = "offboarding"
	Blast        Type = "blast"
)

// maxName is in code points.
const maxName = 200

// Template is an owner's text for one type of mail, with {{variable}} placeholders.
type Template struct {
	// ID is a UUIDv7, OwnerID an account's id.
	ID      string
	OwnerID string
	Type    Type
	Name    string
	Subject string
	// HTML and Text are the bodies; either may be empty. Lists of templates contain neither.
	HTML      string
	Text      string
	CreatedAt time.Time
}

// Ref refers to a template that an owner assigns to a waitlist.
type Ref struct {
	ID   string
	Type Type
}

// Store stores templates. The error for a template that is missing, or another owner's,
// is NOT_FOUND. Changes write by, the entry of the audit trail.
type Store interface {
	// InsertTemplate stores a new template. The error is CONFLICT if the number of the owner's
	// templates has reached most (0: no bound), and AUTHENTICATION_REQUIRED if the owner's account is deleted.
	InsertTemplate(ctx context.Context, t Template, most int64, by audit.Entry) error
	// Templates returns an owner's templates, without bodies, in order of creation.
	Templates(ctx context.Context, ownerID string) ([]Template, error)
	Template(ctx context.Context, ownerID, id string) (Template, error)
	// ChangeTemplate locks a template and stores the result of change. It may call change
	// more than once. It writes by only if anything differs.
	ChangeTemplate(ctx context.Context, ownerID, id string, by audit.Entry, change func(Template) (Template, error)) error
	// DeleteTemplate deletes a template and queues the event about it, in one transaction.
	DeleteTemplate(ctx context.Context, ownerID, id string, now time.Time, by audit.Entry) error
	// TemplateTypes returns the types of the owner's templates among ids.
	TemplateTypes(ctx context.Context, ownerID string, ids []string) (map[string]Type, error)
}

// Service serves the owners of mail templates. Its methods check in this order: the account that
// the actor works for (accountEmail is its owner's address, or empty for the actor's own), its
// subscription, the role, the body, the tier, the template.
type Service struct {
	store Store
	// most bounds the templates of an owner; 0 means no bound.
	most int64
	now  func() time.Time
}

// New returns a Service. most bounds the templates of an owner; 0 means no bound.
func New(store Store, most int64, now func() time.Time) *Service {
	return &Service{store: store, most: most, now: now}
}

// Create stores a template. raw is the body of the request.
func (t *Service) Create(ctx context.Context, actor access.Actor, accountEmail string, raw []byte) (Template, error) {
	grant, err := t.writer(actor, accountEmail)
	if err != nil {
		return Template{}, err
	}
	o, err := body.Parse(raw)
	if err != nil {
		return Template{}, err
	}
	tmpl := readTemplate(o, Template{})
	if err := o.Err(); err != nil {
		return Template{}, err
	}
	if err := requireTier(grant); err != nil {
		return Template{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Template{}, fmt.Errorf("new template id: %w", err)
	}
	tmpl.ID, tmpl.OwnerID, tmpl.CreatedAt = id.String(), grant.OwnerID, t.now().UTC().Truncate(time.Millisecond)
	return tmpl, t.store.InsertTemplate(ctx, tmpl, t.most, audit.By(actor, tmpl.OwnerID, audit.TemplateCreated, tmpl.ID))
}

// List returns an owner's templates without their bodies, in order of creation.
func (t *Service) List(ctx context.Context, actor access.Actor, accountEmail string) ([]Template, error) {
	grant, err := t.reader(actor, accountEmail)
	if err != nil {
		return nil, err
	}
	return t.store.Templates(ctx, grant.OwnerID)
}

// Get returns one template with its bodies.
func (t *Service) Get(ctx context.Context, actor access.Actor, accountEmail, id string) (Template, error) {
	grant, err := t.reader(actor, accountEmail)
	if err != nil {
		return Template{}, err
	}
	if !Canonical(id) {
		return Template{}, ErrNotFound()
	}
	return t.store.Template(ctx, grant.OwnerID, id)
}

// Update changes the fields that the body raw contains: null and absence leave a field unchanged,
// "" removes a body.
func (t *Service) Update(ctx context.Context, actor access.Actor, accountEmail, id string, raw []byte) error {
	grant, err := t.writer(actor, accountEmail)
	if err != nil {
		return err
	}
	// Errors that do not depend on the stored template come before the tier.
	o, err := body.Parse(raw)
	if err != nil {
		return err
	}
	readFields(o, Template{})
	if err := o.Err(); err != nil {
		return err
	}
	if err := requireTier(grant); err != nil {
		return err
	}
	if !Canonical(id) {
		return ErrNotFound()
	}
	by := audit.By(actor, grant.OwnerID, audit.TemplateUpdated, id)
	return t.store.ChangeTemplate(ctx, grant.OwnerID, id, by, func(old Template) (Template, error) {
		o, err := body.Parse(raw)
		if err != nil {
			return old, err
		}
		tmpl := readTemplate(o, old)
		return tmpl, o.Err()
	})
}

// Delete deletes a template. Waitlists that used it stop sending these mails.
func (t *Service) Delete(ctx context.Context, actor access.Actor, accountEmail, id string) error {
	grant, err := t.writer(actor, accountEmail)
	if err == nil {
		err = requireTier(grant)
	}
	if err != nil {
		return err
	}
	if !Canonical(id) {
		return ErrNotFound()
	}
	return t.store.DeleteTemplate(ctx, grant.OwnerID, id, t.now(), audit.By(actor, grant.OwnerID, audit.TemplateDeleted, id))
}

// Unknown returns the refs that do not match a template of the owner with the same type.
func (t *Service) Unknown(ctx context.Context, ownerID string, refs []Ref) ([]Ref, error) {
	var ids []string
	for _, r := range refs {
		if Canonical(r.ID) {
			ids = append(ids, r.ID)
		}
	}
	types, err := t.store.TemplateTypes(ctx, ownerID, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(refs), func(r Ref) bool {
		stored, ok := types[r.ID]
		return ok && stored == r.Type
	}), nil
}

// ErrNotFound is the error for a template that does not exist.
func ErrNotFound() error { return apierr.NotFoundf("There is no such template.") }

// ErrTooMany is the error for an owner whose number of templates has reached most.
func ErrTooMany(most int64) error {
	return apierr.New(apierr.Conflict, fmt.Sprintf("An account can have at most %d templates. Delete one first.", most))
}

// writer returns the actor's grant to change templates. It does not check the tier.
func (t *Service) writer(actor access.Actor, accountEmail string) (access.Grant, error) {
	grant, err := actor.MemberGrant(accountEmail, t.now())
	if err == nil {
		err = grant.RequireWrite()
	}
	return grant, err
}

// reader returns the actor's grant to see templates.
func (t *Service) reader(actor access.Actor, accountEmail string) (access.Grant, error) {
	grant, err := actor.MemberGrant(accountEmail, t.now())
	if err == nil {
		err = requireTier(grant)
	}
	return grant, err
}

func requireTier(g access.Grant) error {
	return access.RequireTier(g.Entitlement, access.Pro, "A mail template")
}

// Canonical reports whether s is an id in the form in which ids are issued, so that a template has
// only one name wherever ids are stored.
func Canonical(s string) bool {
	id, err := uuid.Parse(s)
	return err == nil && id.String() == s
}

// readFields replaces the fields of old by those of a body, and validates each by itself.
func readFields(o *body.Object, old Template) Template {
	t := old
	if s, ok := o.String("template_type", 0); ok {
		switch t.Type = Type(s); t.Type {
		case Confirmation, Milestone, Offboarding, Blast:
		default:
			o.Fail("template_type", "Choose signup_confirmation, referral_milestone, offboarding or blast.")
		}
	}
	if s, ok := mailtext.Subject(o, "subject_template"); ok {
		t.Subject = s
	}
	for name, field := range t.bodies() {
		if s, ok := mailtext.Body(o, name); ok {
			*field = s
		}
	}
	if s, ok := o.String("name", maxName); ok {
		if s = strings.TrimSpace(s); s != "" {
			t.Name = s
		}
	}
	for name, text := range t.texts() {
		if _, sent := o.Raw(name); !sent || o.Failed(name) {
			continue
		}
		pieces, problem := cut(text)
		if problem != "" {
			o.Fail(name, problem)
		}
		for _, p := range pieces {
			if p.variable != "" && !Milestone.variable(p.variable) {
				o.Fail(name, "There is no variable called "+mailtext.Short(p.variable)+".")
				break
			}
		}
	}
	return t
}

// readTemplate calls readFields and validates the resulting template as a whole.
func readTemplate(o *body.Object, old Template) Template {
	t := readFields(o, old)
	if t.Type == "" && !o.Failed("template_type") {
		o.Fail("template_type", "This field is required.")
	}
	if t.Subject == "" && !o.Failed("subject_template") {
		o.Fail("subject_template", "This field is required.")
	}
	if t.HTML == "" && t.Text == "" && !o.Failed("html_body_template") && !o.Failed("text_body_template") {
		o.Fail("html_body_template", "Set html_body_template, text_body_template or both.")
	}
	if _, named := o.Raw("name"); t.Name == "" || t.Name == string(old.Type) && !named {
		t.Name = string(t.Type)
	}
	if o.Failed("template_type") {
		return t
	}
	for name, text := range t.texts() {
		if o.Failed(name) {
			continue
		}
		if _, sent := o.Raw(name); !sent {
			// The stored text does not suit the new type.
			name = "template_type"
		}
		pieces, _ := cut(text)
		for _, p := range pieces {
			if p.variable != "" && !t.Type.variable(p.variable) && !o.Failed(name) {
				o.Fail(name, "Templates of type "+string(t.Type)+" have no variable called "+mailtext.Short(p.variable)+".")
			}
		}
	}
	return t
}

// bodies iterates over the bodies by their names in requests, in a fixed order.
func (t *Template) bodies() func(yield func(string, *string) bool) {
	return func(yield func(string, *string) bool) {
		_ = yield("html_body_template", &t.HTML) && yield("text_body_template", &t.Text)
	}
}

// texts iterates over all texts that may contain placeholders by name, in a fixed order.
func (t *Template) texts() func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		_ = yield("subject_template", t.Subject) && yield("html_body_template", t.HTML) && yield("text_body_template", t.Text)
	}
}
