// Command main drives the client that oapi-codegen makes.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"

	"example.com/generated/oapi-codegen/client"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	key := ""
	c, err := client.NewClientWithResponses(os.Getenv("WAITLIST_URL"), client.WithRequestEditorFn(
		func(_ context.Context, r *http.Request) error {
			if key != "" {
				r.Header.Set("x-api-key", key)
			}
			return nil
		}))
	if err != nil {
		return err
	}
	account, err := c.RegisterWithResponse(ctx, client.RegisterJSONRequestBody{Email: "oapi@example.com", Password: "correct horse battery"})
	if err != nil || account.JSON201 == nil {
		return fmt.Errorf("register: %v %w", account, err)
	}
	key = account.JSON201.ApiKey
	waitlist, err := c.CreateWaitlistWithResponse(ctx, nil, client.CreateWaitlistJSONRequestBody{Name: "Launch"})
	if err != nil || waitlist.JSON201 == nil {
		return fmt.Errorf("create a waitlist: %v %w", waitlist, err)
	}
	id := waitlist.JSON201.WaitlistId
	all, err := c.ListWaitlistsWithResponse(ctx)
	if err != nil || all.JSON200 == nil || len(all.JSON200.Waitlists) != 1 {
		return fmt.Errorf("list waitlists: %v %w", all, err)
	}
	config, err := c.GetWaitlistConfigWithResponse(ctx, id)
	if err != nil || config.JSON200 == nil || config.JSON200.Status != "open" {
		return fmt.Errorf("config: %v %w", config, err)
	}
	join := func(email string, by *string) (*client.CreateSignupResponse, error) {
		return c.CreateSignupWithResponse(ctx, id, client.SignupInput{Email: email, ReferredByToken: by})
	}
	if _, err := join("early@example.com", nil); err != nil {
		return err
	}
	ann, err := join("ann@example.com", nil)
	if err != nil || ann.JSON201 == nil || *ann.JSON201.Position != 2 {
		return fmt.Errorf("ann: %v %w", ann, err)
	}
	if _, err := join("bob@example.com", &ann.JSON201.ReferralToken); err != nil {
		return err
	}
	status, err := c.GetSignupStatusWithResponse(ctx, id, "ann@example.com")
	if err != nil || status.JSON200 == nil || *status.JSON200.Position != 1 {
		return fmt.Errorf("status: %v %w", status, err)
	}
	var body client.ImportSignupsJSONRequestBody
	body.Signups = append(body.Signups, struct {
		Email     *string `json:"email,omitempty"`
		FirstName *string `json:"first_name,omitempty"`
		LastName  *string `json:"last_name,omitempty"`
		Phone     *string `json:"phone,omitempty"`
	}{Email: new("cem@example.com")})
	imported, err := c.ImportSignupsWithResponse(ctx, id, body)
	if err != nil || imported.JSON200 == nil || imported.JSON200.Imported != 1 {
		return fmt.Errorf("import: %v %w", imported, err)
	}
	var emails []string
	for params := (client.ListSignupsParams{Limit: new(1)}); ; {
		page, err := c.ListSignupsWithResponse(ctx, id, &params)
		if err != nil || page.JSON200 == nil {
			return fmt.Errorf("list signups: %v %w", page, err)
		}
		for _, s := range page.JSON200.Signups {
			emails = append(emails, s.Email)
		}
		if params.LastKey = page.JSON200.LastKey; params.LastKey == nil {
			break
		}
	}
	if !slices.Equal(emails, []string{"ann@example.com", "early@example.com", "bob@example.com", "cem@example.com"}) {
		return fmt.Errorf("pages: %v", emails)
	}
	csv, err := c.ExportSignupsWithResponse(ctx, id, nil)
	if err != nil || !strings.HasPrefix(string(csv.Body), "email,first_name") || strings.Count(string(csv.Body), "\r\n") != 5 {
		return fmt.Errorf("export: %v %w", csv, err)
	}
	nobody, err := c.GetSignupStatusWithResponse(ctx, id, "nobody@example.com")
	if err != nil || nobody.JSON404 == nil || nobody.JSON404.ErrorCode != "NOT_FOUND" || nobody.JSON404.RequestId == "" {
		return fmt.Errorf("404: %v %w", nobody, err)
	}
	invalid, err := join("nowhere", nil)
	if err != nil || invalid.JSON400 == nil || (*invalid.JSON400.Errors)[0].Field != "email" {
		return fmt.Errorf("400: %v %w", invalid, err)
	}
	return nil
}
