package join

import (
	"context"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/token"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// deleteTokenTTL is how long the token that an opt-out returns is valid.
const deleteTokenTTL = time.Hour

// Verify marks an address as verified, given the token of its mail, and gives the credit
// for a referral that was withheld until then. already says that
// it was verified before. Errors: NOT_FOUND (waitlist, then signup), INVALID_TOKEN
// as Invalid.
func (s *Service) Verify(ctx context.Context, waitlistID, email, tok string) (already bool, err error) {
	w, v, err := s.bearer(ctx, waitlistID, email, tok, token.VerifySignup, apierr.Invalid)
	if err != nil {
		return false, err
	}
	if !v.Signup.EmailVerifiedAt.IsZero() {
		return true, nil
	}
	first, err := s.store.Verify(ctx, w, v.Signup.Number, s.timestamp(), v.Signup.Uncredited)
	if err == nil && v.Signup.Uncredited {
		s.Hint(waitlistID)
	}
	return !first, err
}

// Verifiable returns what Verify would, and changes nothing.
func (s *Service) Verifiable(ctx context.Context, waitlistID, email, tok string) (already bool, err error) {
	_, v, err := s.bearer(ctx, waitlistID, email, tok, token.VerifySignup, apierr.Invalid)
	return err == nil && !v.Signup.EmailVerifiedAt.IsZero(), err
}

// Unsubscribe opts a signup out of marketing mail and returns a token that allows
// deleting its data. It also takes the token of an offboarding mail, whose signup was
// removed. Errors: NOT_FOUND, INVALID_TOKEN as Denied.
func (s *Service) Unsubscribe(ctx context.Context, waitlistID, email, tok string) (deleteToken string, err error) {
	w, v, err := s.view(ctx, waitlistID, normalised(email))
	if err != nil {
		return "", err
	}
	var number int64
	if v.Signup != nil {
		number = v.Signup.Number
	} else if number, err = s.store.Offboarded(ctx, waitlistID, normalised(email)); err != nil {
		return "", err
	}
	if err := s.check(token.Unsubscribe, waitlistID, number, tok, apierr.Denied); err != nil {
		return "", err
	}
	if v.Signup != nil {
		err = s.store.OptOut(ctx, w, number, s.timestamp())
	} else {
		err = s.store.OptOutOffboarded(ctx, waitlistID, normalised(email), s.timestamp())
	}
	if err != nil {
		return "", err
	}
	return s.ring.Mint(token.DeleteData, token.SignupSubject(waitlistID, number), s.now().Add(deleteTokenTTL)), nil
}

// DeleteMyData removes a signup at its own request. Errors are those of Unsubscribe.
func (s *Service) DeleteMyData(ctx context.Context, waitlistID, email, tok string) error {
	w, v, err := s.bearer(ctx, waitlistID, email, tok, token.DeleteData, apierr.Denied)
	if err != nil {
		return err
	}
	if err := s.store.Remove(ctx, w, v.Signup.Number, queue.OwnRequest, audit.Entry{}); err != nil {
		return err
	}
	s.Hint(waitlistID)
	return nil
}

// bearer returns the signup that a mail token was minted for.
func (s *Service) bearer(
	ctx context.Context, waitlistID, email, tok string, p token.Purpose, kind apierr.Kind,
) (*waitlist.Waitlist, queue.View, error) {
	w, v, err := s.find(ctx, waitlistID, normalised(email))
	if err != nil {
		return nil, v, err
	}
	return w, v, s.check(p, waitlistID, v.Signup.Number, tok, kind)
}

// check returns INVALID_TOKEN unless tok was minted for a signup.
func (s *Service) check(p token.Purpose, waitlistID string, number int64, tok string, kind apierr.Kind) error {
	if err := s.ring.Verify(p, token.SignupSubject(waitlistID, number), tok, s.now()); err != nil {
		return apierr.New(apierr.InvalidToken, "This link is not valid or has expired.").WithKind(kind).WithCause(err)
	}
	return nil
}

// MailLink has a signup's place and link mailed to it. It does the same work for an address that is not on the
// list, so neither the answer nor its timing reveals it. Errors: RATE_LIMITED (by the client), NOT_FOUND
// (waitlist), VALIDATION_ERROR on email.
func (s *Service) MailLink(ctx context.Context, waitlistID, email, clientIP string) error {
	address := normalised(email)
	if address == "" {
		if err := s.Exists(ctx, waitlistID); err != nil {
			return err
		}
		return apierr.Validation(apierr.Field{Field: "email", Message: "Enter a valid email address."})
	}
	if wait := s.links.count(s.network("", clientIP), s.now()); wait > 0 {
		return apierr.New(apierr.RateLimited, "You have asked for too many links. Try again later.").WithRetryAfter(wait)
	}
	w, v, err := s.view(ctx, waitlistID, address)
	if err != nil {
		return err
	}
	var number int64
	if v.Signup != nil {
		number = v.Signup.Number
	}
	return s.store.RequestLink(ctx, w, number)
}
