package deploy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// boost is the referral_boost of the waitlist whose history is checked.
const boost = 3

// nobody stands for no referrer.
const nobody = -1

// kind is what an operation on the waitlist asks for.
type kind string

const (
	signsUp kind = "signs up"
	looks   kind = "looks"
	moves   kind = "moves"
	removes kind = "removes"
)

// call is one operation on the waitlist. Persons have numbers below 65,536.
type call struct {
	kind   kind
	person int
	// referrer is who referred a new signup, or nobody.
	referrer int
	// to is the position that a move asks for.
	to int
}

// answer is what an operation returned.
type answer struct {
	// unknown: the operation took effect, and its answer was lost. Of a signup total may be
	// known all the same; else it is 0.
	unknown bool
	// created: the signup is new. absent: there is no such signup.
	created, absent            bool
	position, total, referrals int
}

// queue is the model: the waitlist as if its operations came one by one.
// A value is never changed.
type queue struct {
	// members holds the queue, front first: for each person two bytes with the number and
	// one with its referrals.
	members string
	total   int
	hash    uint64
}

const memberSize = 3

func newQueue(members []byte, total int) queue {
	h := fnv.New64a()
	_, _ = h.Write(members)
	return queue{members: string(members), total: total, hash: h.Sum64()}
}

// fullQueue returns a queue of the persons 0 to n-1 in this order.
func fullQueue(n int) queue {
	var members []byte
	for person := range n {
		members = append(binary.BigEndian.AppendUint16(members, uint16(person)), 0)
	}
	return newQueue(members, n)
}

func (q queue) live() int { return len(q.members) / memberSize }

// find returns the place of a person, counted from 0, or -1.
func (q queue) find(person int) int {
	if person == nobody {
		return -1
	}
	want := string(binary.BigEndian.AppendUint16(nil, uint16(person)))
	for at := 0; ; at++ {
		i := strings.Index(q.members[at*memberSize:], want)
		if i < 0 {
			return -1
		}
		if i%memberSize == 0 {
			return at + i/memberSize
		}
		at += i / memberSize
	}
}

func (q queue) standing(at int) answer {
	return answer{position: at + 1, total: q.total, referrals: int(q.members[at*memberSize+2])}
}

// place moves the member at from to to.
func place(members []byte, from, to int) []byte {
	m := slices.Clone(members[from*memberSize : (from+1)*memberSize])
	members = slices.Delete(members, from*memberSize, (from+1)*memberSize)
	return slices.Insert(members, to*memberSize, m...)
}

// do returns what the operation answers and the queue after it.
func (q queue) do(c call) (answer, queue) {
	at := q.find(c.person)
	if at < 0 && c.kind != signsUp {
		return answer{absent: true}, q
	}
	switch c.kind {
	case looks:
		return q.standing(at), q
	case removes:
		members := []byte(q.members)
		// An owner's removal leaves the counter.
		return answer{}, newQueue(slices.Delete(members, at*memberSize, (at+1)*memberSize), q.total)
	case moves:
		to := min(c.to, q.live())
		return answer{position: to}, newQueue(place([]byte(q.members), at, to-1), q.total)
	}
	if at >= 0 {
		return q.standing(at), q
	}
	members := append(binary.BigEndian.AppendUint16([]byte(q.members), uint16(c.person)), 0)
	if from := q.find(c.referrer); from >= 0 {
		members[from*memberSize+2]++
		members = place(members, from, max(0, from-boost))
	}
	return answer{created: true, position: q.live() + 1, total: q.total + 1}, newQueue(members, q.total+1)
}

// reads reports whether an answer shows the queue and leaves it as it is.
func (a answer) reads(c call) bool {
	return !a.unknown && (c.kind == looks || a.absent || (c.kind == signsUp && !a.created))
}

// state is where the search stands: the queue after some of the writes.
type state struct {
	queue
	// written and read have a bit for each write and each read that is explained.
	written, read string
	// shown counts the explained reads that show the queue's total.
	shown int
}

// record is a history, split into what changes the queue and what only shows it.
// Porcupine searches for the order of the writes. It could also place the reads, but there
// are too many: fifty reads at a time, in whatever order, end no search for a mistake
// before them. A read needs no search: to explain it as early as its call, its answer, and
// the reads before it allow takes nothing from any other operation.
type record struct {
	first         queue
	writes, reads []porcupine.Operation // in the order of their calls
	// byReturn has the writes in the order of their returns.
	byReturn []int
	// totals counts the reads that show a total.
	totals map[int]int
}

