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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/seal"
	"waitlist.internal/services/messaging"
)

const (
	// releaseAgain is the pause after a failed release.
	releaseAgain = 5 * time.Minute
	// notificationKept is longer than a provider repeats notifications.
	notificationKept = 7 * 24 * time.Hour
)

// Domains implements messaging.DomainStore and messaging.Senders for the claims of one method.
type Domains struct {
	pool   *pgxpool.Pool
	seal   *seal.Ring
	method string
	from   stdmail.Address
}

// NewDomains returns Domains over a pool whose search path is Schema. Senders have the display name of
// from; ring seals the keys.
func NewDomains(pool *pgxpool.Pool, ring *seal.Ring, method string, from stdmail.Address) *Domains {
	return &Domains{pool: pool, seal: ring, method: method, from: from}
}

// keyPlace returns the place to which a domain's sealed key is bound.
func keyPlace(id string) string { return "domain/" + id + "/key" }

const domainColumns = "id, owner_id, name, state, since, created_at, records, external_id, registered, selector, key"

func (s *Domains) scan(row pgx.CollectableRow) (d messaging.Domain, err error) {
	var selector, sealed string
	if err := row.Scan(&d.ID, &d.OwnerID, &d.Name, &d.State, &d.Since, &d.CreatedAt,
		&d.Records, &d.ExternalID, &d.Registered, &selector, &sealed); err != nil {
		return d, err //nolint:wrapcheck // wrapped where it is used
	}
	if sealed != "" {
		d.Key, err = s.openKey(d.ID, d.Name, selector, sealed)
	}
	return d, err
}

func (s *Domains) openKey(id, name, selector, sealed string) (*messaging.DKIM, error) {
	der, err := s.seal.Open(sealed, keyPlace(id))
	if err != nil {
		return nil, fmt.Errorf("open the key of a domain: %w", err)
	}
	key, err := x509.ParsePKCS1PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("parse the key of a domain: %w", err)
	}
	return &messaging.DKIM{Domain: name, Selector: selector, Key: key}, nil
}

// InsertDomain implements messaging.DomainStore. By gone_pkey, tombstone_pkey and domain_claim.
func (s *Domains) InsertDomain(ctx context.Context, d messaging.Domain) (messaging.Domain, error) {
	records, err := json.Marshal(d.Records)
	if err != nil {
		return d, fmt.Errorf("encode the records of a domain: %w", err)
	}
	var selector, sealed string
	if d.Key != nil {
		selector, sealed = d.Key.Selector, s.seal.Seal(x509.MarshalPKCS1PrivateKey(d.Key.Key), keyPlace(d.ID))
	}
	inserted := false
	err = pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := holdOff(ctx, tx, d.OwnerID); err != nil {
			return err
		}
		var gone bool
		if err := tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM gone WHERE id = $1::uuid) OR EXISTS (SELECT FROM tombstone WHERE hash = sha256(uuid_send($1::uuid)))`,
			d.OwnerID).Scan(&gone); err != nil {
			return err
		}
		if gone {
			return apierr.New(apierr.AuthenticationRequired, "The account has been deleted.")
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO domain (id, method, owner_id, name, state, since, created_at, records, external_id, registered, selector, key)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (owner_id, method, name) DO NOTHING`,
			d.ID, s.method, d.OwnerID, d.Name, d.State, d.Since, d.CreatedAt, records, d.ExternalID, d.Registered, selector, sealed)
		inserted = tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return d, fmt.Errorf("insert domain: %w", err)
	}
	if !inserted {
		return s.Domain(ctx, d.OwnerID, d.Name)
	}
	return d, nil
}

