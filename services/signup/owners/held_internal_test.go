package owners

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"waitlist.internal/libs/apierr"
)

// bodyOf returns pieces of n bytes in all, and then err.
func bodyOf(n int, err error) func() ([]byte, error) {
	return func() ([]byte, error) {
		if n == 0 {
			return nil, err
		}
		piece := bytes.Repeat([]byte(" "), min(n, 1<<20))
		n -= len(piece)
		return piece, nil
	}
}

// TestHeldBodies: bodies count while they are held, whether they came to their
// end or not, and whoever is one too many is told to come again, an owner sooner
// than all.
func TestHeldBodies(t *testing.T) {
	t.Parallel()
	var a Admin
	var frees []func()
	for i := range maxHeld / maxImport {
		owner := fmt.Sprint(i)
		raw, free, err := a.collect(owner, bodyOf(maxImport, io.EOF))
		if err != nil || len(raw) != maxImport {
			t.Fatalf("%d bytes, %v", len(raw), err)
		}
		frees = append(frees, free)
		if _, _, err := a.collect(owner, bodyOf(1, io.EOF)); !apierr.Is(err, apierr.RateLimited) {
			t.Errorf("one byte too many of one owner: %v", err)
		}
	}
	if _, _, err := a.collect("other", bodyOf(1, io.EOF)); !apierr.Is(err, apierr.RateLimited) || apierr.From(err).RetryAfter != importPause {
		t.Errorf("one byte too many: %v", err)
	}
	frees[0]()
	if _, _, err := a.collect("other", bodyOf(maxImport+1, io.EOF)); !apierr.Is(err, apierr.InvalidBody) {
		t.Errorf("a body over the limit: %v", err)
	}
	cut := errors.New("cut off")
	if _, _, err := a.collect("other", bodyOf(maxImport, cut)); !errors.Is(err, cut) {
		t.Errorf("a body that breaks off: %v", err)
	}
	if _, free, err := a.collect("other", bodyOf(maxImport, io.EOF)); err != nil {
		t.Errorf("in the room of one that has gone: %v", err)
	} else {
		free()
	}
	for _, free := range frees[1:] {
		free()
	}
	if a.held.all != 0 || len(a.held.byOne) != 0 {
		t.Errorf("%d bytes are held by nobody, %v", a.held.all, a.held.byOne)
	}
}
