package join

import (
	"context"
	"fmt"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/services/signup/queue"
)

// Remove removes a signup for the owner. The gap closes; the displayed counter stays.
// NOT_FOUND: the address is not on the list. It completes by, the entry of the audit trail.
func (s *Service) Remove(ctx context.Context, waitlistID, email string, by audit.Entry) error {
	w, v, err := s.find(ctx, waitlistID, normalised(email))
	if err != nil {
		return err
	}
	if err := s.store.Remove(ctx, w, v.Signup.Number, queue.ByAdmin, by.On(signupTarget(w.ID, v.Signup.Number))); err != nil {
		return err
	}
	s.Hint(waitlistID)
	return nil
}

// Move moves a signup to a position, which is at least 1, or to the last one. It
// returns the signup's address and new position. by is as for Remove.
func (s *Service) Move(ctx context.Context, waitlistID, email string, position int64, by audit.Entry) (string, int64, error) {
	w, v, err := s.find(ctx, waitlistID, normalised(email))
	if err != nil {
		return "", 0, err
	}
	at, err := s.store.Move(ctx, w, v.Signup.Number, position, by.On(signupTarget(w.ID, v.Signup.Number)))
	if err != nil {
		return "", 0, err
	}
	s.Hint(waitlistID)
	return v.Signup.Email, at, nil
}

// Credit gives a signup's referrer the credit that it did not get with the signup. It
// returns the signup's address. If the referrer has the credit, nothing changes. by is as for
// Remove.
func (s *Service) Credit(ctx context.Context, waitlistID, email string, by audit.Entry) (string, error) {
	w, v, err := s.find(ctx, waitlistID, normalised(email))
	if err != nil {
		return "", err
	}
	credited, err := s.store.Credit(ctx, w, v.Signup.Number, by.On(signupTarget(w.ID, v.Signup.Number)))
	switch {
	case err != nil:
		return "", err
	case credited == queue.CreditNobody:
		return "", apierr.Validation(apierr.Field{Field: "credit", Message: "There is no referrer on the list to give this credit to."})
	case credited == queue.CreditGiven:
		s.Hint(waitlistID)
	}
	return v.Signup.Email, nil
}

// signupTarget names a signup in the audit trail, without its address.
func signupTarget(waitlistID string, number int64) string {
	return fmt.Sprintf("%s/%d", waitlistID, number)
}
