package telemetry

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// levelFor is how long another level holds by default, maxLevelFor at most: people
	// forget to reset it.
	levelFor, maxLevelFor = 10 * time.Minute, 24 * time.Hour
	// maxLevelBody bounds the body of PUT /log/level, in bytes.
	maxLevelBody = 1 << 10
)

// Level is the level of a logger: the usual one, or another for a while.
type Level struct {
	usual slog.Level
	now   func() time.Time
	// other is nil until the first Set.
	other atomic.Pointer[otherLevel]
}

type otherLevel struct {
	level slog.Level
	until time.Time
}

// NewLevel returns a Level that starts as usual. now is the clock.
func NewLevel(usual slog.Level, now func() time.Time) *Level { return &Level{usual: usual, now: now} }

// Level implements slog.Leveler.
func (l *Level) Level() slog.Level {
	if o := l.other.Load(); o != nil && l.now().Before(o.until) {
		return o.level
	}
	return l.usual
}

// Set changes the level for a while.
func (l *Level) Set(level slog.Level, d time.Duration) {
	l.other.Store(&otherLevel{level, l.now().Add(d)})
}

// LevelHandler serves PUT /log/level, which sets all levels for a while: {"level": "DEBUG",
// "for": "10m"}, 24 hours at most. It answers 400 with a sentence for anything else.
func LevelHandler(levels ...*Level) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Level *slog.Level `json:"level"`
			For   string      `json:"for"`
		}
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLevelBody))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil || in.Level == nil {
			http.Error(w, `Send {"level": "DEBUG", "for": "10m"}; the levels are DEBUG, INFO, WARN and ERROR.`, http.StatusBadRequest)
			return
		}
		hold := levelFor
		if in.For != "" {
			var err error
			if hold, err = time.ParseDuration(in.For); err != nil || hold <= 0 || hold > maxLevelFor {
				http.Error(w, `Set "for" to a duration of at most 24h, such as 10m.`, http.StatusBadRequest)
				return
			}
		}
		for _, l := range levels {
			l.Set(*in.Level, hold)
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
