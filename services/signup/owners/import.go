package owners

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/body"
	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/services/signup/index"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/queue"
	"waitlist.internal/services/signup/waitlist"
)

// Bounds of an import.
const (
	maxImport       = 32 << 20 // bytes of the body
	maxImportRows   = 100_000
	maxImportErrors = 50
	// maxHeld bounds the bytes of the bodies in memory, maxHeldEach those of one owner.
	// importPause is the Retry-After of an import beyond these bounds.
	maxHeld     = 4 * maxImport
	maxHeldEach = maxImport
	importPause = 10 * time.Second
	// maxShownEmail is how many code points of an invalid address an error shows.
	maxShownEmail = 320
)

// importChunk is how many rows one transaction stores. Signups wait for the
// waitlist's lock meanwhile.
const importChunk = 2_000

// importFollowed is how many rows an import stores before it starts a catch-up of the index
// and goes on. After as many rows again, it waits for that catch-up. So the index never
// lacks more than twice as many rows and two chunks, which it can append without a rebuild.
// Catching up after each chunk would slow the import.
const importFollowed = 6_000

// ImportError is a row that was left out because of its address.
type ImportError struct {
	// Row is 1 for the first row.
	Row     int64
	Email   string
	Message string
}

// Imported is the result of an import.
type Imported struct {
	// Imported rows are new on the list. Skipped rows were on the list, or earlier in
	// the file.
	Imported, Skipped int64
	// Errors holds the first invalid rows.
	Errors []ImportError
}

// ImportStore adds signups in bulk.
type ImportStore interface {
	// Known finds out what an import of rows needs to know before its transaction.
	Known(ctx context.Context, waitlistID string, rows []queue.ImportRow) (*Known, error)
	// Import appends rows, whose addresses differ, to the queue as DecideImport says,
	// in one transaction with their event. It leaves out the addresses that are known to be
	// on the list; if known is nil it looks them up under the waitlist's lock. It returns how
	// many rows are on the list with their own tokens. Errors are those of Store.Join. If an
	// address joined after Known read the list, the error is a RetryError. If it stores
	// anything, it writes by, unless that is zero.
	Import(ctx context.Context, w *waitlist.Waitlist, rows []queue.ImportRow, known *Known, by audit.Entry) (imported int64, err error)
}

// Known is what is known of an import's addresses before its transaction.
type Known struct {
	// Present has the tokens of the addresses that are on the list.
	Present map[string]queue.Token
	// Hashes has the address of each hash that the store would have of it if it had left the list.
	Hashes map[string]string
}

// Import adds the signups of a request body, whose pieces next returns until io.EOF. A
// piece is valid until the next call.
// It validates the whole body before it stores the first row. After an error, some
// rows may be stored; sent again, they are skipped.
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
	// Enter after the body has arrived, so that a slow sender takes no place.
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
	imported, err := a.ImportRows(ctx, &w, rows, audit.By(actor, w.OwnerID, audit.SignupsImported, w.ID))
	if err != nil {
		return Imported{}, err
	}
	return Imported{Imported: imported, Skipped: int64(len(rows)) - imported, Errors: bad}, nil
}

// readable is Authorize under a short timeout, for calls that take long afterwards.
func (a *Admin) readable(ctx context.Context, actor access.Actor, waitlistID string) (waitlist.Waitlist, access.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, join.Timeout)
	defer cancel()
	return a.owners.Authorize(ctx, actor, waitlistID)
}

// readImport parses an import. bad holds the first rows without a valid address;
// rows holds the rows with one.
func readImport(raw []byte) (rows []queue.ImportRow, bad []ImportError, err error) {
	form, err := body.Parse(raw)
	if err != nil {
		return nil, nil, err
	}
	// Each row is an object, so there is room for all from the beginning.
	rows = make([]queue.ImportRow, 0, min(bytes.Count(raw, []byte{'{'}), maxImportRows))
	n := int64(0)
	given := form.Each("signups", maxImportRows, func(row *body.Object) {
		n++
		sent, _ := row.String("email", 0)
		r := queue.ImportRow{
			FirstName: importText(row, "first_name", queue.MaxName),
			LastName:  importText(row, "last_name", queue.MaxName),
			Phone:     importText(row, "phone", queue.MaxPhone),
		}
		email, err := emailaddr.Parse(sent)
		if err != nil {
			if len(bad) < maxImportErrors {
				bad = append(bad, badRow(n, sent))
			}
			return
		}
		r.Email, r.Token = email, queue.NewToken()
		rows = append(rows, r)
	})
	if !given && !form.Failed("signups") {
		form.Fail("signups", body.Required)
	}
	return rows, bad, form.Err()
}

