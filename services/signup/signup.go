// Package signup is the domain of waitlists and signups: the settings of a waitlist,
// who may sign up, and the place of each signup in the queue.
//
// # Places in the queue
//
// A place is exact: 1 + the number of live signups ahead. Each signup has a sparse
// integer key. Only the order of the keys counts, so a move changes one row. The rank
// of a key comes from a Redis sorted set of the same keys (package redis), or from
// bucket counts in Postgres if the list is small or the sorted set is behind. See
// index.go and the functions in postgres/migrations.
//
// # The path of a signup
//
// form.go validates a signup against cached settings. lanes.go collects the signups
// that wait for the same waitlist into batches. For each batch, package postgres locks
// the waitlist and reads, batch.go decides, and package postgres writes: it inserts
// the signups, moves the referrers, appends one row to the change log, and adds the
// events to the outbox. join.go leads through these steps and answers the caller after
// the commit, with the values of that transaction.
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
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/token"
)

// Name is the service's name in identities, logs and metrics, and the name of its
// schema and consumer group.
const Name = "signup"

// Token is a referral token of 16 random bytes. People see it as 32 hex digits.
type Token [16]byte

// String returns the token as people see it.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// ParseToken reads the form that String returns; ok is false for anything else.
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
	// Uncredited says that it came by a referral for which nobody has the credit yet.
	Uncredited bool
}

// View describes a waitlist and one of its signups at one moment.
type View struct {
	// SettingsVersion and OwnerVersion tell whether a cached Waitlist is current.
	SettingsVersion int64
	OwnerVersion    int64
	// Change is the number of the waitlist's newest change, Nonce its nonce.
	Change int64
	Nonce  int64
	// Live is the number of live signups, Total the displayed counter.
	Live  int64
	Total int64
	// Signup is nil if the address is not on the list.
	Signup *Signup
	// Rank is the signup's place, 0 if the list is longer than the caller asked for.
	Rank int64
}

// Credited is the result of a request to give a credit.
type Credited int

// The answers to a request to give a credit.
const (
	// CreditGiven: the referrer has it now.
	CreditGiven Credited = iota + 1
	// CreditBefore: the referrer had it before.
	CreditBefore
	// CreditNobody: no referrer is on the list.
	CreditNobody
)

// Removal says why a signup is removed.
type Removal int

// The reasons for a removal. Only OwnRequest lowers the displayed counter.
const (
	OwnRequest Removal = iota + 1
	ByAdmin
)

// Store stores waitlists and signups. Its errors are those of the API, or else
// Postgres's own.
type Store interface {
	// Waitlist returns a waitlist. NOT_FOUND: it does not exist or was deleted.
	Waitlist(ctx context.Context, id string) (*Waitlist, error)
	// Join runs one batch of signups to a waitlist in one transaction: it takes the
	// waitlist's lock, reads what decide needs, and writes what decide returns. If it
	// fails, none of the joins was committed, apart from the case that RetryError
	// names. It returns a RowError or a RetryError where they apply.
	Join(ctx context.Context, waitlistID string, joins []*Join, decide func(*Locked) *Batch) error
	// View returns the waitlist's counters and, for a non-empty address, its signup. It
	// returns the rank if at most rankUpTo signups are live.
	View(ctx context.Context, waitlistID, email string, rankUpTo int64) (View, error)
	// Leaderboard returns the referral counts of the first limit referrers.
	Leaderboard(ctx context.Context, waitlistID string, limit int) ([]int64, error)
	// Verify marks a signup's address as verified. It returns false if it was verified
	// before. With credit it also gives the credit for the referral, if it is still owed.
	Verify(ctx context.Context, w *Waitlist, number int64, at time.Time, credit bool) (bool, error)
	// Credit gives a signup's referrer the credit unless it has the credit already.
	// NOT_FOUND: the signup was removed.
	Credit(ctx context.Context, w *Waitlist, number int64, by audit.Entry) (Credited, error)
	// OptOut marks a signup as opted out. A second call changes nothing.
	OptOut(ctx context.Context, w *Waitlist, number int64, at time.Time) error
	// RequestLink asks for the mail with a signup's place and link; number 0 does the same work for nobody.
	RequestLink(ctx context.Context, w *Waitlist, number int64) error
	// Offboarded returns the number of the signup that an address had when its removal
	// asked for an offboarding mail. NOT_FOUND: no removal did.
	Offboarded(ctx context.Context, waitlistID, email string) (number int64, err error)
	// OptOutOffboarded opts such an address out, in case it is imported again. A
	// second call changes nothing.
	OptOutOffboarded(ctx context.Context, waitlistID, email string, at time.Time) error
	// Remove deletes a signup and closes its gap. NOT_FOUND: it was removed before. An
	// opt-out is remembered for a later import. by is zero for people's own requests.
	Remove(ctx context.Context, w *Waitlist, number int64, why Removal, by audit.Entry) error
	// Move moves a signup to a position, at most the last one, and returns its new
	// place.
	Move(ctx context.Context, w *Waitlist, number, position int64, by audit.Entry) (int64, error)
	ImportStore
	NoticeStore
	RecipientStore
}

