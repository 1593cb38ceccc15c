// Package join is the public side of waitlists: people sign up, look up their place, verify,
// opt out and leave. It commits the signups to a waitlist in batches and reads in common what many
// ask for at once.
package join

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"time"

	"waitlist.internal/libs/token"
	"waitlist.internal/services/signup/index"
)

// Config configures a Service. A number of 0 means the default.
type Config struct {
	Store Store
	// Index holds the ranks. If it is nil, every rank comes from Postgres.
	Index *index.Index
	// Tokens signs the links in emails.
	Tokens *token.Ring
	Now    func() time.Time
	Log    *slog.Logger
	// Committed, if set, is called after each commit with the batch's size and duration.
	Committed func(size int, took time.Duration)
	// Waited, if set, is called for each signup that a batch takes, with its time in its lane.
	Waited func(d time.Duration)
	// Grouped, if set, is called for each read of signups' places with how many requests it answers.
	Grouped func(size int)

	// Workers is how many batches are committed at a time, each on its own
	// connection. Default 4.
	Workers int
	// MaxBatch is the most signups in one transaction. Default 256.
	MaxBatch int
	// MaxQueue is how many signups may wait for one waitlist. Further ones get
	// RATE_LIMITED. Default 4096.
	MaxQueue int
	// MaxWait is how long the signups that wait for one waitlist may take, apart from the
	// first MaxBatch of them. Further ones get RATE_LIMITED. 0: no bound.
	MaxWait time.Duration
	// SmallList is the number of live signups up to which a list has no index, and the
	// query that reads a signup computes its rank. Default 1000; negative: every list
	// has an index.
	SmallList int64
	// PrivacyPolicyVersion is stored with every consent.
	PrivacyPolicyVersion string
}

// Service is the public side of waitlists. Join needs a running Run.
type Service struct {
	cfg   Config
	store Store
	index *index.Index
	ring  *token.Ring
	// hash returns the keyed hashes of a network or an address; see evidence.go.
	hash  func(waitlistAndNetwork string) [][]byte
	now   func() time.Time
	log   *slog.Logger
	lanes *lanes
	cache *waitlistCache
	// views read waitlists and signups, places signups with their ranks.
	views  *groups[string, standingView]
	places *groups[string, standingView]
	links  linkRequests
}

// New returns a Service.
func New(cfg Config) *Service {
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	cfg.MaxBatch = cmp.Or(cfg.MaxBatch, 256)
	cfg.MaxQueue = cmp.Or(cfg.MaxQueue, 4096)
	cfg.SmallList = cmp.Or(cfg.SmallList, 1000)
	if cfg.Index == nil {
		cfg.SmallList = math.MaxInt64
	}
	if cfg.Committed == nil {
		cfg.Committed = func(int, time.Duration) {}
	}
	if cfg.Waited == nil {
		cfg.Waited = func(time.Duration) {}
	}
	if cfg.Grouped == nil {
		cfg.Grouped = func(int) {}
	}
	s := &Service{
		cfg: cfg, store: cfg.Store, index: cfg.Index, ring: cfg.Tokens, hash: cfg.Tokens.Hasher(token.Network), now: cfg.Now, log: cfg.Log,
		lanes: newLanes(cfg.Workers, cfg.MaxBatch, cfg.MaxQueue, cfg.MaxWait), cache: newWaitlistCache(),
	}
	withoutRank := func(ctx context.Context, id string, emails []string) ([]standingView, error) {
		return s.look(ctx, id, emails, NoRank)
	}
	s.views = newGroups("waitlist read", cfg.MaxBatch, func(int) {}, withoutRank)
	s.places = newGroups("signup read", cfg.MaxBatch, cfg.Grouped, s.readPlaces)
	return s
}

// Hint tells the index that a waitlist has changed.
func (s *Service) Hint(waitlistID string) {
	if s.index != nil {
		s.index.Hint(waitlistID)
	}
}

// CatchUp has the index catch up with all that is committed.
func (s *Service) CatchUp(ctx context.Context, waitlistID string) error {
	if s.index == nil {
		return nil
	}
	return s.index.CatchUp(ctx, waitlistID)
}

// timestamp returns the current time as the API shows times: UTC, in milliseconds.
func (s *Service) timestamp() time.Time { return s.now().UTC().Truncate(time.Millisecond) }
