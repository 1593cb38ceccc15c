package signup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/loop"
)

// Bounds of a signup's fields in code points (decisions.md).
const (
	maxPersonName = 100
	maxPhone      = 32
	maxUTM        = 255
	maxTimezone   = 64
)

// joinTimeout bounds how long a caller waits for its batch: the contract wants
// an answer within five seconds, also while Postgres is away.
const joinTimeout = 4500 * time.Millisecond

// joinAttempts bounds how often a batch is tried again after its connection
// broke or Postgres gave it up for a conflict.
const joinAttempts = 3

// newBackoff returns the pauses between them.
func newBackoff() loop.Backoff {
	return loop.Backoff{Min: 50 * time.Millisecond, Max: 100 * time.Millisecond}
}

// Join is one validated signup, ready to be stored.
type Join struct {
	// Waitlist is what it was validated against.
	Waitlist       *Waitlist
	Email          string
	FirstName      string
	LastName       string
	Phone          string
	Timezone       string
	Device         string
	UTMSource      string
	UTMMedium      string
	UTMCampaign    string
	UTMTerm        string
	UTMContent     string
	Answers        []byte // JSON object, nil: none
	ReferredBy     Token
	HasReferrer    bool
	ConsentAt      time.Time // zero: none given
	ConsentVersion string
	PolicyVersion  string
	Token          Token
	CreatedAt      time.Time
}

// Outcome is what became of a Join.
type Outcome struct {
	// Err keeps the join out; the fields below are then empty.
	Err error
	// Existing is set where the address was on the list already.
	Existing bool
	// Number, Position and Total of a new signup, as the transaction knew them.
	// Position 0: a repeated attempt found its own row, whose place is to be
	// looked up.
	Number   int64
	Position int64
	Total    int64
}

// Header is what of a signup request does not stand in its body.
type Header struct {
	UserAgent string
}

// Receipt is the answer to a signup. Position and Total are displayed values,
// absent (false) where the waitlist hides them.
type Receipt struct {
	Created       bool
	Email         string
	FirstName     string
	LastName      string
	Token         string
	ShowPosition  bool
	Position      int64
	Total         int64
	ReferralCount int64
	CreatedAt     time.Time
	RedirectURL   string
}

// Join signs somebody up. raw is the request body. The checks come in the
// contract's order: JSON, waitlist, open, honeypot, fields, domain rules, and
// last whether the address is on the list already, which is no error.
func (s *Service) Join(ctx context.Context, waitlistID string, raw []byte, h Header) (Receipt, error) {
	form, err := body.Parse(raw)
	if err != nil {
		return Receipt{}, err
	}
	w := s.lists.get(waitlistID)
	current := w == nil
	if current {
		if w, err = s.fresh(ctx, waitlistID); err != nil {
			return Receipt{}, err
		}
	}
	// People leave the honeypot empty; a bot may fill it with anything.
	if website, ok := form.Raw("website"); ok && string(website) != `""` {
		return s.fakeReceipt(ctx, waitlistID, form)
	}
	join, err := s.validate(w, form, h)
	if err != nil {
		if current {
			return Receipt{}, err
		}
		// What is in process may be out of date: only the stored settings refuse.
		if w, err = s.fresh(ctx, waitlistID); err != nil {
			return Receipt{}, err
		}
		if form, err = body.Parse(raw); err != nil {
			return Receipt{}, err
		}
		if join, err = s.validate(w, form, h); err != nil {
			return Receipt{}, err
		}
	}
	e := &entry{join: join, raw: raw, header: h, queued: s.now(), done: make(chan struct{})}
	if err := s.lanes.submit(waitlistID, e); err != nil {
		return Receipt{}, unavailable(err)
	}
	wait, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	if err := e.wait(wait); err != nil {
		return Receipt{}, unavailable(err)
	}
	return s.receipt(ctx, waitlistID, e)
}

func (s *Service) receipt(ctx context.Context, waitlistID string, e *entry) (Receipt, error) {
	o, join := e.outcome, e.join
	if !o.Existing && o.Position != 0 {
		eff := s.effective(join.Waitlist)
		return Receipt{
			Created: true, Email: join.Email, FirstName: join.FirstName, LastName: join.LastName,
			Token: join.Token.String(), ShowPosition: !eff.HidePosition, Position: o.Position + eff.PositionOffset,
			Total: o.Total, CreatedAt: join.CreatedAt, RedirectURL: eff.RedirectURL,
		}, nil
	}
	w, v, rank, err := s.place(ctx, waitlistID, join.Email)
	if err != nil {
		return Receipt{}, err
	}
	eff := s.effective(w)
	return Receipt{
		Created: !o.Existing, Email: v.Signup.Email, FirstName: v.Signup.FirstName, LastName: v.Signup.LastName,
		Token: v.Signup.Token.String(), ShowPosition: !eff.HidePosition, Position: rank + eff.PositionOffset,
		Total: v.Total, ReferralCount: v.Signup.ReferralCount, CreatedAt: v.Signup.CreatedAt, RedirectURL: eff.RedirectURL,
	}, nil
}

