// Package signup is the domain of waitlists and the people on them: what a
// waitlist is and may be set to, who may sign up, and which place everybody has.
//
// # Places in the queue
//
// A place is exact: 1 + the number of live signups ahead. Each signup has a
// sparse integer key; only the order of the keys counts, so that a move
// changes one row. The rank of a key comes from a Redis sorted set (package
// redis) that holds the same keys, or from bucket counts in Postgres where the
// list is small or the sorted set is not up to date. See index.go and the
// functions in postgres/migrations.
//
// # The path of a signup
//
// join.go validates against the settings in process, lanes.go collects what
// waits for the same waitlist, and package postgres commits a batch: it locks
// the waitlist, checks that the settings are still those, inserts, moves
// referrers, appends one row to the change log and writes the events. A caller
// is answered after the commit, from what the transaction knew.
package signup

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/token"
)

// Token is a referral token's 16 random bytes; people see 32 hex digits.
type Token [16]byte

// String returns the token as people see it.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// ParseToken reads what String returns; ok is false for anything else.
func ParseToken(s string) (t Token, ok bool) {
	if len(s) != 2*len(t) {
		return t, false
	}
	_, err := hex.Decode(t[:], []byte(s))
	return t, err == nil
}

// NewToken returns a random token.
func NewToken() Token {
	var t Token
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// Signup is one live signup.
type Signup struct {
	Number          int64
	QueueKey        int64
	Email           string
	FirstName       string
	LastName        string
	Phone           string
	Token           Token
	ReferralCount   int64
	CreatedAt       time.Time
	EmailVerifiedAt time.Time
	EmailOptOutAt   time.Time
}

// View is what one query says about a waitlist and one of its signups, all of
// the same moment.
type View struct {
	// SettingsVersion and OwnerVersion tell whether a cached Waitlist is current.
	SettingsVersion int64
	OwnerVersion    int64
	// Change is the number of the waitlist's newest change, Nonce that one's.
	Change int64
	Nonce  int64
	// Live is the number of live signups, Total the displayed counter.
	Live  int64
	Total int64
	// Signup is nil where the address is not on the list.
	Signup *Signup
	// Rank is the signup's place; 0: not asked for and not cheap.
	Rank int64
}

// Removal says why a signup leaves.
type Removal int

// The reasons for a removal. Only OwnRequest lowers the displayed counter.
const (
	OwnRequest Removal = iota + 1
	ByAdmin
)

// Store is the truth. Errors are the contract's where the contract has one for
// the case, else Postgres' own.
type Store interface {
	// Waitlist returns a waitlist, NOT_FOUND where it is not or was deleted.
	Waitlist(ctx context.Context, id string) (*Waitlist, error)
	// Join runs one batch of signups to a waitlist in one transaction: it takes the
	// waitlist's lock, reads what decide needs, and writes what decide returns. If it
	// fails, none of the joins was committed, apart from the case that RetryError
	// names. It returns a RowError or a RetryError where those fit.
	Join(ctx context.Context, waitlistID string, joins []*Join, decide func(*Locked) *Batch) error
	// View returns the waitlist's counters and, for a non-empty address, its
	// signup, with its rank where at most rankUpTo signups are live.
	View(ctx context.Context, waitlistID, email string, rankUpTo int64) (View, error)
	// Leaderboard returns the referral counts of the first limit referrers.
	Leaderboard(ctx context.Context, waitlistID string, limit int) ([]int64, error)
	// Verify marks a signup's address as verified; false where it was already.
	Verify(ctx context.Context, w *Waitlist, number int64, at time.Time) (bool, error)
	// OptOut marks a signup as opted out; a second time changes nothing.
	OptOut(ctx context.Context, w *Waitlist, number int64, at time.Time) error
	// Remove deletes a signup and closes its gap; NOT_FOUND where it has gone.
	Remove(ctx context.Context, w *Waitlist, number int64, why Removal) error
	// Move puts a signup at a position, at most the last; it returns the place
	// that it then has.
	Move(ctx context.Context, w *Waitlist, number, position int64) (int64, error)
	ImportStore
	NoticeStore
	RecipientStore
}

// Config bounds a Service. The zero value of a field means its default.
type Config struct {
	// Workers is how many batches are committed at a time, over all waitlists;
	// each has a connection of its own. Default 4.
	Workers int
	// MaxBatch is the most signups in one transaction. Default 256.
	MaxBatch int
	// MaxQueue is how many signups may wait for one waitlist; more are refused
	// with 429. Default 4096.
	MaxQueue int
	// SmallList is the number of live signups up to which Postgres gives every
	// rank in the query that reads the signup, and no index is kept. Default
	// 1000; negative: every list has an index.
	SmallList int64
	// PrivacyPolicyVersion is stored with every consent.
	PrivacyPolicyVersion string
}

// Service is the public side of waitlists. Run has to be running for Join to
// answer.
type Service struct {
	cfg    Config
	store  Store
	index  *Index
	ring   *token.Ring
	now    func() time.Time
	log    *slog.Logger
	lanes  *lanes
	lists  *waitlistCache
	zones  sync.Map // known IANA names
	metric Metrics
}

// Metrics receives what the write path measures.
type Metrics struct {
	// Batch is called after each commit with its size and duration.
	Batch func(size int, took time.Duration)
}

// New returns a service. index may be nil: then every rank comes from Postgres.
func New(cfg Config, store Store, index *Index, ring *token.Ring, now func() time.Time, log *slog.Logger, m Metrics) *Service {
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	cfg.MaxBatch = cmp.Or(cfg.MaxBatch, 256)
	cfg.MaxQueue = cmp.Or(cfg.MaxQueue, 4096)
	cfg.SmallList = cmp.Or(cfg.SmallList, 1000)
	if index == nil {
		cfg.SmallList = math.MaxInt64
	}
	if m.Batch == nil {
		m.Batch = func(int, time.Duration) {}
	}
	return &Service{
		cfg: cfg, store: store, index: index, ring: ring, now: now, log: log,
		lanes: newLanes(cfg.MaxBatch, cfg.MaxQueue), lists: newWaitlistCache(), metric: m,
	}
}

// QueueDepth returns how many signups wait for their batch.
func (s *Service) QueueDepth() int { return s.lanes.depth() }

// Run commits batches until ctx ends, then what still waits, and returns.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range s.cfg.Workers {
		wg.Go(s.work)
	}
	if s.index != nil {
		wg.Go(func() { s.index.run(ctx) })
	}
	<-ctx.Done()
	s.lanes.stop()
	wg.Wait()
	return nil
}

