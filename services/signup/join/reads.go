package join

import (
	"context"

	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// NoRank asks Views for no rank.
const NoRank = -1

// look reads some addresses' signups, with their ranks if at most rankUpTo signups are live.
func (s *Service) look(ctx context.Context, waitlistID string, emails []string, rankUpTo int64) ([]standingView, error) {
	views, err := s.store.Views(ctx, waitlistID, emails, rankUpTo)
	if err != nil {
		return nil, err
	}
	w, err := s.Current(ctx, waitlistID, views[0])
	if err != nil {
		return nil, err
	}
	all := make([]standingView, len(views))
	for i, v := range views {
		all[i] = standingView{w, v}
	}
	return all, nil
}

// view reads a waitlist with its counters and, for a non-empty address, its signup, without its rank.
func (s *Service) view(ctx context.Context, waitlistID, email string) (*waitlist.Waitlist, queue.View, error) {
	at, err := s.views.ask(ctx, waitlistID, email)
	return at.w, at.View, err
}

// find is view for a signup that must be there. NOT_FOUND: the address is not on the list.
func (s *Service) find(ctx context.Context, waitlistID, email string) (*waitlist.Waitlist, queue.View, error) {
	w, v, err := s.view(ctx, waitlistID, email)
	if err == nil && v.Signup == nil {
		err = queue.ErrNoSignup()
	}
	return w, v, err
}

// Current returns the waitlist as it was when v was read, or newer.
func (s *Service) Current(ctx context.Context, waitlistID string, v queue.View) (*waitlist.Waitlist, error) {
	if w := s.cache.get(waitlistID); w != nil && w.Version == v.SettingsVersion && w.Owner.Version == v.OwnerVersion {
		return w, nil
	}
	return s.fresh(ctx, waitlistID)
}

// fresh reads the waitlist and caches it.
func (s *Service) fresh(ctx context.Context, waitlistID string) (*waitlist.Waitlist, error) {
	w, err := s.store.Waitlist(ctx, waitlistID)
	if err != nil {
		return nil, err
	}
	s.cache.put(w)
	return w, nil
}

// Effective returns the settings that apply to the public now.
func (s *Service) Effective(w *waitlist.Waitlist) waitlist.Settings {
	return w.Settings.Effective(w.Owner.EffectiveTier(s.now()))
}
