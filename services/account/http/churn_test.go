package http_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"waitlist.internal/libs/apierr"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/account"
)

// Many clients register, log in with and delete one address at once. In any order,
// the address has one account at a time and one trial, and each deletion is
// published once.
func TestChurn(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const email = "owner@example.com"
	// turn is one round. deleted reports whether the round registered the address itself.
	turn := func(ctx context.Context) (deleted bool, err error) {
		r, err := e.svc.Register(ctx, email, password)
		switch {
		case apierr.Is(err, apierr.Conflict):
			// Another client owns the account and may delete it during this login.
			t, err := e.svc.Login(ctx, email, password, account.Client{IP: "192.0.2.1"})
			if apierr.Is(err, apierr.AuthenticationRequired) || apierr.Is(err, apierr.RateLimited) {
				return false, nil
			}
			if err == nil {
				_, err = e.svc.Refresh(ctx, t.RefreshToken)
			}
			if apierr.Is(err, apierr.AuthenticationRequired) {
				return false, nil
			}
			return false, err
		case err != nil:
			return false, err
		}
		actor, err := e.svc.Authorize(ctx, "", r.APIKey)
		if err != nil {
			return false, err
		}
		if actor.AccountID != r.Account.ID {
			return false, errors.New("the key of another account")
		}
		return true, e.svc.Delete(ctx, actor)
	}
	var mu sync.Mutex
	ended := 0
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 8 {
				deleted, err := turn(t.Context())
				if err != nil {
					t.Error(err)
				}
				if deleted {
					mu.Lock()
					ended++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, table := range []string{"account", "session", "refresh_token", "closing"} {
		if n := e.count(`SELECT count(*) FROM ` + table); n != 0 {
			t.Errorf("%d rows left in %s", n, table)
		}
	}
	trials := 0
	for _, c := range published(e, (*eventv1.Event).GetEntitlementChanged) {
		if c.GetEntitlement().GetTrial() {
			trials++
		}
	}
	if trials != 1 {
		t.Errorf("%d trials", trials)
	}
	gone := map[string]bool{}
	for _, d := range published(e, (*eventv1.Event).GetAccountDeleted) {
		gone[d.GetAccountId()] = true
	}
	if closed := e.owner.got(); len(gone) != ended || len(closed) != ended {
		t.Errorf("%d accounts ended, %d told, %d closed", ended, len(gone), len(closed))
	}
}
