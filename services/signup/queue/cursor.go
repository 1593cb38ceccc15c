package queue

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/google/uuid"
)

// cursorLife is how long a cursor is valid. The store keeps the shifts that it needs
// a little longer.
const cursorLife = 24 * time.Hour

// cursorVersion is the first byte of a cursor.
const cursorVersion = 1

// cursorSize is the length of a cursor in bytes: version, waitlist, change, key,
// Unix time and checksum.
const cursorSize = 1 + 16 + 8 + 8 + 8 + crc32.Size

// Field messages about a cursor.
const (
	cursorDamaged = "This is not the last_key of an earlier page."
	cursorForeign = "This last_key belongs to another waitlist."
	CursorOld     = "This last_key is too old. Start again with the first page."
)

// PageEnd is where a page of the queue ended. Respacing changes keys without moving
// anybody, so a key names a place only together with the change it was read after.
type PageEnd struct {
	// Key is the queue key of the last row.
	Key int64
	// Change is the number of the newest change at that moment.
	Change int64
}

// Cursor returns the cursor of a place in a waitlist's queue. The checksum
// detects damage. It is not a signature: a forged cursor shows nothing that other
// pages would not show.
func (p PageEnd) Cursor(waitlist uuid.UUID, now time.Time) string {
	b := make([]byte, 0, cursorSize)
	b = append(b, cursorVersion)
	b = append(b, waitlist[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.Change))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Key))
	b = binary.BigEndian.AppendUint64(b, uint64(now.Unix()))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseCursor reads a cursor of the waitlist. fault is a field message, "" for a
// valid cursor.
func ParseCursor(s string, waitlist uuid.UUID, now time.Time) (p PageEnd, fault string) {
	// The decoder skips line breaks, so the length is checked as well.
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != cursorSize || len(s) != base64.RawURLEncoding.EncodedLen(cursorSize) {
		return PageEnd{}, cursorDamaged
	}
	b, sum := b[:cursorSize-crc32.Size], b[cursorSize-crc32.Size:]
	if b[0] != cursorVersion || crc32.ChecksumIEEE(b) != binary.BigEndian.Uint32(sum) {
		return PageEnd{}, cursorDamaged
	}
	if uuid.UUID(b[1:17]) != waitlist {
		return PageEnd{}, cursorForeign
	}
	p.Change = int64(binary.BigEndian.Uint64(b[17:]))
	p.Key = int64(binary.BigEndian.Uint64(b[25:]))
	issued := int64(binary.BigEndian.Uint64(b[33:]))
	if issued < now.Add(-cursorLife).Unix() {
		return PageEnd{}, CursorOld
	}
	return p, ""
}
