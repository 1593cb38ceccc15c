package account

import (
	"testing"

	"github.com/google/uuid"

	"waitlist.internal/libs/token/tokentest"
)

// TestTrailCursorTampered: with any character replaced, left out, doubled or added, or cut, a cursor is refused.
func TestTrailCursorTampered(t *testing.T) {
	t.Parallel()
	good, err := encodeTrailCursor("0193d4a2-5c1e-7a41-8000-000000000001")
	if err != nil {
		t.Fatal(err)
	}
	for bad := range tokentest.Tampered(good, tokentest.Bytes()) {
		if _, ok := decodeTrailCursor(bad); ok {
			t.Errorf("%q is taken for %q", bad, good)
		}
	}
}

// FuzzTrailCursor: whatever is taken is what would have been handed out, and every id comes back.
func FuzzTrailCursor(f *testing.F) {
	f.Add("", []byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, s string, raw []byte) {
		encode := func(id string) string {
			cursor, err := encodeTrailCursor(id)
			if err != nil {
				t.Fatal(err)
			}
			return cursor
		}
		if id, ok := decodeTrailCursor(s); ok && encode(id) != s {
			t.Fatalf("took %q", s)
		}
		var id uuid.UUID
		copy(id[:], raw)
		if back, ok := decodeTrailCursor(encode(id.String())); !ok || back != id.String() {
			t.Fatalf("%s comes back as %q", id, back)
		}
	})
}
