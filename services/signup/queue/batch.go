// Package queue decides what happens to the queue of a waitlist. The decisions are pure: the
// store reads what they need under the waitlist's lock and writes what they return.
package queue

import (
	"time"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/waitlist"
)

// Decide decides about joins, in their order. refused[i], if set, is why joins[i]
// stays out; nil refuses nobody. newID returns the ids of the events. Decide
// changes none of its arguments.
func (l *Locked) Decide(joins []*Join, refused []error, newID func() string) *Batch {
	b := &Batch{
		State: l.State, Outcomes: make([]Outcome, len(joins)),
		Inserts: make([]Insert, 0, len(joins)), Events: make([]*eventv1.Event, 0, len(joins)),
	}
	added := make(map[string]int64, len(joins)) // email → number
	var credited map[Token]int64                // token → referrals of the batch so far
	checks := guard{seen: l.Seen}
	for i, j := range joins {
		o := &b.Outcomes[i]
		if refused != nil && refused[i] != nil {
			o.Err = refused[i]
			continue
		}
		if row, ok := l.Present[j.Email]; ok {
			// A row with the join's own token was committed by an earlier attempt.
			// Position stays 0: the receipt looks the place up.
			*o = Outcome{Existing: row.Token != j.Token, Number: row.Number}
			continue
		}
		if number, ok := added[j.Email]; ok {
			*o = Outcome{Existing: true, Number: number}
			continue
		}
		b.State.Live++
		b.State.Total++
		b.State.LastNumber++
		added[j.Email] = b.State.LastNumber
		*o = Outcome{Number: b.State.LastNumber, Position: b.State.Live, Total: b.State.Total}
		in := Insert{Join: j, Number: o.Number, Key: l.LastKey + keySpacing*int64(len(b.Inserts)+1)}
		eff := j.Waitlist.Settings.Effective(j.Waitlist.Owner.EffectiveTier(j.CreatedAt))
		var referrer ReferrerRow
		if j.HasReferrer {
			referrer, in.Referred = l.Referrers[j.ReferredBy]
			in.ReferrerNumber = referrer.Number
		}
		if in.Referred && eff.ReferralGuard.On() {
			in.Guarded, in.Flagged = true, checks.judge(j, referrer.Email)
		}
		if later := eff.CreditAfterVerification; later != nil && *later || in.Flagged != "" && eff.ReferralGuard == waitlist.GuardWithhold {
			in.ReferrerNumber = 0
		}
		b.Inserts = append(b.Inserts, in)
		b.publish(j, signupCreated(&in, *o, &eff, newID()))
		if in.ReferrerNumber == 0 {
			continue
		}
		b.State.Credited++
		if credited == nil {
			credited = make(map[Token]int64, len(l.Referrers))
		}
		credited[j.ReferredBy]++
		// Consecutive credits of one referrer make one move.
		if n := len(b.Credits); n == 0 || b.Credits[n-1].Number != referrer.Number {
			b.Credits = append(b.Credits, Credit{Number: referrer.Number})
		}
		c := &b.Credits[len(b.Credits)-1]
		c.Count++
		c.Places += int64(j.Waitlist.Settings.ReferralBoost)
		b.publish(j, referralCredited(
			j.Waitlist, referrer.Number, referrer.Count+credited[j.ReferredBy], in.Number, &eff, j.CreatedAt, newID(),
		))
	}
	if len(b.Inserts) > 0 {
		b.State.Change++
		b.CreditedAt = b.Inserts[0].CreatedAt
	}
	b.Moves = l.moves(b.Credits)
	return b
}

// publish adds an event that j causes.
func (b *Batch) publish(j *Join, ev *eventv1.Event) {
	if j.Traceparent != "" && b.Traceparents == nil {
		b.Traceparents = make([]string, len(b.Events), cap(b.Events))
	}
	b.Events = append(b.Events, ev)
	if b.Traceparents != nil {
		b.Traceparents = append(b.Traceparents, j.Traceparent)
	}
}

