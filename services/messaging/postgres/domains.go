package postgres

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	stdmail "net/mail"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/seal"
	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres/db"
)

const (
	// releaseAgain is the pause after a failed release.
	releaseAgain = 5 * time.Minute
	// notificationKept exceeds the time for which a provider repeats notifications.
	notificationKept = 7 * 24 * time.Hour
)

// Domains implements domains.Store and mails.Senders for the claims of one method.
type Domains struct {
	pool   *pgxpool.Pool
	db     *db.Queries
	seal   *seal.Ring
	method string
	from   stdmail.Address
}

// NewDomains returns Domains over a pool whose search path is the schema. Senders have the display name of
// from; ring seals the keys.
func NewDomains(pool *pgxpool.Pool, ring *seal.Ring, method string, from stdmail.Address) *Domains {
	return &Domains{pool: pool, db: db.New(pool), seal: ring, method: method, from: from}
}

// keyPlace returns the place to which a domain's sealed key is bound.
func keyPlace(id string) string { return "domain/" + id + "/key" }

// open converts a row, and opens its key.
func (s *Domains) open(row db.Domain) (domains.Domain, error) {
	d := domains.Domain{
		ID: row.ID, OwnerID: row.OwnerID, Name: row.Name, State: row.State, Since: row.Since, CreatedAt: row.CreatedAt,
		Claim: domains.Claim{ExternalID: row.ExternalID, Registered: row.Registered},
	}
	if err := json.Unmarshal(row.Records, &d.Records); err != nil {
		return d, fmt.Errorf("decode the records of a domain: %w", err)
	}
	if row.Key == "" {
		return d, nil
	}
	der, err := s.seal.Open(row.Key, keyPlace(row.ID))
	if err != nil {
		return d, fmt.Errorf("open the key of a domain: %w", err)
	}
	key, err := x509.ParsePKCS1PrivateKey(der)
	if err != nil {
		return d, fmt.Errorf("parse the key of a domain: %w", err)
	}
	d.Key = &domains.DKIM{Domain: row.Name, Selector: row.Selector, Key: key}
	return d, nil
}

// InsertDomain implements domains.Store.
func (s *Domains) InsertDomain(ctx context.Context, d domains.Domain, by audit.Entry) (domains.Domain, error) {
	records, err := json.Marshal(d.Records)
	if err != nil {
		return d, fmt.Errorf("encode the records of a domain: %w", err)
	}
	row := db.InsertDomainParams{
		ID: d.ID, Method: s.method, OwnerID: d.OwnerID, Name: d.Name, State: d.State, Since: d.Since, CreatedAt: d.CreatedAt,
		Records: records, ExternalID: d.ExternalID, Registered: d.Registered,
	}
	if d.Key != nil {
		row.Selector, row.Key = d.Key.Selector, s.seal.Seal(x509.MarshalPKCS1PrivateKey(d.Key.Key), keyPlace(d.ID))
	}
	var inserted int64
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := holdOff(ctx, tx, d.OwnerID); err != nil {
			return err
		}
		gone, err := s.db.WithTx(tx).OwnerGone(ctx, d.OwnerID)
		if err != nil {
			return err
		}
		if gone {
			return apierr.New(apierr.AuthenticationRequired, "This account has been deleted.")
		}
		if inserted, err = s.db.WithTx(tx).InsertDomain(ctx, row); err != nil || inserted == 0 {
			return err
		}
		return audit.Insert(ctx, tx, by.On(d.ID))
	})
	if err != nil {
		return d, fmt.Errorf("insert domain: %w", err)
	}
	if inserted == 0 {
		return s.Domain(ctx, d.OwnerID, d.Name)
	}
	return d, nil
}

// Domain implements domains.Store.
func (s *Domains) Domain(ctx context.Context, ownerID, name string) (domains.Domain, error) {
	row, err := s.db.GetDomain(ctx, db.GetDomainParams{OwnerID: ownerID, Method: s.method, Name: name})
	if errors.Is(err, pgx.ErrNoRows) {
		return domains.Domain{}, domains.ErrNotFound()
	}
	if err != nil {
		return domains.Domain{}, fmt.Errorf("read a domain: %w", err)
	}
	return s.open(row)
}