// held counts the bytes of import bodies in memory, in total and by owner.
type held struct {
	mu    sync.Mutex
	all   int
	byOne map[string]int
}

// add adds n bytes, which may be negative, to an owner's and reports whether the
// bounds still hold.
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

// collect assembles a request body. It returns RATE_LIMITED if the bodies in memory
// exceed their bounds. free releases this one.
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
			return nil, nil, apierr.New(apierr.RateLimited, "Too many imports are running. Try again later.").WithRetryAfter(importPause)
		}
	}
}

func importText(row *body.Object, name string, limit int) string {
	text, _ := row.String(name, limit)
	return strings.TrimSpace(text)
}

func badRow(n int64, email string) ImportError {
	e := ImportError{Row: n, Email: email, Message: "The email address is not valid."}
	if strings.TrimSpace(email) == "" {
		e.Message = "The email address is missing."
	}
	if utf8.RuneCountInString(email) > maxShownEmail {
		e.Email = string([]rune(email)[:maxShownEmail])
	}
	return e
}

// ImportRows appends rows to a waitlist in chunks and returns how many are new. Only
// analytics learns of them. When ctx ends, Import stops between two chunks.
func (a *Admin) ImportRows(ctx context.Context, w *waitlist.Waitlist, rows []queue.ImportRow, by audit.Entry) (imported int64, err error) {
	chunks := slices.Collect(slices.Chunk(distinct(rows), importChunk))
	if len(chunks) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The addresses of a chunk are looked up and hashed while the previous chunk is stored,
	// which keeps that out of the lock.
	next := a.lookUp(ctx, w.ID, chunks[0])
	followed, caught := int64(0), make(chan bool, 1)
	caught <- true
	defer func() { cancel(); <-caught }()
	for i, chunk := range chunks {
		known := <-next
		if err := ctx.Err(); err != nil {
			return imported, err
		}
		if i+1 < len(chunks) {
			next = a.lookUp(ctx, w.ID, chunks[i+1])
		}
		n, err := a.storeChunk(ctx, w, chunk, known, by)
		if err != nil {
			cancel()
			<-next
			return imported, join.Unavailable(err)
		}
		// The first chunk that stored anything has recorded the import.
		if imported += n; imported > 0 {
			by = audit.Entry{}
		}
		if imported == followed {
			continue
		}
		if last := i+1 == len(chunks); last {
			a.svc.Hint(w.ID)
		} else if imported-followed >= importFollowed {
			followed = imported
			a.startCatchUp(ctx, w.ID, caught)
		}
	}
	return imported, nil
}

// startCatchUp waits for the last catch-up, which sends its success to caught, then starts the next
// one. After a failure it only leaves a hint.
func (a *Admin) startCatchUp(ctx context.Context, waitlistID string, caught chan bool) {
	if ok := <-caught; !ok {
		caught <- ok
		a.svc.Hint(waitlistID)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, index.CatchUpTimeout)
		defer cancel()
		caught <- a.svc.CatchUp(ctx, waitlistID) == nil
	}()
}

// distinct returns the first row of each address.
func distinct(rows []queue.ImportRow) []queue.ImportRow {
	seen := make(map[string]struct{}, len(rows))
	out := make([]queue.ImportRow, 0, len(rows))
	for _, r := range rows {
		before := len(seen)
		if seen[r.Email] = struct{}{}; len(seen) > before {
			out = append(out, r)
		}
	}
	return out
}

// lookUp sends what is known of the rows, then closes the channel. It sends nil if the read
// fails; the import then reads it itself.
func (a *Admin) lookUp(ctx context.Context, waitlistID string, rows []queue.ImportRow) <-chan *Known {
	next := make(chan *Known, 1)
	go func() {
		defer close(next)
		ctx, cancel := context.WithTimeout(ctx, join.Timeout)
		defer cancel()
		known, err := a.store.Known(ctx, waitlistID, rows)
		if err != nil && !errors.Is(err, context.Canceled) {
			a.log.WarnContext(ctx, "members of an import chunk not read in advance; the import reads them itself",
				slog.String("waitlist_id", waitlistID), telemetry.Err(err))
		}
		next <- known
	}()
	return next
}

// storeChunk stores one chunk and retries where that may help.
func (a *Admin) storeChunk(
	ctx context.Context, w *waitlist.Waitlist, rows []queue.ImportRow, known *Known, by audit.Entry,
) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), join.Timeout)
	defer cancel()
	return join.Retry(ctx, a.log, "import chunk", w.ID, len(rows), func() (int64, error) {
		n, err := a.store.Import(ctx, w, rows, known, by)
		known = nil // a further attempt looks itself: known may be outdated then, and some of the rows may be stored
		return n, err
	})
}
