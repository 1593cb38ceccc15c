package queue

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/token/tokentest"
)

const someWaitlist = "0193d4a2-5c1e-7a41-8000-000000000001"

func TestCursor(t *testing.T) {
	t.Parallel()
	id, now := uuid.MustParse(someWaitlist), time.Unix(1_800_000_000, 999)
	for _, end := range []PageEnd{{}, {Key: 1 << 20, Change: 1}, {Key: -5, Change: 7}, {Key: math.MinInt64, Change: math.MaxInt64}} {
		s := end.Cursor(id, now)
		if got, fault := ParseCursor(s, id, now); fault != "" || got != end {
			t.Errorf("%+v became %+v, %s", end, got, fault)
		}
	}
	s := PageEnd{Key: 5, Change: 3}.Cursor(id, now)
	for _, tt := range []struct {
		name, cursor string
		waitlist     uuid.UUID
		now          time.Time
		want         string
	}{
		{"a day old", s, id, now.Add(cursorLife), ""},
		{"older", s, id, now.Add(cursorLife + time.Second), CursorOld},
		{"from a clock that is ahead", s, id, now.Add(-time.Minute), ""},
		{"of another waitlist", s, uuid.MustParse("0193d4a2-5c1e-7a41-8000-000000000002"), now, cursorForeign},
		{"empty", "", id, now, cursorDamaged},
		{"no base64", "????", id, now, cursorDamaged},
		{"cut", s[:len(s)-1], id, now, cursorDamaged},
		{"longer", s + "AAAA", id, now, cursorDamaged},
		{"padded", s + "=", id, now, cursorDamaged},
		{"broken line", s[:8] + "\n" + s[8:], id, now, cursorDamaged},
		{"blank", s + " ", id, now, cursorDamaged},
		{"other version", other(t, s), id, now, cursorDamaged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, fault := ParseCursor(tt.cursor, tt.waitlist, tt.now); fault != tt.want {
				t.Errorf("%q, want %q", fault, tt.want)
			}
		})
	}
}

// other returns a cursor with another version, and nothing else wrong.
func other(t *testing.T, s string) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	b[0]++
	return base64.RawURLEncoding.EncodeToString(sum(b[:cursorSize-4]))
}

// sum returns b with its checksum.
func sum(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }

// TestCursorTampered: with any character replaced, left out, doubled or added, or cut, the cursor is refused.
func TestCursorTampered(t *testing.T) {
	t.Parallel()
	id, now := uuid.MustParse(someWaitlist), time.Unix(1_800_000_000, 0)
	s := PageEnd{Key: 123 << 20, Change: 99}.Cursor(id, now)
	for bad := range tokentest.Tampered(s, tokentest.Bytes()) {
		if _, fault := ParseCursor(bad, id, now); fault != cursorDamaged {
			t.Errorf("%q for %s: %q", bad, s, fault)
		}
	}
}

// FuzzCursor: whatever is taken is what would have been handed out.
func FuzzCursor(f *testing.F) {
	id, now := uuid.MustParse(someWaitlist), time.Unix(1_800_000_000, 0)
	for _, end := range []PageEnd{{}, {Key: 5, Change: 3}, {Key: math.MinInt64, Change: math.MaxInt64}} {
		f.Add(end.Cursor(id, now), []byte{1, 2})
	}
	f.Add("", []byte("x"))
	f.Fuzz(func(t *testing.T, s string, raw []byte) {
		if end, fault := ParseCursor(s, id, now); fault == "" {
			b, err := base64.RawURLEncoding.DecodeString(s)
			if err != nil {
				t.Fatalf("took %q", s)
			}
			issued := time.Unix(int64(binary.BigEndian.Uint64(b[33:])), 0)
			if again := end.Cursor(id, issued); again != s {
				t.Fatalf("took %q, which is %q", s, again)
			}
		}
		// With a good checksum the fields themselves are tried.
		b := make([]byte, cursorSize-4)
		copy(b, raw)
		_, fault := ParseCursor(base64.RawURLEncoding.EncodeToString(sum(b)), id, now)
		if fault == "" && (b[0] != cursorVersion || uuid.UUID(b[1:17]) != id) {
			t.Fatalf("took %x", b)
		}
	})
}
