package signup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
)

// Bounds of an import (decisions.md).
const (
	maxImport       = 32 << 20 // bytes of the body
	maxImportRows   = 100_000
	maxImportErrors = 50
	// maxHeld bounds the bodies that are received, waiting or judged at a time, in
	// bytes, maxHeldEach those of one owner; importPause is when to come again where
	// that is too little.
	maxHeld     = 4 * maxImport
	maxHeldEach = maxImport
	importPause = 10 * time.Second
	// maxShownEmail is how much of a wrong address is shown, in code points.
	maxShownEmail = 320
)

// importChunk is how many rows one transaction stores: others wait that long for
// the waitlist.
const importChunk = 2_000

// ImportRow is one new signup of an import. Its address is as emailaddr.Parse
// returns it.
type ImportRow struct {
	Email, FirstName, LastName, Phone string
	// Token is the signup's own, by which a repeated attempt knows its row.
	Token Token
}

// ImportError is a row that was left out for its address.
type ImportError struct {
	// Row is 1 for the first.
	Row     int64
	Email   string
	Message string
}

// Imported says what became of the rows of an import.
type Imported struct {
	// Imported rows are new on the list, Skipped ones were there, or came earlier
	// in the file.
	Imported, Skipped int64
	// Errors are the first ones of the others.
	Errors []ImportError
}

// ImportStore adds signups in bulk.
type ImportStore interface {
	// Present returns the tokens of those of the rows' addresses that are on the
	// list.
	Present(ctx context.Context, waitlistID string, rows []ImportRow) (map[string]Token, error)
	// Import appends rows, whose addresses differ, to the queue, in their order, in
	// one transaction with the event that tells of them. Those in present are left
	// out; where it is nil they are looked up under the waitlist's lock. A row that
	// is there with its own token was stored by an earlier attempt. It returns how
	// many are there with their own. Errors are those of Store.Join; it is a
	// RetryError too that somebody was on the list who is not in present.
	Import(ctx context.Context, w *Waitlist, rows []ImportRow, present map[string]Token) (imported int64, err error)
}

// Import adds the signups of a request's body, whose pieces next returns until
// io.EOF. All of it is judged before the first row is stored. After an error some
// rows may be there; sent again, they are skipped.
func (a *Admin) Import(ctx context.Context, actor access.Actor, waitlistID string, next func() ([]byte, error)) (Imported, error) {
	w, grant, err := a.readable(ctx, actor, waitlistID)
	if err != nil {
		return Imported{}, err
	}
	if err := grant.RequireWrite(); err != nil {
		return Imported{}, err
	}
	raw, free, err := a.collect(w.OwnerID, next)
	if err != nil {
		return Imported{}, err
	}
	defer free()
	// Not before the body is there: who sends slowly keeps nobody waiting.
	leave, err := a.imports.enter(ctx, w.OwnerID)
	if err != nil {
		return Imported{}, err
	}
	defer leave()
	rows, bad, err := readImport(raw)
	if err != nil {
		return Imported{}, err
	}
	if err := access.RequireTier(grant.Entitlement, access.Basic, "The import"); err != nil {
		return Imported{}, err
	}
	imported, err := a.svc.Import(ctx, &w, rows)
	if err != nil {
		return Imported{}, err
	}
	return Imported{Imported: imported, Skipped: int64(len(rows)) - imported, Errors: bad}, nil
}

// readable is Authorize for calls that take long: this part of them must not.
func (a *Admin) readable(ctx context.Context, actor access.Actor, waitlistID string) (Waitlist, access.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	return a.owners.Authorize(ctx, actor, waitlistID)
}

// readImport reads and judges an import. bad are the first rows without a valid
// address, which are not among rows.
func readImport(raw []byte) (rows []ImportRow, bad []ImportError, err error) {
	form, err := body.Parse(raw)
	if err != nil {
		return nil, nil, err
	}
	n := int64(0)
	given := form.Each("signups", maxImportRows, func(row *body.Object) {
		n++
		sent, _ := row.String("email", 0)
		r := ImportRow{
			FirstName: importText(row, "first_name", maxPersonName),
			LastName:  importText(row, "last_name", maxPersonName),
			Phone:     importText(row, "phone", maxPhone),
		}
		email, err := emailaddr.Parse(sent)
		if err != nil {
			if len(bad) < maxImportErrors {
				bad = append(bad, badRow(n, sent))
			}
			return
		}
		r.Email, r.Token = email, NewToken()
		rows = append(rows, r)
	})
	if !given && !form.Failed("signups") {
		form.Fail("signups", "is required")
	}
	return rows, bad, form.Err()
}

// held counts the bytes of imports' bodies, of all owners and of each.
type held struct {
	mu    sync.Mutex
	all   int
	byOne map[string]int
}