// Domains implements domains.Store.
func (s *Domains) Domains(ctx context.Context, ownerID string) ([]domains.Domain, error) {
	rows, err := s.db.ListDomains(ctx, ownerID, s.method)
	if err != nil {
		return nil, fmt.Errorf("list domains: %w", err)
	}
	list := make([]domains.Domain, len(rows))
	for i, r := range rows {
		list[i] = domains.Domain{ID: r.ID, OwnerID: r.OwnerID, Name: r.Name, State: r.State, Since: r.Since, CreatedAt: r.CreatedAt}
	}
	return list, nil
}

// Taken implements domains.Store.
func (s *Domains) Taken(ctx context.Context, ownerID, name string) (bool, error) {
	taken, err := s.db.DomainTaken(ctx, db.DomainTakenParams{Method: s.method, Name: name, OwnerID: ownerID})
	if err != nil {
		return false, fmt.Errorf("read the owner of a domain: %w", err)
	}
	return taken, nil
}

// MoveDomain implements domains.Store.
func (s *Domains) MoveDomain(
	ctx context.Context, d domains.Domain, to domains.State, now time.Time,
) (domains.State, error) {
	n, err := s.db.MoveDomain(ctx, db.MoveDomainParams{ID: d.ID, NewState: to, Since: now, OldState: d.State})
	if pg.IsUnique(err, "domain_verified") {
		return d.State, nil
	}
	if err != nil {
		return d.State, fmt.Errorf("change the state of a domain: %w", err)
	}
	if n == 1 {
		return to, nil
	}
	// Another process changed the state first.
	present, err := s.Domain(ctx, d.OwnerID, d.Name)
	return present.State, err
}

// DeleteDomain implements domains.Store.
func (s *Domains) DeleteDomain(
	ctx context.Context, ownerID, name string, by audit.Entry, release func(externalID string) error,
) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		q := s.db.WithTx(tx)
		d, err := q.GetDomain(ctx, db.GetDomainParams{OwnerID: ownerID, Method: s.method, Name: name})
		if errors.Is(err, pgx.ErrNoRows) {
			return domains.ErrNotFound()
		}
		if err != nil {
			return err
		}
		external, err := removeDomain(ctx, q, d.ID)
		if err != nil {
			return err
		}
		if err := audit.Insert(ctx, tx, by.On(d.ID)); err != nil || external == "" {
			return err
		}
		return release(external)
	})
	if err != nil {
		return fmt.Errorf("delete domain: %w", err)
	}
	return nil
}