// view reads a waitlist's counters and, for a non-empty address, its signup,
// together with the waitlist as it was at that moment.
func (s *Service) view(ctx context.Context, waitlistID, email string, rankUpTo int64) (*Waitlist, View, error) {
	v, err := s.store.View(ctx, waitlistID, email, rankUpTo)
	if err != nil {
		return nil, v, err
	}
	w, err := s.current(ctx, waitlistID, v)
	return w, v, err
}

// current returns the waitlist as it was when v was read, or newer.
func (s *Service) current(ctx context.Context, waitlistID string, v View) (*Waitlist, error) {
	if w := s.lists.get(waitlistID); w != nil && w.Version == v.SettingsVersion && w.Owner.Version == v.OwnerVersion {
		return w, nil
	}
	return s.fresh(ctx, waitlistID)
}

// fresh reads the waitlist and keeps it in process. What is kept is only ever
// used after its versions were compared with the stored ones.
func (s *Service) fresh(ctx context.Context, waitlistID string) (*Waitlist, error) {
	w, err := s.store.Waitlist(ctx, waitlistID)
	if err != nil {
		return nil, err
	}
	s.lists.put(w)
	return w, nil
}

// effective returns the settings that the public side has at this moment.
func (s *Service) effective(w *Waitlist) Settings {
	return w.Settings.Effective(w.Owner.EffectiveTier(s.now()))
}

// unavailable turns a lost database or a full queue into the contract's answer.
func unavailable(err error) error {
	switch {
	case errors.Is(err, errLaneFull):
		return apierr.New(apierr.RateLimited, "Too many people are signing up at this moment. Please try again.").
			WithRetryAfter(time.Second)
	case errors.Is(err, errStopping), errors.Is(err, context.DeadlineExceeded):
		return apierr.New(apierr.InternalError, "The service is not available at this moment.").
			WithRetryAfter(time.Second).WithCause(err)
	default:
		return err
	}
}
