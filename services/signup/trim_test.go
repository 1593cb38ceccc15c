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

// TestShiftsAreTrimmed: what a cursor may still need stays, the rest goes.
func TestShiftsAreTrimmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	if _, err := w.pool.Exec(t.Context(), `
		INSERT INTO queue_shift (waitlist_id, no, first_key, end_key, old_keys, new_keys, created_at)
		SELECT $1, n, 0, 1, '{}', '{}', now() - interval '25 hours' + interval '1 hour' * (n - 5.5)
		    FROM generate_series(1, 10) n`, w.list.ID); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{3, 2, 0} {
		n, err := w.store.TrimShifts(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		if n != want {
			t.Errorf("trimmed %d, want %d", n, want)
		}
	}
	if n := w.count(t, `SELECT min(no) FROM queue_shift WHERE waitlist_id = $1`); n != 6 {
		t.Errorf("the first that stayed is %d", n)
	}
}