// fakeReceipt answers whoever filled the honeypot as if they had signed up.
func (s *Service) fakeReceipt(ctx context.Context, waitlistID string, form *body.Object) (Receipt, error) {
	w, v, err := s.view(ctx, waitlistID, "", noRank)
	if err != nil {
		return Receipt{}, err
	}
	eff := s.effective(w)
	if eff.Status == Closed {
		return Receipt{}, errClosed()
	}
	email, _ := form.String("email", emailaddr.MaxLength)
	email = strings.TrimSpace(email)
	if parsed, err := emailaddr.Parse(email); err == nil {
		email = parsed
	}
	return Receipt{
		Created: true, Email: email,
		FirstName: readText(form, "first_name", maxPersonName, eff.NameField),
		LastName:  readText(form, "last_name", maxPersonName, eff.NameField),
		Token:     NewToken().String(), ShowPosition: !eff.HidePosition, Position: v.Total + 1 + eff.PositionOffset,
		Total: v.Total + 1, CreatedAt: s.timestamp(), RedirectURL: eff.RedirectURL,
	}, nil
}

// timestamp is now as the contract writes moments: UTC, milliseconds.
func (s *Service) timestamp() time.Time { return s.now().UTC().Truncate(time.Millisecond) }

func errClosed() error {
	return apierr.New(apierr.WaitlistClosed, "This waitlist is closed.")
}

// validate judges a form by a waitlist's settings, everything in one list of
// errors, and the address's domain after that.
func (s *Service) validate(w *Waitlist, form *body.Object, h Header) (*Join, error) {
	eff := s.effective(w)
	if eff.Status == Closed {
		return nil, errClosed()
	}
	j := &Join{Waitlist: w, Token: NewToken(), CreatedAt: s.timestamp(), Device: deviceType(h.UserAgent)}
	j.Email = readEmail(form)
	j.FirstName = readText(form, "first_name", maxPersonName, eff.NameField)
	j.LastName = readText(form, "last_name", maxPersonName, eff.NameField)
	j.Phone = readText(form, "phone", maxPhone, eff.PhoneField)
	if zone, ok := form.String("timezone", maxTimezone); ok && zone != "" {
		if s.knownZone(zone) {
			j.Timezone = zone
		} else {
			form.Fail("timezone", "must be an IANA time zone name")
		}
	}
	for name, to := range map[string]*string{
		"utm_source": &j.UTMSource, "utm_medium": &j.UTMMedium, "utm_campaign": &j.UTMCampaign,
		"utm_term": &j.UTMTerm, "utm_content": &j.UTMContent,
	} {
		*to, _ = form.String(name, maxUTM)
	}
	if ref, ok := form.String("referred_by_token", 0); ok {
		j.ReferredBy, j.HasReferrer = ParseToken(strings.ToLower(strings.TrimSpace(ref)))
	}
	j.Answers = readAnswers(form, eff.CustomQuestions)
	consent, _ := form.Bool("consent")
	if consent {
		j.ConsentAt = j.CreatedAt
		j.ConsentVersion = consentVersion(eff.ConsentText)
		j.PolicyVersion = s.cfg.PrivacyPolicyVersion
	} else if eff.RequireConsent && !form.Failed("consent") {
		form.Fail("consent", "is required")
	}
	if err := form.Err(); err != nil {
		return nil, err
	}
	domain := j.Email[strings.LastIndexByte(j.Email, '@')+1:]
	if len(eff.AllowedEmailDomains) > 0 && !slices.Contains(eff.AllowedEmailDomains, domain) {
		return nil, apierr.New(apierr.DomainRestricted, "Addresses of this e-mail domain cannot sign up here.")
	}
	if eff.ExcludePersonalEmails && emailaddr.Personal(domain) {
		return nil, apierr.New(apierr.DomainRestricted, "Please use your work e-mail address.").
			WithStatus(http.StatusBadRequest)
	}
	return j, nil
}

func readEmail(form *body.Object) string {
	raw, ok := form.String("email", 0)
	if !ok {
		if !form.Has("email") || form.IsNull("email") {
			form.Fail("email", "is required")
		}
		return ""
	}
	email, err := emailaddr.Parse(raw)
	if err != nil {
		form.Fail("email", "must be a valid e-mail address")
	}
	return email
}

