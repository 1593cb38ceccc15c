package signup

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/google/uuid"
)

// cursorLife is how long a cursor may be used. What the store needs for that it
// keeps a little longer.
const cursorLife = 24 * time.Hour

// cursorVersion is a cursor's first byte.
const cursorVersion = 1

// cursorSize is that of a cursor's bytes: version, waitlist, change, key, Unix
// time and checksum.
const cursorSize = 1 + 16 + 8 + 8 + 8 + crc32.Size

// What is wrong with a cursor, in words for people.
const (
	cursorDamaged = "is not a key from an earlier page"
	cursorForeign = "is from another waitlist"
	cursorOld     = "is too old: begin again with the first page"
)

// PageEnd is where a page of the queue ended. Keys change without anybody's
// being moved, so a key says where that is only together with the change that it
// was read after.
type PageEnd struct {
	// Key is the queue key of the page's last row.
	Key int64
	// Change is the number of the newest change at that moment.
	Change int64
}

// encodeCursor returns a place in a waitlist's queue as it is handed out. The
// checksum finds damage and is no signature: a cursor that somebody makes up
// shows nothing that the first page would not.
func encodeCursor(waitlist uuid.UUID, p PageEnd, now time.Time) string {
	b := make([]byte, 0, cursorSize)
	b = append(b, cursorVersion)
	b = append(b, waitlist[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.Change))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Key))
	b = binary.BigEndian.AppendUint64(b, uint64(now.Unix()))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeCursor reads what encodeCursor returned for the waitlist. fault says
// what is wrong with it, "" where nothing is.
func decodeCursor(s string, waitlist uuid.UUID, now time.Time) (p PageEnd, fault string) {
	// The length as well, since the decoder skips line breaks.
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
		return PageEnd{}, cursorOld
	}
	return p, ""
}
