package deploy

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
)

// everyday is the load under which programs and servers are killed.
func everyday() rates {
	return rates{signups: 25, statuses: 20, configs: 10, pages: 4, imports: 1, blasts: 0.5, payments: 0.5}
}

// killRounds returns CHAOS_ROUNDS, or 200 with CHAOS=full, or as many as reach every victim.
func killRounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("CHAOS_ROUNDS")
	switch {
	case text != "":
	case os.Getenv("CHAOS") == "full":
		return 200
	default:
		return len(victims())
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("CHAOS_ROUNDS: %v", err)
	}
	return n
}

func victims() []string { return append(programs(), servers()...) }

// testKills kills programs and servers at random moments, one or two at a time, and
// compares after every twentieth kill what was told with what is.
func testKills(t *testing.T, dir string) {
	from := testenv.Seed(t)
	rng := rand.New(rand.NewPCG(from, 2))
	s := newSite(t, dir)
	m := newMix(s, from, everyday())
	a := newAuditor(m)
	m.warmUp()
	m.start()
	rounds := killRounds(t)
	kills := map[string]int{}
	var order []string
	for round := range rounds {
		if len(order) == 0 {
			order = victims()
			rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		dying := order[:1]
		if len(order) > 1 && rng.IntN(5) == 0 {
			dying = order[:2]
		}
		order = order[len(dying):]
		pause(t.Context(), between(rng, 0, 500*time.Millisecond))
		s.kill(dying...)
		pause(t.Context(), between(rng, 0, 500*time.Millisecond))
		s.revive(dying...)
		for _, v := range dying {
			kills[v]++
		}
		before := m.acknowledged()
		testenv.Within(t, patience, "signups go on", func() bool { return m.acknowledged() >= before+10 })
		s.alive()
		if round%20 == 19 || round == rounds-1 {
			m.end()
			a.audit()
			m.start()
		}
		if t.Failed() {
			t.Fatalf("in round %d, after %v", round, dying)
		}
	}
	m.end()
	t.Logf("seed %d, %d rounds: %v killed; %s", from, rounds, kills, a.summary())
	t.Logf("answers: %v", m.answers)
}