// readText reads a field of the form by its mode; a hidden one is ignored,
// whatever was sent.
func readText(form *body.Object, name string, limit int, mode FieldMode) string {
	if mode == FieldHidden {
		return ""
	}
	text, ok := form.String(name, limit)
	text = strings.TrimSpace(text)
	missing := !form.Has(name) || form.IsNull(name) || (ok && text == "")
	if mode == FieldRequired && missing {
		form.Fail(name, "is required")
	}
	return text
}

// consentVersion names a consent text: the first 12 hex digits of its SHA-256.
func consentVersion(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:12]
}

// knownZone reports whether name is an IANA time zone. Loading one reads and
// parses a file, so those found are remembered; there are some 600.
func (s *Service) knownZone(name string) bool {
	if _, ok := s.zones.Load(name); ok {
		return true
	}
	if name == "Local" || strings.HasPrefix(name, "/") {
		return false
	}
	// Some machines' databases hold more than the zones: the machine's own, and
	// the same once more with and without leap seconds.
	if name == "localtime" || name == "posixrules" || strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/") {
		return false
	}
	if _, err := time.LoadLocation(name); err != nil {
		return false
	}
	s.zones.Store(name, struct{}{})
	return true
}

// work commits batches until the lanes are stopped and empty.
func (s *Service) work() {
	for {
		ln, batch := s.lanes.take()
		if ln == nil {
			return
		}
		// A batch is nobody's request: its callers may go, it stays.
		ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
		start := time.Now()
		s.commit(ctx, ln.id, batch)
		cancel()
		s.metric.Batch(len(batch), time.Since(start))
		s.lanes.put(ln)
	}
}

// commit decides every entry of a batch.
func (s *Service) commit(ctx context.Context, waitlistID string, batch []*entry) {
	joins := make([]*Join, len(batch))
	for i, e := range batch {
		joins[i] = e.join
	}
	outcomes, err := s.tryJoin(ctx, waitlistID, batch, joins)
	if err == nil {
		if slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Position > s.cfg.SmallList }) {
			s.hint(waitlistID)
		}
		for i, e := range batch {
			e.outcome = outcomes[i]
			e.finish(outcomes[i].Err)
		}
		return
	}
	if len(batch) > 1 && s.isolable(err) && ctx.Err() == nil {
		// One row that Postgres refuses fails alone: the halves are tried apart.
		s.log.WarnContext(ctx, "batch refused, split", "waitlist_id", waitlistID, "size", len(batch), "error", err)
		half := len(batch) / 2
		s.commit(ctx, waitlistID, batch[:half])
		s.commit(ctx, waitlistID, batch[half:])
		return
	}
	for _, e := range batch {
		e.finish(unavailable(err))
	}
}

// isolable reports whether err may be the fault of a single row.
func (s *Service) isolable(err error) bool {
	var re *RowError
	return errors.As(err, &re)
}

// RowError says that Postgres refused a batch for what one of its rows holds.
type RowError struct{ Err error }

// Error implements error.
func (e *RowError) Error() string { return "row refused: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }

// RetryError says that a batch may be tried again: Postgres gave it up for a
// conflict, or the connection broke. In the latter case the batch may have been
// committed, which the next attempt finds out by the rows' tokens.
type RetryError struct{ Err error }

// Error implements error.
func (e *RetryError) Error() string { return "try again: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

func (s *Service) tryJoin(ctx context.Context, waitlistID string, batch []*entry, joins []*Join) ([]Outcome, error) {
	revalidate := func(i int, w *Waitlist) (*Join, error) {
		s.lists.put(w)
		form, err := body.Parse(batch[i].raw)
		if err != nil {
			return nil, err
		}
		j, err := s.validate(w, form, batch[i].header)
		if err != nil {
			return nil, err
		}
		// The token stays, so that a repeated attempt knows its row.
		j.Token, j.CreatedAt = joins[i].Token, joins[i].CreatedAt
		joins[i], batch[i].join = j, j
		return j, nil
	}
	backoff := newBackoff()
	for attempt := 1; ; attempt++ {
		outcomes, err := s.store.Join(ctx, waitlistID, joins, revalidate)
		var retry *RetryError
		if err == nil || !errors.As(err, &retry) || attempt == joinAttempts || ctx.Err() != nil {
			return outcomes, err
		}
		s.log.WarnContext(ctx, "batch is tried again", "waitlist_id", waitlistID, "size", len(batch), "attempt", attempt, "error", err)
		if !backoff.Wait(ctx) {
			return nil, err
		}
	}
}
