package owners

import (
	"context"
	"crypto/sha256"
	"fmt"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/mailtext"
)

// Accounts knows which accounts have verified their addresses.
type Accounts interface {
	// Verified returns NOT_FOUND for an account that does not exist.
	Verified(ctx context.Context, accountID string) (bool, error)
}

// NewBlast is a valid request for a blast by an account that may send it.
type NewBlast struct {
	WaitlistID string
	OwnerID    string
	// Trial reports whether the owner is on trial.
	Trial bool
	// AccountID is the caller, CredentialID its session or the lookup part of its API key.
	AccountID    string
	CredentialID string
	Role         access.Role
	Subject      string
	// Either HTML or Text may be empty.
	HTML, Text string
	// Fingerprint distinguishes the request body from others.
	Fingerprint []byte
}

// Blast returns the request for a blast in the request body raw. It checks that the caller and the owner have
// verified addresses, where that is required, before the owner's subscription.
func (a *Admin) Blast(ctx context.Context, actor access.Actor, waitlistID string, raw []byte) (NewBlast, error) {
	w, grant, err := a.owners.find(ctx, actor, waitlistID)
	if err != nil {
		return NewBlast{}, err
	}
	if err := a.verified(ctx, actor, w.OwnerID); err != nil {
		return NewBlast{}, err
	}
	if err := a.owners.admit(ctx, actor, w, grant); err != nil {
		return NewBlast{}, err
	}
	if err := grant.RequireWrite(); err != nil {
		return NewBlast{}, err
	}
	sum := sha256.Sum256(raw)
	b := NewBlast{
		WaitlistID: w.ID, OwnerID: w.OwnerID, Trial: grant.Entitlement.At(a.now()).Status == access.Trialing,
		AccountID: actor.AccountID, CredentialID: actor.CredentialID, Role: grant.Role, Fingerprint: sum[:],
	}
	if err := b.read(raw); err != nil {
		return NewBlast{}, err
	}
	return b, requireBlasts(grant)
}

// Blasts returns the canonical id of a waitlist whose blasts the actor may see.
func (a *Admin) Blasts(ctx context.Context, actor access.Actor, waitlistID string) (string, error) {
	w, grant, err := a.owners.Authorize(ctx, actor, waitlistID)
	if err != nil {
		return "", err
	}
	return w.ID, requireBlasts(grant)
}

func requireBlasts(g access.Grant) error {
	return access.RequireTier(g.Entitlement, access.Pro, "Sending blasts")
}

// verified returns EMAIL_NOT_VERIFIED unless the caller and the owner have verified addresses, where that is
// required.
func (a *Admin) verified(ctx context.Context, actor access.Actor, ownerID string) error {
	if a.accounts == nil {
		return nil
	}
	if !actor.EmailVerified {
		return apierr.New(apierr.EmailNotVerified, "Please verify your email address first.")
	}
	if actor.AccountID == ownerID {
		return nil
	}
	verified, err := a.accounts.Verified(ctx, ownerID)
	if err != nil {
		return fmt.Errorf("read the owner's account: %w", err)
	}
	if !verified {
		return apierr.New(apierr.EmailNotVerified, "The waitlist's owner has to verify their email address first.")
	}
	return nil
}

// read sets the mail to that of a request body.
func (b *NewBlast) read(raw []byte) error {
	in, err := body.Parse(raw)
	if err != nil {
		return err
	}
	// Whoever sends these means something else than a mail to everybody at once.
	for _, name := range []string{"send_at", "segment", "filter", "test", "test_to", "draft"} {
		if _, sent := in.Raw(name); sent {
			in.Fail(name, "This is not supported. A blast goes to the whole list at once.")
		}
	}
	subject, sent := mailtext.Subject(in, "subject")
	if b.Subject = subject; !sent && !in.Failed("subject") {
		in.Fail("subject", body.Required)
	}
	b.HTML, _ = mailtext.Body(in, "html_body")
	b.Text, _ = mailtext.Body(in, "text_body")
	if b.HTML == "" && b.Text == "" && !in.Failed("html_body") && !in.Failed("text_body") {
		in.Fail("html_body", "Set html_body, text_body or both.")
	}
	return in.Err()
}