// Config configures a Service. A number of 0 means the default.
type Config struct {
	Store Store
	// Index holds the ranks. If it is nil, every rank comes from Postgres.
	Index *Index
	// Tokens signs the links in emails.
	Tokens *token.Ring
	Now    func() time.Time
	Log    *slog.Logger
	// Committed, if set, is called after each commit with the batch's size and duration.
	Committed func(size int, took time.Duration)
	// Waited, if set, is called for each signup that a batch takes, with its time in its lane.
	Waited func(d time.Duration)

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
	index *Index
	ring  *token.Ring
	// hash returns the keyed hashes of a network or an address; see guard.go.
	hash  func(waitlistAndNetwork string) [][]byte
	now   func() time.Time
	log   *slog.Logger
	lanes *lanes
	lists *waitlistCache
	looks *looks
	links asks
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
	return &Service{
		cfg: cfg, store: cfg.Store, index: cfg.Index, ring: cfg.Tokens, hash: cfg.Tokens.Hasher(token.Network), now: cfg.Now, log: cfg.Log,
		lanes: newLanes(cfg.Workers, cfg.MaxBatch, cfg.MaxQueue, cfg.MaxWait), lists: newWaitlistCache(),
		looks: newLooks(func(ctx context.Context, waitlistID string) (View, error) {
			return cfg.Store.View(ctx, waitlistID, "", noRank)
		}),
	}
}

// QueueDepth returns how many signups wait for their batch.
func (s *Service) QueueDepth() int { return s.lanes.depth() }

// Run commits batches until ctx ends. Then it commits the waiting signups and returns.
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

// view reads a waitlist with its counters and, for a non-empty address, its signup.
func (s *Service) view(ctx context.Context, waitlistID, email string, rankUpTo int64) (*Waitlist, View, error) {
	var v View
	var err error
	if email == "" {
		v, err = s.looks.look(ctx, waitlistID)
	} else {
		v, err = s.store.View(ctx, waitlistID, email, rankUpTo)
	}
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

// fresh reads the waitlist and caches it.
func (s *Service) fresh(ctx context.Context, waitlistID string) (*Waitlist, error) {
	w, err := s.store.Waitlist(ctx, waitlistID)
	if err != nil {
		return nil, err
	}
	s.lists.put(w)
	return w, nil
}

// effective returns the settings that apply to the public now.
func (s *Service) effective(w *Waitlist) Settings {
	return w.Settings.Effective(w.Owner.EffectiveTier(s.now()))
}

// unavailable turns a full queue, a stop or a timeout into an error of the API.
func unavailable(err error) error {
	switch {
	case errors.Is(err, errLaneFull):
		return apierr.New(apierr.RateLimited, "Too many people are signing up right now. Try again in a moment.").
			WithRetryAfter(time.Second)
	case errors.Is(err, errStopping), errors.Is(err, context.DeadlineExceeded):
		return apierr.New(apierr.InternalError, "The service is not available right now. Try again in a moment.").
			WithRetryAfter(time.Second).WithCause(err)
	default:
		return err
	}
}