// write is a write's number, as porcupine's input.
type write int

// end is porcupine's input after all operations: every read must be explained.
const end write = -1

func newRecord(first queue, history []porcupine.Operation) *record {
	r := &record{first: first, totals: map[int]int{}}
	history = slices.SortedFunc(slices.Values(history), func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range history {
		if a := o.Output.(answer); a.reads(o.Input.(call)) {
			r.reads = append(r.reads, o)
			r.totals[a.total]++
			continue
		}
		r.byReturn = append(r.byReturn, len(r.writes))
		r.writes = append(r.writes, o)
	}
	slices.SortFunc(r.byReturn, func(a, b int) int { return cmp.Compare(r.writes[a].Return, r.writes[b].Return) })
	return r
}

func set(bits string, n int) string {
	out := []byte(bits)
	out[n/8] |= 1 << (n % 8)
	return string(out)
}

func isSet(bits string, n int) bool { return bits[n/8]&(1<<(n%8)) != 0 }

// explain returns s with all reads explained that can be.
func (r *record) explain(s state) state {
	// No read is before a write that was answered before it was asked.
	until := int64(math.MaxInt64)
	for _, n := range r.byReturn {
		if !isSet(s.written, n) {
			until = r.writes[n].Return
			break
		}
	}
	before := int64(math.MaxInt64) // the first return of a read that is not explained
	read := []byte(s.read)
	for n, o := range r.reads {
		if o.Call > until || o.Call > before {
			break
		}
		if isSet(s.read, n) {
			continue
		}
		got := o.Output.(answer)
		if want, _ := s.do(o.Input.(call)); want != got {
			before = min(before, o.Return)
			continue
		}
		read[n/8] |= 1 << (n % 8)
		if got.total > 0 {
			s.shown++
		}
	}
	s.read = string(read)
	return s
}

// missed reports whether a read that is not explained was answered before a time.
func (r *record) missed(s state, before int64) bool {
	for n, o := range r.reads {
		if o.Call >= before {
			return false
		}
		if o.Return < before && !isSet(s.read, n) {
			return true
		}
	}
	return false
}

// step is the model's: it takes a write after all that was explained.
func (r *record) step(s state, n write) (bool, state) {
	if n == end {
		return !r.missed(s, math.MaxInt64), s
	}
	o := r.writes[n]
	got := o.Output.(answer)
	want, next := s.do(o.Input.(call))
	if (!got.unknown && got != want) || (got.unknown && got.total != 0 && got.total != want.total) || r.missed(s, o.Call) {
		return false, s
	}
	if want.created && s.shown != r.totals[s.total] {
		return false, s // the other reads with this total would never be explained
	}
	after := s
	after.queue, after.written = next, set(s.written, int(n))
	if want.created {
		after.shown = 0
	}
	return true, r.explain(after)
}

// operations returns the history as porcupine takes it.
func (r *record) operations() []porcupine.Operation {
	var out []porcupine.Operation
	last := int64(0)
	for n, o := range r.writes {
		out = append(out, porcupine.Operation{ClientId: o.ClientId, Input: write(n), Call: o.Call, Return: o.Return})
		last = max(last, o.Return)
	}
	return append(out, porcupine.Operation{Input: end, Call: last + 1, Return: last + 1})
}

// model tells porcupine how the queue behaves.
func (r *record) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any {
			return r.explain(state{
				queue: r.first, written: string(make([]byte, len(r.writes)/8+1)), read: string(make([]byte, len(r.reads)/8+1)),
			})
		},
		Step:  func(s, input, _ any) (bool, any) { return r.step(s.(state), input.(write)) },
		Equal: func(a, b any) bool { return a.(state) == b.(state) },
		Hash:  func(s any) uint64 { return s.(state).hash },
		DescribeOperation: func(input, _ any) string {
			if input.(write) == end {
				return "end"
			}
			o := r.writes[input.(write)]
			return fmt.Sprintf("%+v: %+v", o.Input, o.Output)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%d live, total %d", s.(state).live(), s.(state).total) },
	}
}

// split returns a history in which each new signup that was found is a write with an unknown
// answer, and a look: its first attempt took effect and was cut off, so a second one told its
// place of a later moment, though one within the request.
func split(history []porcupine.Operation, found func(porcupine.Operation) bool) []porcupine.Operation {
	var out []porcupine.Operation
	for _, o := range history {
		if a := o.Output.(answer); a.created && found(o) {
			look := o
			look.Input = call{kind: looks, person: o.Input.(call).person, referrer: nobody}
			look.Output = answer{position: a.position, total: a.total, referrals: a.referrals}
			o.Output = answer{unknown: true}
			out = append(out, look)
		}
		out = append(out, o)
	}
	return out
}

