package account

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
)

// Page sizes of the audit trail.
const (
	trailDefault = 50
	trailMax     = 100
)

// own returns an entry of what an account did in its own trail.
func own(accountID, credential string, action audit.Action, target string) audit.Entry {
	return audit.Entry{
		OwnerID: accountID, Actor: accountID, Credential: credential, Role: access.Owner, Action: action, Target: target,
	}
}

// AuditTrail returns a page of the trail of the actor's own account, newest first, and the
// cursor of the next page, "" on the last one. limit, lastKey and action are query
// parameters as sent. The page is merged from all services. If one of them does not answer,
// AuditTrail fails, because a trail with gaps would look complete.
func (s *Service) AuditTrail(
	ctx context.Context, actor access.Actor, limit, lastKey, action string,
) (page []audit.Entry, next string, err error) {
	q := audit.Query{OwnerID: actor.AccountID, Action: audit.Action(action)}
	n := trailDefault
	var faults []apierr.Field
	if limit != "" {
		if n, err = strconv.Atoi(limit); err != nil || n < 1 || n > trailMax {
			faults = append(faults, apierr.Field{Field: "limit", Message: fmt.Sprintf("This must be an integer from 1 to %d.", trailMax)})
		}
	}
	if lastKey != "" {
		id, ok := decodeTrailCursor(lastKey)
		if !ok {
			faults = append(faults, apierr.Field{Field: "last_key", Message: "This is not the last_key of an earlier page."})
		}
		q.Before = id
	}
	if action != "" && !q.Action.Known() {
		faults = append(faults, apierr.Field{Field: "action", Message: "There is no such action."})
	}
	if len(faults) > 0 {
		return nil, "", apierr.Validation(faults...)
	}
	q.Limit = n + 1 // one more entry tells whether there is another page
	parts, errs := make([][]audit.Entry, len(s.Trails)), make([]error, len(s.Trails))
	var wg sync.WaitGroup
	for i, trail := range s.Trails {
		wg.Go(func() { parts[i], errs[i] = trail.Entries(ctx, q) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, "", fmt.Errorf("read a part of the audit trail: %w", err)
		}
	}
	page = slices.Concat(parts...)
	slices.SortFunc(page, func(a, b audit.Entry) int { return cmp.Compare(b.ID, a.ID) })
	if len(page) > n {
		page = page[:n]
		next, err = encodeTrailCursor(page[n-1].ID)
	}
	return page, next, err
}

const (
	// trailCursorVersion is the first byte of a cursor.
	trailCursorVersion = 1
	// trailCursorSize is the length of a cursor in bytes: version, entry and checksum.
	trailCursorSize = 1 + 16 + crc32.Size
)

// encodeTrailCursor returns the cursor behind an entry. The checksum detects damage. It is
// not a signature: a forged cursor shows nothing that other pages would not show.
func encodeTrailCursor(entryID string) (string, error) {
	id, err := uuid.Parse(entryID)
	if err != nil {
		return "", fmt.Errorf("parse an entry's id: %w", err)
	}
	b := append([]byte{trailCursorVersion}, id[:]...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// decodeTrailCursor is the inverse of encodeTrailCursor. ok is false for anything else.
func decodeTrailCursor(s string) (entryID string, ok bool) {
	// The decoder skips line breaks, so the length is checked as well.
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != trailCursorSize || len(s) != base64.RawURLEncoding.EncodedLen(trailCursorSize) {
		return "", false
	}
	b, sum := b[:trailCursorSize-crc32.Size], b[trailCursorSize-crc32.Size:]
	if b[0] != trailCursorVersion || crc32.ChecksumIEEE(b) != binary.BigEndian.Uint32(sum) {
		return "", false
	}
	return uuid.UUID(b[1:]).String(), true
}