// add counts n more bytes of an owner, or fewer, and reports whether they are
// within the bounds.
func (h *held) add(ownerID string, n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byOne == nil {
		h.byOne = map[string]int{}
	}
	h.all += n
	if h.byOne[ownerID] += n; h.byOne[ownerID] == 0 {
		delete(h.byOne, ownerID)
	}
	return h.all <= maxHeld && h.byOne[ownerID] <= maxHeldEach
}

// collect puts a body of an owner together. Whoever comes when the bodies at hand
// are too many bytes is RATE_LIMITED; free takes this one from them.
func (a *Admin) collect(ownerID string, next func() ([]byte, error)) (raw []byte, free func(), err error) {
	free = func() { a.held.add(ownerID, -len(raw)) }
	for {
		piece, err := next()
		if errors.Is(err, io.EOF) {
			return raw, free, nil
		}
		if err == nil && len(raw)+len(piece) > maxImport {
			err = apierr.New(apierr.InvalidBody, fmt.Sprintf("The request body is longer than %d bytes.", maxImport))
		}
		if err != nil {
			free()
			return nil, nil, err
		}
		raw = append(raw, piece...)
		if !a.held.add(ownerID, len(piece)) {
			free()
			return nil, nil, apierr.New(apierr.RateLimited, "Too many imports are under way. Please try again.").WithRetryAfter(importPause)
		}
	}
}

func importText(row *body.Object, name string, limit int) string {
	text, _ := row.String(name, limit)
	return strings.TrimSpace(text)
}

func badRow(n int64, email string) ImportError {
	e := ImportError{Row: n, Email: email, Message: "The e-mail address is not valid."}
	if strings.TrimSpace(email) == "" {
		e.Message = "The e-mail address is missing."
	}
	if utf8.RuneCountInString(email) > maxShownEmail {
		e.Email = string([]rune(email)[:maxShownEmail])
	}
	return e
}

// Import appends rows to a waitlist, in chunks, and returns how many were not
// there before. Nobody is told but the analytics. When ctx ends it stops between
// two chunks. It leaves rows in any state: a file is not held twice.
func (s *Service) Import(ctx context.Context, w *Waitlist, rows []ImportRow) (imported int64, err error) {
	chunks := slices.Collect(slices.Chunk(distinct(rows), importChunk))
	if len(chunks) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Who of a chunk is there is looked up while the one before it is stored, and so
	// not under the lock.
	known := s.lookUp(ctx, w.ID, chunks[0])
	for i, chunk := range chunks {
		present := <-known
		if err := ctx.Err(); err != nil {
			return imported, err
		}
		if i+1 < len(chunks) {
			known = s.lookUp(ctx, w.ID, chunks[i+1])
		}
		n, err := s.storeChunk(ctx, w, chunk, present)
		if err != nil {
			cancel()
			<-known
			return imported, unavailable(err)
		}
		imported += n
	}
	// Not after each chunk: bringing the index up to date, or building it anew beside
	// the import, took a third of its speed.
	if imported > 0 {
		s.hint(w.ID)
	}
	return imported, nil
}

// distinct returns the first of each group of rows with the same address.
func distinct(rows []ImportRow) []ImportRow {
	seen := make(map[string]struct{}, len(rows))
	out := make([]ImportRow, 0, len(rows))
	for _, r := range rows {
		before := len(seen)
		if seen[r.Email] = struct{}{}; len(seen) > before {
			out = append(out, r)
		}
	}
	return out
}

// lookUp gives who of a chunk is on the list; nil where that could not be read,
// and then its import reads it. It is closed at the end.
func (s *Service) lookUp(ctx context.Context, waitlistID string, rows []ImportRow) <-chan map[string]Token {
	known := make(chan map[string]Token, 1)
	go func() {
		defer close(known)
		ctx, cancel := context.WithTimeout(ctx, joinTimeout)
		defer cancel()
		present, err := s.store.Present(ctx, waitlistID, rows)
		if err != nil && !errors.Is(err, context.Canceled) {
			s.log.WarnContext(ctx, "who of an import is there was not read ahead", "waitlist_id", waitlistID, "error", err)
		}
		known <- present
	}()
	return known
}

// storeChunk stores one chunk, trying again where that may help.
func (s *Service) storeChunk(ctx context.Context, w *Waitlist, rows []ImportRow, present map[string]Token) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), joinTimeout)
	defer cancel()
	backoff := newBackoff()
	for attempt := 1; ; attempt++ {
		n, err := s.store.Import(ctx, w, rows, present)
		var retry *RetryError
		if err == nil || !errors.As(err, &retry) || attempt == joinAttempts || ctx.Err() != nil {
			return n, err
		}
		// What was read ahead may have changed, and some of the rows may be stored.
		present = nil
		s.log.WarnContext(ctx, "part of an import is tried again", "waitlist_id", w.ID, "size", len(rows), "attempt", attempt, "error", err)
		if !backoff.Wait(ctx) {
			return 0, err
		}
	}
}