// DecideCredit decides about a credit that a referrer did not get with the signup. It
// returns the new counters, the credit, and the event that announces it. w is the
// waitlist as stored at that moment.
func DecideCredit(st State, w *waitlist.Waitlist, referrer ReferrerRow, number int64, now time.Time) (State, Credit, *eventv1.Event) {
	st.Change++
	st.Credited++
	eff := w.Settings.Effective(w.Owner.EffectiveTier(now))
	return st, Credit{Number: referrer.Number, Count: 1, Places: int64(eff.ReferralBoost)},
		referralCredited(w, referrer.Number, referrer.Count+1, number, &eff, now, NewEventID())
}

// ImportRow is one signup of an import. Its address is normalized by
// emailaddr.Parse.
type ImportRow struct {
	Email, FirstName, LastName, Phone string
	// Token identifies the row to a repeated attempt.
	Token Token
	// OptOutAt is when the person opted out before they left the list, else zero.
	// DecideImport sets it.
	OptOutAt time.Time
}

// ImportBatch is the decision about one chunk of an import.
type ImportBatch struct {
	// Imported counts the rows that are on the list by this import: Rows, and rows
	// that an earlier attempt committed.
	Imported int64
	// Rows are the new signups. Rows[i] gets the number FirstNumber+i and Keys[i].
	Rows        []ImportRow
	FirstNumber int64
	Keys        []int64
	// State is what the change log records after the chunk.
	State State
}

// DecideImport decides about rows, whose addresses differ, given the tokens of the
// addresses that are on the list, the highest queue key, and when addresses that
// had left opted out.
func DecideImport(st State, lastKey int64, present map[string]Token, optedOut map[string]time.Time, rows []ImportRow) ImportBatch {
	b := ImportBatch{FirstNumber: st.LastNumber + 1, Rows: make([]ImportRow, 0, len(rows)), State: st}
	for _, r := range rows {
		token, known := present[r.Email]
		if !known {
			r.OptOutAt = optedOut[r.Email]
			b.Rows = append(b.Rows, r)
			b.Keys = append(b.Keys, lastKey+keySpacing*int64(len(b.Rows)))
		}
		if !known || token == r.Token {
			b.Imported++
		}
	}
	if n := int64(len(b.Rows)); n > 0 {
		b.State.Change++
		b.State.Live += n
		b.State.Total += n
		b.State.LastNumber += n
	}
	return b
}

// Removed is a signup that was deleted under the waitlist's lock.
type Removed struct {
	Number                     int64
	Email, FirstName, LastName string
	// Referred says whether it had a credited referrer.
	Referred bool
	// OptOutAt is when it opted out, else zero.
	OptOutAt time.Time
	// Offboarded is the number that the address had when an earlier removal asked for the
	// offboarding mail, 0 if none did.
	Offboarded int64
}

// Departed is what is kept of a removed signup, beside a keyed hash of its address. The
// fields are those of Removed; nothing is kept if both are zero.
type Departed struct {
	OptOutAt   time.Time
	Offboarded int64
}

// DecideRemoval returns the counters after the removal of a signup, what is kept of it,
// and the event that announces the removal. w is the waitlist as stored at that moment.
func DecideRemoval(st State, w *waitlist.Waitlist, gone Removed, why Removal, now time.Time) (State, Departed, *eventv1.Event) {
	kept := Departed{OptOutAt: gone.OptOutAt, Offboarded: gone.Offboarded}
	st.Change++
	st.Live--
	if gone.Referred {
		st.Credited--
	}
	p := &eventv1.SignupRemoved{
		WaitlistId: w.ID, OwnerId: w.OwnerID, Number: gone.Number, Reason: eventv1.RemovalReason_REMOVAL_REASON_OWN_REQUEST,
	}
	if why == OwnRequest {
		st.Total--
	} else {
		eff := w.Settings.Effective(w.Owner.EffectiveTier(now))
		p.Reason = eventv1.RemovalReason_REMOVAL_REASON_ADMIN
		p.Email, p.FirstName, p.LastName = gone.Email, gone.FirstName, gone.LastName
		// An owner who imports and removes an address again and again must not write to it each time.
		p.Offboarding = eff.EmailTemplates.Offboarding != "" && gone.Offboarded == 0
		if p.Offboarding {
			kept.Offboarded = gone.Number
		}
	}
	ev := newEvent(NewEventID(), now)
	ev.Payload = &eventv1.Event_SignupRemoved{SignupRemoved: p}
	return st, kept, ev
}
