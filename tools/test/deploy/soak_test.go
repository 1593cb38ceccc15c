package deploy

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
)

// answers is the series of how long signup took to answer.
const answers = "p99 of signup, ms"

// slope is the growth of a series by least squares, with the error of its estimate.
type slope struct{ perHour, sure float64 }

// fit returns the growth of values over the times, in hours.
func fit(hours, values []float64) slope {
	n := float64(len(values))
	var mx, my float64
	for i := range values {
		mx, my = mx+hours[i]/n, my+values[i]/n
	}
	var xx, xy, rest float64
	for i := range values {
		xx += (hours[i] - mx) * (hours[i] - mx)
		xy += (hours[i] - mx) * (values[i] - my)
	}
	b := xy / xx
	for i := range values {
		e := values[i] - my - b*(hours[i]-mx)
		rest += e * e
	}
	// Three standard errors; neighbours in a series are not independent, which twice as many account for.
	return slope{b, 6 * math.Sqrt(rest/(n-2)/xx)}
}

// grows reports whether a series grows for sure, by more than a share of its mean over the run.
func grows(hours, values []float64, share float64) bool {
	mean := 0.0
	for _, v := range values {
		mean += v / float64(len(values))
	}
	s := fit(hours, values)
	length := hours[len(hours)-1] - hours[0]
	return (s.perHour-s.sure)*length > share*mean
}

// TestGrows requires that a leak is told from noise.
func TestGrows(t *testing.T) {
	var hours, noise, leak, warm []float64
	for i := range 60 {
		x := float64(i)
		hours = append(hours, x/60)
		noise = append(noise, 100+10*math.Sin(x*x))
		leak = append(leak, 100+10*math.Sin(x*x)+x)
		warm = append(warm, 100+10*math.Sin(x*x)+0.05*x)
	}
	for _, tt := range []struct {
		name   string
		values []float64
		want   bool
	}{{"noise", noise, false}, {"a leak", leak, true}, {"less than the bound", warm, false}} {
		if got := grows(hours, tt.values, 0.1); got != tt.want {
			t.Errorf("%s: %t, %+v", tt.name, got, fit(hours, tt.values))
		}
	}
}

// soakRate returns how many times everyday's load a soak has: SOAK_RATE, or 2. Two processors
// hold about twice that.
func soakRate(t *testing.T) float64 {
	t.Helper()
	text := os.Getenv("SOAK_RATE")
	if text == "" {
		return 2
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 {
		t.Fatalf("SOAK_RATE: %q is no rate", text)
	}
	return n
}

// testSoak lets the mix run for SOAK and requires that nothing grows which should not:
// memory, goroutines and descriptors of each program, dead rows, and the time of answers.
func testSoak(t *testing.T, dir string, length time.Duration) {
	s := newSite(t, dir)
	m := newMix(s, testenv.Seed(t), everyday().times(soakRate(t)))
	a := newAuditor(m)
	m.warmUp()
	m.start()
	// Caches and pools fill first.
	pause(t.Context(), length/5)
	series := map[string][]float64{}
	var hours []float64
	begin := time.Now()
	const samples = 60
	for time.Since(begin) < length {
		m.mu.Lock()
		m.took = m.took[:0]
		m.mu.Unlock()
		pause(t.Context(), length/samples)
		hours = append(hours, time.Since(begin).Hours())
		for what, value := range s.sample(t, m) {
			series[what] = append(series[what], value)
		}
		t.Logf("%d of %d samples, %d signups, p99 %.1f ms, %d requests failed", len(hours), samples, m.acknowledged(),
			series[answers][len(hours)-1], m.failed("signup"))
	}
	m.end()
	a.audit()
	picture := filepath.Join("../../../.data", "soak.svg")
	if err := os.WriteFile(picture, []byte(plot(hours, series)), 0o644); err != nil {
		t.Error(err)
	}
	t.Logf("the picture is in %s", picture)
	for what, values := range series {
		g := fit(hours, values)
		line := fmt.Sprintf("%s: %.4g to %.4g, %+.3g ± %.2g an hour", what, values[0], values[len(values)-1], g.perHour, g.sure)
		if grows(hours, values, 0.25) {
			t.Error(line)
			continue
		}
		t.Log(line)
	}
}

// plot draws each series over time in a small chart of its own, from zero, as SVG.
func plot(hours []float64, series map[string][]float64) string {
	const columns, width, height, label = 4, 220, 70, 26
	names := slices.Sorted(maps.Keys(series))
	rows := (len(names) + columns - 1) / columns
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="10">`+"\n",
		columns*(width+20), rows*(height+label+10))
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for i, name := range names {
		values := series[name]
		top := slices.Max(values)
		fmt.Fprintf(&b, `<g transform="translate(%d %d)"><text y="10">%s</text><text y="21" fill="gray">%.4g to %.4g, at most %.4g</text>`,
			10+i%columns*(width+20), i/columns*(height+label+10), name, values[0], values[len(values)-1], top)
		fmt.Fprintf(&b, `<path d="M0 %d h%d" stroke="silver"/><polyline fill="none" stroke="steelblue" points="`, label+height, width)
		for j, v := range values {
			fmt.Fprintf(&b, "%.1f,%.1f ", width*hours[j]/hours[len(hours)-1], float64(label+height)-height*v/max(top, 1e-9))
		}
		b.WriteString(`"/></g>` + "\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// sample measures every program, the dead rows and the answers since the last sample.
func (s *site) sample(t *testing.T, m *mix) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for name, p := range s.running {
		proc := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid))
		status, err := os.ReadFile(filepath.Join(proc, "status"))
		if err != nil {
			t.Fatal(err)
		}
		out[name+" memory, MiB"] = number(string(status), "VmRSS:") / 1024
		files, err := os.ReadDir(filepath.Join(proc, "fd"))
		if err != nil {
			t.Fatal(err)
		}
		out[name+" descriptors"] = float64(len(files))
		res, err := m.client.Get("http://" + p.host + ":8081/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("metrics: %d %v", res.StatusCode, err)
		}
		_, goroutines, _ := strings.Cut(string(text), "\ngo_goroutines")
		out[name+" goroutines"] = number(goroutines, " ") // after the labels
	}
	for what, value := range out {
		if value == 0 {
			t.Fatalf("there is no figure for %s", what)
		}
	}
	conn := s.db.connect(t, "postgres")
	defer conn.Close(t.Context())
	// A share, since Postgres lets a table's dead rows grow with the table, to a fifth of it.
	var dead float64
	if err := conn.QueryRow(t.Context(),
		`SELECT 100.0 * sum(n_dead_tup) / sum(n_live_tup + n_dead_tup) FROM pg_stat_user_tables`).Scan(&dead); err != nil {
		t.Fatal(err)
	}
	out["dead rows, %"] = dead
	m.mu.Lock()
	defer m.mu.Unlock()
	took := slices.Sorted(slices.Values(m.took))
	if len(took) == 0 {
		t.Fatal("nobody was answered")
	}
	out[answers] = float64(took[len(took)*99/100].Microseconds()) / 1000
	return out
}

// number returns the number that follows a word in a text, 0 if there is none.
func number(text, word string) float64 {
	_, rest, _ := strings.Cut(text, word)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return 0
	}
	return n
}
