package queue

import (
	"cmp"
	"slices"
)

// maxAhead bounds the keys that a batch reads to compute its moves.
const maxAhead = 10_000

// Reach returns how many keys ahead of each referrer show where the credits of joins move
// it: one for each place, and the key behind which it arrives. It is 0 for referrers that
// would need too many.
func Reach(joins []*Join) map[Token]int {
	reach := map[Token]int{}
	for _, j := range joins {
		if !j.HasReferrer {
			continue
		}
		if reach[j.ReferredBy] == 0 {
			reach[j.ReferredBy] = 1
		}
		reach[j.ReferredBy] += j.Waitlist.Settings.ReferralBoost
	}
	left := maxAhead
	for token, n := range reach {
		if n > left {
			reach[token] = 0
			continue
		}
		left -= n
	}
	return reach
}

// stretch is a part of the queue of which every signup is known.
type stretch struct {
	// queue has the signups, identified by their keys before the batch.
	queue []int64
	// last is the highest key, which belongs to a referrer.
	last int64
	// front says that the stretch begins with the head of the queue.
	front bool
}

// moves returns the combined effect of credits, applied one after the other: one move
// for each referrer, so that its row is written once. It returns nil if the keys that
// were read do not show it, or if there is no room between two of them.
func (l *Locked) moves(credits []Credit) []Move {
	referrers := make(map[int64]ReferrerRow, len(l.Referrers)) // by number
	for _, r := range l.Referrers {
		referrers[r.Number] = r
	}
	moves := make(map[int64]*Move, len(l.Referrers)) // by old key
	var credited []ReferrerRow
	for _, c := range credits {
		r := referrers[c.Number]
		if moves[r.Key] == nil {
			moves[r.Key] = &Move{Number: r.Number, From: r.Key, To: r.Key}
			credited = append(credited, r)
		}
		moves[r.Key].Count += c.Count
	}
	stretches := stretchesOf(credited)
	for _, c := range credits {
		key := referrers[c.Number].Key
		st := stretches[key]
		at := slices.Index(st.queue, key)
		to := max(0, at-int(c.Places))
		if to == 0 && !st.front {
			return nil
		}
		copy(st.queue[to+1:at+1], st.queue[to:at])
		st.queue[to] = key
	}
	out := make([]Move, 0, len(moves))
	settled := map[*stretch]bool{}
	for _, r := range credited {
		st := stretches[r.Key]
		if !settled[st] && !st.settle(moves) {
			return nil
		}
		settled[st] = true
		out = append(out, *moves[r.Key])
	}
	slices.SortFunc(out, func(a, b Move) int { return cmp.Compare(a.To, b.To) })
	return out
}

// stretchesOf returns the stretch that each referrer stands in, by its key. It sorts
// referrers.
func stretchesOf(referrers []ReferrerRow) map[int64]*stretch {
	first := func(r ReferrerRow) int64 {
		if n := len(r.Ahead); n > 0 {
			return r.Ahead[n-1]
		}
		return r.Key
	}
	slices.SortFunc(referrers, func(a, b ReferrerRow) int { return cmp.Compare(first(a), first(b)) })
	out := make(map[int64]*stretch, len(referrers))
	var all []*stretch
	for _, r := range referrers {
		if n := len(all); n == 0 || first(r) > all[n-1].last {
			all = append(all, &stretch{last: r.Key})
		}
		st := all[len(all)-1]
		st.queue = append(append(st.queue, r.Ahead...), r.Key)
		st.last, st.front = max(st.last, r.Key), st.front || r.Front
		out[r.Key] = st
	}
	for _, st := range all {
		slices.Sort(st.queue)
		st.queue = slices.Compact(st.queue)
	}
	return out
}

// settle gives new keys to the signups that moved and to no others: a run of these
// shares the room between its two neighbours evenly. It returns false if there is too
// little room.
func (st *stretch) settle(moves map[int64]*Move) bool {
	for i := 0; i < len(st.queue); i++ {
		begin, end := i, i
		for end < len(st.queue) && moves[st.queue[end]] != nil {
			end++
		}
		i = end
		run, upper := st.queue[begin:end], st.last+1
		if end < len(st.queue) {
			upper = st.queue[end]
		}
		n := int64(len(run))
		switch {
		case n == 0, slices.IsSorted(run) && run[n-1] < upper && (begin == 0 || run[0] > st.queue[begin-1]):
			continue // nobody moved, or back to where it was
		case begin == 0:
			for k, key := range run {
				moves[key].To = upper - keySpacing*(n-int64(k))
			}
		default:
			gap := (upper - st.queue[begin-1]) / (n + 1)
			if gap == 0 {
				return false
			}
			for k, key := range run {
				moves[key].To = st.queue[begin-1] + gap*int64(k+1)
			}
		}
	}
	return true
}
