package signup_test

import (
	"testing"

	"waitlist.internal/services/signup/queue"
)

// TestReferralsAreTrimmed: what the guard still compares stays, the rest goes. Without a
// guard there is nothing to trim.
func TestReferralsAreTrimmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	const rows = `SELECT count(*) FROM referral_seen WHERE waitlist_id = $1`
	join := func() {
		ada := w.newJoin(queue.Token{}, false)
		w.join(t, []*queue.Join{ada})
		for range 4 {
			w.join(t, []*queue.Join{w.newJoin(ada.Token, true)})
		}
	}
	join()
	if n := w.count(t, rows); n != 0 {
		t.Errorf("%d referrals seen with the guard off", n)
	}
	w.open(1, `"referral_guard": "flag"`)
	join()
	w.exec(t, `UPDATE referral_seen SET created_at = now() - interval '30 days' + interval '1 hour' * (number - 3.5) WHERE waitlist_id = $1`,
		w.list.ID)
	for _, want := range []int64{1, 1, 0} {
		n, err := w.store.TrimReferrals(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if n != want {
			t.Errorf("trimmed %d, want %d", n, want)
		}
	}
	if n := w.count(t, rows); n != 2 {
		t.Errorf("%d stayed", n)
	}
}