// removeDomain deletes a claim. It returns the external id that the mail provider has to remove, or ""
// if there is none or another claim takes the registration over.
func removeDomain(ctx context.Context, q *db.Queries, id string) (string, error) {
	d, err := q.DeleteDomain(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil || !d.Registered {
		return "", err
	}
	n, err := q.TakeOverDomain(ctx, d.ExternalID)
	if err != nil || n > 0 {
		return "", err
	}
	return d.ExternalID, nil
}

// purgeDomains deletes the claims of a deleted account one by one, and queues their domains for
// ReleaseDomains.
func purgeDomains(ctx context.Context, pool *pgxpool.Pool, ownerID string) error {
	for {
		more := true
		err := pg.InTx(ctx, pool, func(tx pgx.Tx) error {
			q := db.New(tx)
			d, err := q.LockDomainOf(ctx, ownerID)
			if errors.Is(err, pgx.ErrNoRows) {
				more = false
				return nil
			}
			if err != nil {
				return err
			}
			external, err := removeDomain(ctx, q, d.ID)
			if err != nil || external == "" {
				return err
			}
			return q.QueueRelease(ctx, external, d.Method)
		})
		if err != nil || !more {
			return err
		}
	}
}

// DueDomains implements domains.Store. If the process ends before it has checked a claim, the claim
// is checked when it is due again.
func (s *Domains) DueDomains(ctx context.Context, limit int, every time.Duration) ([]domains.Domain, error) {
	rows, err := s.db.ClaimDueDomains(ctx, db.ClaimDueDomainsParams{
		Method: s.method, Most: int32(limit), Every: every,
	})
	if err != nil {
		return nil, fmt.Errorf("claim due domains: %w", err)
	}
	list := make([]domains.Domain, len(rows))
	for i, row := range rows {
		if list[i], err = s.open(row); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ReleaseDomains implements domains.Store.
func (s *Domains) ReleaseDomains(ctx context.Context, limit int, release func(externalID string) error) error {
	ids, err := s.db.ClaimReleases(ctx, db.ClaimReleasesParams{
		Method: s.method, Most: int32(limit), Every: releaseAgain,
	})
	if err != nil {
		return fmt.Errorf("claim domains to release: %w", err)
	}
	for _, id := range ids {
		if err := release(id); err != nil {
			return fmt.Errorf("release a domain: %w", err)
		}
		if err := s.db.DeleteRelease(ctx, id); err != nil {
			return fmt.Errorf("delete a released domain: %w", err)
		}
	}
	return nil
}

// Sender implements mails.Senders.
func (s *Domains) Sender(ctx context.Context, ownerID string) (stdmail.Address, *domains.DKIM, error) {
	row, err := s.db.SenderDomain(ctx, ownerID, s.method)
	if errors.Is(err, pgx.ErrNoRows) {
		return stdmail.Address{}, nil, nil
	}
	if err != nil {
		return stdmail.Address{}, nil, fmt.Errorf("read the sender: %w", err)
	}
	d, err := s.open(row)
	return stdmail.Address{Name: s.from.Name, Address: "no-reply@" + row.Name}, d.Key, err
}

// addressHash returns the form in which suppressed addresses are stored.
func addressHash(email string) []byte {
	h := sha256.Sum256([]byte(email))
	return h[:]
}

// Suppressed implements mails.Suppressions.
func (m *Mails) Suppressed(ctx context.Context, emails []string) (map[string]bool, error) {
	hashes, byHash := make([][]byte, len(emails)), make(map[string]string, len(emails))
	for i, email := range emails {
		hashes[i] = addressHash(email)
		byHash[string(hashes[i])] = email
	}
	found, err := m.db.Suppressed(ctx, hashes)
	if err != nil {
		return nil, fmt.Errorf("read suppressed addresses: %w", err)
	}
	out := make(map[string]bool, len(found))
	for _, h := range found {
		out[byHash[string(h)]] = true
	}
	return out, nil
}

// Suppress suppresses addresses, once per notification id.
func (m *Mails) Suppress(ctx context.Context, notificationID string, reason mails.SuppressionReason, emails []string) error {
	hashes := make([][]byte, len(emails))
	for i, email := range emails {
		hashes[i] = addressHash(email)
	}
	err := m.db.Suppress(ctx, db.SuppressParams{NotificationID: notificationID, Reason: string(reason), Hashes: hashes})
	if err != nil {
		return fmt.Errorf("suppress addresses: %w", err)
	}
	return nil
}

// ResealDomains puts the keys of all domains under the first key of ring and returns how
// many were under another one. The error names the domains whose key no key of ring opens.
func ResealDomains(ctx context.Context, pool *pgxpool.Pool, ring *seal.Ring) (n int, err error) {
	const page = 200
	q := db.New(pool)
	var failed []error
	for after := uuid.Nil.String(); ; {
		rows, err := q.ListSealed(ctx, after, page)
		if err != nil {
			return n, fmt.Errorf("list domains: %w", err)
		}
		for _, row := range rows {
			after = row.ID
			sealed, err := ring.Renew(row.Key, keyPlace(row.ID))
			if err != nil {
				failed = append(failed, fmt.Errorf("domain %s: %w", row.ID, err))
				continue
			}
			if sealed == row.Key {
				continue
			}
			if _, err := q.ReplaceKey(ctx, db.ReplaceKeyParams{Key: sealed, ID: row.ID, Former: row.Key}); err != nil {
				return n, fmt.Errorf("store the key of a domain: %w", err)
			}
			n++
		}
		if len(rows) < page {
			return n, errors.Join(failed...)
		}
	}
}
