// Command main drives the client that openapi-generator makes for Go.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"

	openapi "example.com/generated/go/client"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	cfg := openapi.NewConfiguration()
	cfg.Servers = openapi.ServerConfigurations{{URL: os.Getenv("WAITLIST_URL")}}
	c := openapi.NewAPIClient(cfg)
	account, _, err := c.AuthAPI.Register(ctx).
		RegisterRequest(*openapi.NewRegisterRequest("go@example.com", "correct horse battery")).Execute()
	if err != nil {
		return err
	}
	ctx = context.WithValue(ctx, openapi.ContextAPIKeys, map[string]openapi.APIKey{"apiKey": {Key: account.ApiKey}})
	waitlist, _, err := c.WaitlistsAPI.CreateWaitlist(ctx).CreateWaitlistRequest(*openapi.NewCreateWaitlistRequest("Launch")).Execute()
	if err != nil {
		return err
	}
	id := waitlist.WaitlistId
	all, _, err := c.WaitlistsAPI.ListWaitlists(ctx).Execute()
	if err != nil || len(all.Waitlists) != 1 {
		return fmt.Errorf("list waitlists: %v %w", all, err)
	}
	config, _, err := c.PublicAPI.GetWaitlistConfig(ctx, id).Execute()
	if err != nil || config.Status != "open" {
		return fmt.Errorf("config: %v %w", config, err)
	}
	join := func(email string, by *string) (*openapi.CreatedSignup, error) {
		in := openapi.NewSignupInput(email)
		if by != nil {
			in.SetReferredByToken(*by)
		}
		out, _, err := c.PublicAPI.CreateSignup(ctx, id).SignupInput(*in).Execute()
		return out, err
	}
	if _, err := join("early@example.com", nil); err != nil {
		return err
	}
	ann, err := join("ann@example.com", nil)
	if err != nil || ann.GetPosition() != 2 {
		return fmt.Errorf("ann: %v %w", ann, err)
	}
	if _, err := join("bob@example.com", &ann.ReferralToken); err != nil {
		return err
	}
	status, _, err := c.PublicAPI.GetSignupStatus(ctx, id, "ann@example.com").Execute()
	if err != nil || status.GetPosition() != 1 {
		return fmt.Errorf("status: %v %w", status, err)
	}
	rows := []openapi.ImportSignupsRequestSignupsInner{*openapi.NewImportSignupsRequestSignupsInner()}
	rows[0].SetEmail("cem@example.com")
	imported, _, err := c.AdminAPI.ImportSignups(ctx, id).ImportSignupsRequest(*openapi.NewImportSignupsRequest(rows)).Execute()
	if err != nil || imported.Imported != 1 {
		return fmt.Errorf("import: %v %w", imported, err)
	}
	var emails []string
	for next := ""; ; {
		call := c.AdminAPI.ListSignups(ctx, id).Limit(1)
		if next != "" {
			call = call.LastKey(next)
		}
		page, _, err := call.Execute()
		if err != nil {
			return err
		}
		for _, s := range page.Signups {
			emails = append(emails, s.Email)
		}
		key := page.LastKey.Get()
		if key == nil {
			break
		}
		next = *key
	}
	if !slices.Equal(emails, []string{"ann@example.com", "early@example.com", "bob@example.com", "cem@example.com"}) {
		return fmt.Errorf("pages: %v", emails)
	}
	csv, _, err := c.AdminAPI.ExportSignups(ctx, id).Execute()
	if err != nil || !strings.HasPrefix(csv, "email,first_name") || strings.Count(csv, "\r\n") != 5 {
		return fmt.Errorf("export: %q %w", csv, err)
	}
	_, _, err = c.PublicAPI.GetSignupStatus(ctx, id, "nobody@example.com").Execute()
	if e := refusal(err); e == nil || e.ErrorCode != "NOT_FOUND" || e.RequestId == "" || e.Error == "" {
		return fmt.Errorf("404: %v %w", e, err)
	}
	_, err = join("nowhere", nil)
	if e := refusal(err); e == nil || e.ErrorCode != "VALIDATION_ERROR" || e.Errors[0].Field != "email" {
		return fmt.Errorf("400: %v %w", e, err)
	}
	return nil
}

func refusal(err error) *openapi.Error {
	var generic *openapi.GenericOpenAPIError
	if !errors.As(err, &generic) {
		return nil
	}
	e, ok := generic.Model().(openapi.Error)
	if !ok {
		return nil
	}
	return &e
}