// concurrent returns a history of n operations, of which some eight overlap at a time, and
// then a look at everybody, one after the other.
func concurrent(rng *rand.Rand, n int) []porcupine.Operation {
	const start, spread = 30, 8
	q, people := fullQueue(start), start
	var history []porcupine.Operation
	for at := int64(0); at < int64(n+people); at++ {
		if at >= int64(n) {
			c := call{kind: looks, person: int(at) - n, referrer: nobody}
			a, _ := q.do(c)
			when := 10 * (at + spread)
			history = append(history, porcupine.Operation{Input: c, Output: a, Call: when, Return: when})
			continue
		}
		c := call{kind: looks, person: rng.IntN(people), referrer: nobody}
		switch draw := rng.IntN(20); {
		case draw == 0:
			c.kind = removes
		case draw == 1:
			c.kind, c.to = moves, 1+rng.IntN(people)
		case draw < 10:
			c = call{kind: signsUp, person: people, referrer: rng.IntN(people)}
			people++
		}
		o := porcupine.Operation{Input: c, Call: 10*at - rng.Int64N(10*spread), Return: 10*at + rng.Int64N(10*spread)}
		o.Output, q = q.do(c)
		history = append(history, o)
	}
	return history
}

// TestFoundSignups: a signup that was found may be told a later place than that of its
// moment, if it was right before the answer.
func TestFoundSignups(t *testing.T) {
	up := func(person, referrer, position, total int, from, to int64) porcupine.Operation {
		return porcupine.Operation{
			Input: call{kind: signsUp, person: person, referrer: referrer}, Call: from, Return: to,
			Output: answer{created: true, position: position, total: total},
		}
	}
	// 32 is referred by 31, who passes 30 before that one is told its place.
	history := []porcupine.Operation{up(30, nobody, 32, 33, 100, 200), up(31, nobody, 32, 32, 110, 120), up(32, 31, 33, 33, 130, 140)}
	verdict := func(found bool) porcupine.CheckResult {
		r := newRecord(fullQueue(30), split(history, func(o porcupine.Operation) bool { return found && o.Input.(call).person == 30 }))
		return porcupine.CheckOperationsTimeout(r.model(), r.operations(), judged)
	}
	if got := verdict(false); got != porcupine.Illegal {
		t.Errorf("as its moment: %s", got)
	}
	if got := verdict(true); got != porcupine.Ok {
		t.Errorf("as found: %s", got)
	}
	history[0].Return = 125 // nobody has passed it yet
	if got := verdict(true); got != porcupine.Illegal {
		t.Errorf("as found after the answer: %s", got)
	}
}

// TestHistories: a history of the queue passes, and none does with a fault in it.
func TestHistories(t *testing.T) {
	verdict := func(history []porcupine.Operation) porcupine.CheckResult {
		r := newRecord(fullQueue(30), history)
		return porcupine.CheckOperationsTimeout(r.model(), r.operations(), judged)
	}
	for name, plant := range map[string]func(call, answer) (answer, bool){
		"a position one off":       func(c call, a answer) (answer, bool) { a.position++; return a, c.kind == looks && !a.absent },
		"a signup ahead of others": func(_ call, a answer) (answer, bool) { a.position -= 10; return a, a.created },
		"a signup lost":            func(c call, a answer) (answer, bool) { return answer{absent: true}, c.kind == looks && !a.absent },
		"a credit not counted":     func(_ call, a answer) (answer, bool) { a.referrals--; return a, a.referrals > 0 },
		"a counter from before":    func(c call, a answer) (answer, bool) { a.total--; return a, c.kind == looks && !a.absent },
		"a removal without effect": func(c call, a answer) (answer, bool) {
			return answer{position: 1, total: 30}, c.kind == looks && a.absent
		},
	} {
		t.Run(name, func(t *testing.T) {
			history := concurrent(rand.New(rand.NewPCG(1, 1)), 80)
			if got := verdict(history); got != porcupine.Ok {
				t.Fatalf("without a fault: %s", got)
			}
			planted := false
			for i := len(history) - 1; i >= 0 && !planted; i-- {
				var a answer
				if a, planted = plant(history[i].Input.(call), history[i].Output.(answer)); planted {
					history[i].Output = a
				}
			}
			if got := verdict(history); !planted || got != porcupine.Illegal {
				t.Errorf("planted %t: %s", planted, got)
			}
		})
	}
}
