package resend

import (
	"context"
	"errors"
	"net/http"
	"strings"

	api "github.com/resend/resend-go/v3"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/services/messaging/domains"
)

const (
	// verified is Resend's status for a domain whose records it has found.
	verified = "verified"
	// recordTTL replaces Resend's "Auto", in seconds.
	recordTTL = 3600
	// pageSize is the number of domains per page of the list.
	pageSize = 100
)

// Domains verifies domains through Resend, which signs their mails. All our accounts share one Resend
// account, in which a domain exists once, so each claim also has its own ownership record. Domains
// implements domains.Prover.
type Domains struct {
	Provider *Provider
	Texts    domains.Texts
}

// Method implements domains.Prover.
func (Domains) Method() string { return "resend" }

// Begin implements domains.Prover. Claims on the same domain share its registration with Resend.
func (d Domains) Begin(ctx context.Context, domain string) (domains.Claim, error) {
	created, err := call(ctx, func(ctx context.Context) (api.CreateDomainResponse, error) {
		return d.Provider.api.Domains.CreateWithContext(ctx, &api.CreateDomainRequest{Name: domain})
	})
	if err == nil {
		return claim(domain, created.Id, created.Records, true), nil
	}
	if refused(err) {
		known, lookup := d.known(ctx, domain)
		if lookup != nil {
			return domains.Claim{}, away(lookup)
		}
		if known.Id != "" {
			return claim(domain, known.Id, known.Records, false), nil
		}
		field := apierr.Field{Field: "domain", Message: "The mail provider does not accept this domain."}
		return domains.Claim{}, apierr.Validation(field).WithCause(err)
	}
	return domains.Claim{}, away(err)
}

// known returns the domain that is registered with Resend under a name, or a zero value.
func (d Domains) known(ctx context.Context, name string) (api.Domain, error) {
	limit, after := pageSize, (*string)(nil)
	for {
		page, err := call(ctx, func(ctx context.Context) (api.ListDomainsResponse, error) {
			return d.Provider.api.Domains.ListWithOptions(ctx, &api.ListOptions{Limit: &limit, After: after})
		})
		if err != nil {
			return api.Domain{}, err
		}
		for _, found := range page.Data {
			if strings.EqualFold(found.Name, name) {
				return d.get(ctx, found.Id) // the list does not contain records
			}
		}
		if !page.HasMore || len(page.Data) == 0 {
			return api.Domain{}, nil
		}
		after = &page.Data[len(page.Data)-1].Id
	}
}

func (d Domains) get(ctx context.Context, id string) (api.Domain, error) {
	return call(ctx, func(ctx context.Context) (api.Domain, error) { return d.Provider.api.Domains.GetWithContext(ctx, id) })
}

// claim returns the records for the owner to publish: our ownership record, and Resend's, whose names are
// relative to the domain.
func claim(domain, id string, records []api.Record, registered bool) domains.Claim {
	c := domains.Claim{ExternalID: id, Registered: registered, Records: []domains.Record{domains.OwnershipRecord(domain)}}
	for _, r := range records {
		value := r.Value
		if p := r.Priority.String(); r.Type == "MX" && p != "" {
			value = p + " " + value
		}
		name := r.Name
		if name != domain && !strings.HasSuffix(name, "."+domain) {
			name = strings.TrimPrefix(name+"."+domain, ".")
		}
		c.Records = append(c.Records, domains.Record{
			Type: r.Type, Name: name, Value: value, Purpose: r.Record + ": required by the mail provider", TTL: recordTTL,
		})
	}
	return c
}

// Proven implements domains.Prover.
func (d Domains) Proven(ctx context.Context, claimed domains.Domain) (bool, error) {
	ours, err := domains.Published(ctx, d.Texts, claimed.Records)
	if err != nil || !ours {
		return false, err
	}
	found, err := d.get(ctx, claimed.ExternalID)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, away(err)
	}
	if found.Status != verified {
		// Resend checks the records only on request, and then for some days.
		if _, err := call(ctx, func(ctx context.Context) (bool, error) {
			return d.Provider.api.Domains.VerifyWithContext(ctx, claimed.ExternalID)
		}); err != nil && !gone(err) {
			return false, away(err)
		}
	}
	return found.Status == verified, nil
}

// Release implements domains.Prover.
func (d Domains) Release(ctx context.Context, externalID string) error {
	if externalID == "" {
		return nil
	}
	_, err := call(ctx, func(ctx context.Context) (bool, error) {
		return d.Provider.api.Domains.RemoveWithContext(ctx, externalID)
	})
	if err == nil || gone(err) {
		return nil
	}
	return away(err)
}

// gone reports whether err means that Resend does not know the domain.
func gone(err error) bool {
	e, ok := errors.AsType[*apiError](err)
	return ok && e.status == http.StatusNotFound && e.name == "not_found"
}

// away is the error for a failed call to Resend.
func away(err error) error {
	return apierr.New(apierr.ExternalServiceError, "The mail provider is not available. Try again later.").WithCause(err)
}
