package queue

import (
	"strings"

	"waitlist.internal/libs/emailaddr"
)

// Bounds of the signals. The query SeenReferrals looks back for the last 30 referrals of
// a referrer in 30 days. A referrer with many followers has many of them in the network of
// one carrier, but few in a row.
const (
	// guardThreshold is the sum of the weights from which a referral is flagged.
	guardThreshold = 100
	// velocityMost is how many referrals of one referrer in 10 minutes are still plausible.
	velocityMost = 30
)

// reasons names, in a fixed order and separated by commas, the signs that a referral was
// invented, or returns "" if they weigh less than the threshold. The first referral from
// a network is no sign. The second may be a friend at the same table.
func (e Evidence) reasons(email, referrer string, seen Seen) string {
	fromNetwork := 0
	if e.Network != (Network{}) {
		fromNetwork = min(50*seen.FromNetwork, 100)
	}
	var names []string
	sum := 0
	for _, s := range []struct {
		name   string
		weight int
	}{
		{"same_person", weigh(seen.Again || samePerson(email, referrer), 100)},
		{"disposable_domain", weigh(e.Disposable, 100)},
		{"same_network", fromNetwork},
		{"velocity", weigh(seen.Lately >= velocityMost, 100)},
		{"too_fast", weigh(e.TooFast, 50)},
	} {
		if s.weight > 0 {
			names, sum = append(names, s.name), sum+s.weight
		}
	}
	if sum < guardThreshold {
		return ""
	}
	return strings.Join(names, ",")
}

func weigh(found bool, weight int) int {
	if !found {
		return 0
	}
	return weight
}

// samePerson reports whether two addresses differ only in what their provider ignores.
// Unlike emailaddr.Person, it takes a plus for the start of a tag at every domain: a
// credit that is withheld by mistake can still be given, but a trial cannot be taken back.
func samePerson(a, b string) bool { return Untagged(a) == Untagged(b) }

// Untagged returns an address without what its provider ignores and without a tag.
func Untagged(addr string) string {
	local, domain, _ := strings.Cut(addr, "@")
	if i := strings.IndexByte(local, '+'); i > 0 {
		local = local[:i]
	}
	return emailaddr.Person(local + "@" + domain)
}

// guard judges the referrals of one batch.
type guard struct {
	// seen is Locked.Seen.
	seen map[ReferralFrom]Seen
	// fromNetwork, again and lately count the referrals of the batch so far: by network, by
	// person, and all.
	fromNetwork, again map[ReferralFrom]int
	lately             map[Token]int
}

// judge returns the reasons to doubt j's referral by the address referrer, and remembers it.
func (g *guard) judge(j *Join, referrer string) string {
	if g.lately == nil {
		g.fromNetwork, g.again, g.lately = map[ReferralFrom]int{}, map[ReferralFrom]int{}, map[Token]int{}
	}
	network := ReferralFrom{Referrer: j.ReferredBy, Network: j.Evidence.Network}
	person := ReferralFrom{Referrer: j.ReferredBy, Person: j.Evidence.Person}
	seen := g.seen[j.From()]
	seen.FromNetwork += g.fromNetwork[network]
	seen.Lately += g.lately[j.ReferredBy]
	seen.Again = person.Person != Person{} && (seen.Again || g.again[person] > 0)
	g.fromNetwork[network]++
	g.again[person]++
	g.lately[j.ReferredBy]++
	return j.Evidence.reasons(j.Email, referrer, seen)
}