// Domain implements messaging.DomainStore. By domain_claim.
func (s *Domains) Domain(ctx context.Context, ownerID, name string) (messaging.Domain, error) {
	rows, err := s.pool.Query(ctx, "SELECT "+domainColumns+" FROM domain WHERE owner_id = $1 AND method = $2 AND name = $3",
		ownerID, s.method, name)
	if err != nil {
		return messaging.Domain{}, fmt.Errorf("read a domain: %w", err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, s.scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return d, messaging.ErrNoDomain()
	}
	if err != nil {
		return d, fmt.Errorf("read a domain: %w", err)
	}
	return d, nil
}

// Domains implements messaging.DomainStore. By domain_claim: an owner has about a hundred at most.
func (s *Domains) Domains(ctx context.Context, ownerID string) ([]messaging.Domain, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT id, owner_id, name, state, since, created_at FROM domain WHERE owner_id = $1 AND method = $2 ORDER BY id`, ownerID, s.method)
	if err != nil {
		return nil, fmt.Errorf("list domains: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d messaging.Domain, err error) {
		err = row.Scan(&d.ID, &d.OwnerID, &d.Name, &d.State, &d.Since, &d.CreatedAt)
		return d, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("list domains: %w", err)
	}
	return list, nil
}

// Taken implements messaging.DomainStore. By domain_verified and gone_pkey: the claims of deleted
// accounts exist until the purge.
func (s *Domains) Taken(ctx context.Context, ownerID, name string) (taken bool, err error) {
	err = s.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM domain WHERE method = $1 AND name = $2 AND state = 'verified' AND owner_id <> $3
			AND NOT EXISTS (SELECT FROM gone WHERE id = owner_id))`, s.method, name, ownerID).Scan(&taken)
	if err != nil {
		return false, fmt.Errorf("read the owner of a domain: %w", err)
	}
	return taken, nil
}

// MoveDomain implements messaging.DomainStore. By domain_pkey.
func (s *Domains) MoveDomain(
	ctx context.Context, d messaging.Domain, to messaging.DomainState, now time.Time,
) (messaging.DomainState, error) {
	tag, err := s.pool.Exec(ctx, "UPDATE domain SET state = $2, since = $3 WHERE id = $1 AND state = $4", d.ID, to, now, d.State)
	if pg.IsUnique(err, "domain_verified") {
		return d.State, nil
	}
	if err != nil {
		return d.State, fmt.Errorf("change the state of a domain: %w", err)
	}
	if tag.RowsAffected() == 1 {
		return to, nil
	}
	// Another process changed the state first.
	present, err := s.Domain(ctx, d.OwnerID, d.Name)
	return present.State, err
}

