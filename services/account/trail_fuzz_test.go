package account

import (
	"testing"

	"github.com/google/uuid"
)

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
