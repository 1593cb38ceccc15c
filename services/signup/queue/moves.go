package queue

import (
	"cmp"
	"slices"
)

// maxAhead bounds the keys that a batch reads to compute its moves.
const maxAhead = 10_000

// KeysNeeded returns how many keys ahead of each referrer show where the credits of joins move
// it: one for each place, and the key behind which it arrives. It is 0 for referrers that
// would need too many.
func KeysNeeded(joins []*Join) map[Token]int {
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

// segment is a part of the queue of which every signup is known.
type segment struct {
	// queue has the signups, identified by their keys before the batch.
	queue []int64
	// last is the highest key, which belongs to a referrer.
	last int64
	// front says that the segment begins with the head of the queue.
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
	segments := segmentsOf(credited)
	for _, c := range credits {
		key := referrers[c.Number].Key
		seg := segments[key]
		at := slices.Index(seg.queue, key)
		to := max(0, at-int(c.Places))
		if to == 0 && !seg.front {
			return nil
		}
		copy(seg.queue[to+1:at+1], seg.queue[to:at])
		seg.queue[to] = key
	}
	out := make([]Move, 0, len(moves))
	settled := map[*segment]bool{}
	for _, r := range credited {
		seg := segments[r.Key]
		if !settled[seg] && !seg.assignKeys(moves) {
			return nil
		}
		settled[seg] = true
		out = append(out, *moves[r.Key])
	}
	slices.SortFunc(out, func(a, b Move) int { return cmp.Compare(a.To, b.To) })
	return out
}

// segmentsOf returns the segment that each referrer stands in, by its key. It sorts
// referrers.
func segmentsOf(referrers []ReferrerRow) map[int64]*segment {
	first := func(r ReferrerRow) int64 {
		if n := len(r.Ahead); n > 0 {
			return r.Ahead[n-1]
		}
		return r.Key
	}
	slices.SortFunc(referrers, func(a, b ReferrerRow) int { return cmp.Compare(first(a), first(b)) })
	out := make(map[int64]*segment, len(referrers))
	var all []*segment
	for _, r := range referrers {
		if n := len(all); n == 0 || first(r) > all[n-1].last {
			all = append(all, &segment{last: r.Key})
		}
		seg := all[len(all)-1]
		seg.queue = append(append(seg.queue, r.Ahead...), r.Key)
		seg.last, seg.front = max(seg.last, r.Key), seg.front || r.Front
		out[r.Key] = seg
	}
	for _, seg := range all {
		slices.Sort(seg.queue)
		seg.queue = slices.Compact(seg.queue)
	}
	return out
}

// assignKeys gives new keys to the signups that moved and to no others: a run of these
// shares the room between its two neighbours evenly. It returns false if there is too
// little room.
func (seg *segment) assignKeys(moves map[int64]*Move) bool {
	for i := 0; i < len(seg.queue); i++ {
		begin, end := i, i
		for end < len(seg.queue) && moves[seg.queue[end]] != nil {
			end++
		}
		i = end
		run, upper := seg.queue[begin:end], seg.last+1
		if end < len(seg.queue) {
			upper = seg.queue[end]
		}
		n := int64(len(run))
		switch {
		case n == 0, slices.IsSorted(run) && run[n-1] < upper && (begin == 0 || run[0] > seg.queue[begin-1]):
			continue // nobody moved, or back to where it was
		case begin == 0:
			for k, key := range run {
				moves[key].To = upper - keySpacing*(n-int64(k))
			}
		default:
			gap := (upper - seg.queue[begin-1]) / (n + 1)
			if gap == 0 {
				return false
			}
			for k, key := range run {
				moves[key].To = seg.queue[begin-1] + gap*int64(k+1)
			}
		}
	}
	return true
}