// DeleteDomain implements messaging.DomainStore. By domain_claim and domain_external.
func (s *Domains) DeleteDomain(ctx context.Context, ownerID, name string, release func(externalID string) error) error {
	err := pg.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var id string
		err := tx.QueryRow(ctx, "SELECT id FROM domain WHERE owner_id = $1 AND method = $2 AND name = $3", ownerID, s.method, name).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return messaging.ErrNoDomain()
		}
		if err != nil {
			return err
		}
		external, err := removeDomain(ctx, tx, id)
		if err != nil || external == "" {
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
// if there is none or another claim takes the registration over. By domain_pkey and domain_external.
func removeDomain(ctx context.Context, tx pgx.Tx, id string) (string, error) {
	var external string
	var registered bool
	err := tx.QueryRow(ctx, "DELETE FROM domain WHERE id = $1 RETURNING external_id, registered", id).Scan(&external, &registered)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil || !registered {
		return "", err
	}
	tag, err := tx.Exec(ctx, `
		UPDATE domain SET registered = true WHERE id = (
			SELECT id FROM domain WHERE external_id = $1 AND external_id <> '' ORDER BY id LIMIT 1 FOR UPDATE)`, external)
	if err != nil || tag.RowsAffected() > 0 {
		return "", err
	}
	return external, nil
}

// purgeDomains deletes the claims of a deleted account one by one, and queues their domains for
// ReleaseDomains. By domain_claim.
func purgeDomains(ctx context.Context, pool *pgxpool.Pool, ownerID string) error {
	for {
		more := true
		err := pg.InTx(ctx, pool, func(tx pgx.Tx) error {
			var id, method string
			err := tx.QueryRow(ctx, "SELECT id, method FROM domain WHERE owner_id = $1 LIMIT 1 FOR UPDATE", ownerID).Scan(&id, &method)
			if errors.Is(err, pgx.ErrNoRows) {
				more = false
				return nil
			}
			if err != nil {
				return err
			}
			external, err := removeDomain(ctx, tx, id)
			if err != nil || external == "" {
				return err
			}
			_, err = tx.Exec(ctx, "INSERT INTO domain_release (external_id, method) VALUES ($1, $2) ON CONFLICT DO NOTHING", external, method)
			return err
		})
		if err != nil || !more {
			return err
		}
	}
}

// DueDomains implements messaging.DomainStore. By domain_due. If the process ends before it has checked
// a claim, the claim is checked when it is due again.
func (s *Domains) DueDomains(ctx context.Context, limit int, every time.Duration) ([]messaging.Domain, error) {
	rows, err := s.pool.Query(ctx, `
		UPDATE domain SET due_at = now() + $3::interval WHERE id = ANY (ARRAY(
			SELECT id FROM domain WHERE method = $1 AND state <> 'failed' AND due_at <= now()
			ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED))
		RETURNING `+domainColumns, s.method, limit, every)
	if err != nil {
		return nil, fmt.Errorf("claim due domains: %w", err)
	}
	list, err := pgx.CollectRows(rows, s.scan)
	if err != nil {
		return nil, fmt.Errorf("claim due domains: %w", err)
	}
	return list, nil
}

// ReleaseDomains implements messaging.DomainStore. By domain_release_due and domain_release_pkey.
func (s *Domains) ReleaseDomains(ctx context.Context, limit int, release func(externalID string) error) error {
	rows, err := s.pool.Query(ctx, `
		UPDATE domain_release SET due_at = now() + $3::interval WHERE external_id = ANY (ARRAY(
			SELECT external_id FROM domain_release WHERE method = $1 AND due_at <= now()
			ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED))
		RETURNING external_id`, s.method, limit, releaseAgain)
	if err != nil {
		return fmt.Errorf("claim domains to release: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("claim domains to release: %w", err)
	}
	for _, id := range ids {
		if err := release(id); err != nil {
			return fmt.Errorf("release a domain: %w", err)
		}
		if _, err := s.pool.Exec(ctx, "DELETE FROM domain_release WHERE external_id = $1", id); err != nil {
			return fmt.Errorf("delete a released domain: %w", err)
		}
	}
	return nil
}

// Sender implements messaging.Senders. By domain_claim.
func (s *Domains) Sender(ctx context.Context, ownerID string) (stdmail.Address, *messaging.DKIM, error) {
	rows, err := s.pool.Query(ctx, "SELECT "+domainColumns+` FROM domain
		WHERE owner_id = $1 AND method = $2 AND state = 'verified' ORDER BY id DESC LIMIT 1`, ownerID, s.method)
	if err != nil {
		return stdmail.Address{}, nil, fmt.Errorf("read the sender: %w", err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, s.scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return stdmail.Address{}, nil, nil
	}
	if err != nil {
		return stdmail.Address{}, nil, fmt.Errorf("read the sender: %w", err)
	}
	return stdmail.Address{Name: s.from.Name, Address: "no-reply@" + d.Name}, d.Key, nil
}

// addressHash returns the form in which suppressed addresses are stored.
func addressHash(email string) []byte {
	h := sha256.Sum256([]byte(email))
	return h[:]
}

// Suppressed implements messaging.Suppressions. By suppression_pkey.
func (m *Mails) Suppressed(ctx context.Context, emails []string) (map[string]bool, error) {
	hashes, byHash := make([][]byte, len(emails)), make(map[string]string, len(emails))
	for i, email := range emails {
		hashes[i] = addressHash(email)
		byHash[string(hashes[i])] = email
	}
	rows, err := m.pool.Query(ctx, "SELECT hash FROM suppression WHERE hash = ANY ($1)", hashes)
	if err != nil {
		return nil, fmt.Errorf("read suppressed addresses: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, fmt.Errorf("read suppressed addresses: %w", err)
	}
	out := make(map[string]bool, len(found))
	for _, h := range found {
		out[byHash[string(h)]] = true
	}
	return out, nil
}

// Suppress suppresses addresses, once per notification id. By notification_pkey and suppression_pkey.
func (m *Mails) Suppress(ctx context.Context, notificationID string, reason messaging.SuppressionReason, emails []string) error {
	hashes := make([][]byte, len(emails))
	for i, email := range emails {
		hashes[i] = addressHash(email)
	}
	_, err := m.pool.Exec(ctx, `
		WITH taken AS (INSERT INTO notification (id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING id)
		INSERT INTO suppression (hash, reason) SELECT DISTINCT h, $2::text FROM taken, unnest($3::bytea[]) h ON CONFLICT DO NOTHING`,
		notificationID, reason, hashes)
	if err != nil {
		return fmt.Errorf("suppress addresses: %w", err)
	}
	return nil
}
