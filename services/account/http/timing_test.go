package http_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// BenchmarkKnownAgainstUnknown measures whether response times reveal which addresses
// have an account. It sends logins in random order. The ratio of the median times must
// be within 10 % of 1.
func BenchmarkKnownAgainstUnknown(b *testing.B) {
	for name, send := range map[string]func(e *env, i int, email string){
		"login": func(e *env, i int, email string) {
			e.post("/login", pair(email, "wrong password"), from(fmt.Sprintf("10.0.%d.%d", i/200, i%200))).expect(b, 401, "AUTHENTICATION_REQUIRED")
		},
		"forgot": func(e *env, _ int, email string) {
			e.post("/forgot-password", map[string]string{"email": email}).expect(b, 202, "")
		},
	} {
		b.Run(name, func(b *testing.B) {
			const addresses = 10
			e := newEnv(b)
			e.run(e.svc.RunResets)
			for i := range addresses {
				e.register(fmt.Sprintf("known%d@example.com", i))
			}
			took := map[string][]time.Duration{}
			i := 0
			for b.Loop() {
				i++
				kind := [2]string{"known", "unknown"}[rand.IntN(2)]
				start := time.Now()
				send(e, i, fmt.Sprintf("%s%d@example.com", kind, i%addresses))
				took[kind] = append(took[kind], time.Since(start))
			}
			median := func(kind string) float64 {
				d := took[kind]
				if len(d) == 0 {
					return 0
				}
				slices.Sort(d)
				return float64(d[len(d)/2])
			}
			if k := median("known"); k > 0 {
				b.ReportMetric(median("unknown")/k, "unknown/known")
			}
		})
	}
}
