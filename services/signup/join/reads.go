package join

import (
	"context"
	"sync"
	"time"

	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// NoRank asks View for no rank.
const NoRank = -1

// readStore reads waitlists and signups.
type readStore interface {
	// Waitlist returns a waitlist. NOT_FOUND: it does not exist or was deleted.
	Waitlist(ctx context.Context, id string) (*waitlist.Waitlist, error)
	// View returns the waitlist's counters and, for a non-empty address, its signup. It
	// returns the rank if at most rankUpTo signups are live.
	View(ctx context.Context, waitlistID, email string, rankUpTo int64) (queue.View, error)
	// Leaderboard returns the referral counts of the first limit referrers.
	Leaderboard(ctx context.Context, waitlistID string, limit int) ([]int64, error)
}

// view reads a waitlist with its counters and, for a non-empty address, its signup.
func (s *Service) view(ctx context.Context, waitlistID, email string, rankUpTo int64) (*waitlist.Waitlist, queue.View, error) {
	var v queue.View
	var err error
	if email == "" {
		v, err = s.reads.read(ctx, waitlistID)
	} else {
		v, err = s.store.View(ctx, waitlistID, email, rankUpTo)
	}
	if err != nil {
		return nil, v, err
	}
	w, err := s.Current(ctx, waitlistID, v)
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

// sharedReadTimeout bounds how long a shared read waits and runs. Requests end sooner.
const sharedReadTimeout = 5 * time.Second

// sharedReads reads waitlists without a signup. Requests for a waitlist that arrive while it is
// read share the next read, which begins after they came: each sees what it would have seen
// with a query of its own, and a crowd before one form costs one query at a time.
type sharedReads struct {
	view func(ctx context.Context, waitlistID string) (queue.View, error)

	mu sync.Mutex
	// groups holds the waitlists that are being read.
	groups map[string]*readGroup
}

// readGroup has the running read of a waitlist, and the one that later callers join; nil without any.
type readGroup struct{ running, next *sharedRead }

type sharedRead struct {
	// view and err are valid once done is closed.
	view queue.View
	err  error
	done chan struct{}
}

func newSharedReads(view func(ctx context.Context, waitlistID string) (queue.View, error)) *sharedReads {
	return &sharedReads{view: view, groups: map[string]*readGroup{}}
}

func (r *sharedReads) read(ctx context.Context, waitlistID string) (queue.View, error) {
	r.mu.Lock()
	g := r.groups[waitlistID]
	switch {
	case g == nil:
		mine := &sharedRead{done: make(chan struct{})}
		r.groups[waitlistID] = &readGroup{running: mine}
		r.mu.Unlock()
		r.run(ctx, waitlistID, mine)
		return mine.view, mine.err
	case g.next == nil:
		mine, before := &sharedRead{done: make(chan struct{})}, g.running
		g.next = mine
		r.mu.Unlock()
		// Others rely on this read, so it goes on when its own client leaves.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedReadTimeout)
		defer cancel()
		<-before.done
		r.run(ctx, waitlistID, mine)
		return mine.view, mine.err
	default:
		shared := g.next
		r.mu.Unlock()
		select {
		case <-shared.done:
			return shared.view, shared.err
		case <-ctx.Done():
			return queue.View{}, ctx.Err()
		}
	}
}

// run makes a read that nobody joins any more.
func (r *sharedReads) run(ctx context.Context, waitlistID string, mine *sharedRead) {
	mine.err = context.Canceled // for the others, should read panic
	defer func() {
		r.mu.Lock()
		if g := r.groups[waitlistID]; g.next != nil {
			g.running, g.next = g.next, nil
		} else {
			delete(r.groups, waitlistID)
		}
		r.mu.Unlock()
		close(mine.done)
	}()
	mine.view, mine.err = r.view(ctx, waitlistID)
}
