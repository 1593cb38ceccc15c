package app_test

import (
	"strings"
	"testing"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/pages/app"
)

// TestAddresses: the service does not start with an address at which it could not be reached, and says which setting is wrong.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{
		"PUBLIC_FORM_URL=https://example.com/forms", "PUBLIC_FORM_URL=example.com", "PAGES_API_URL=ftp://example.com/v1",
	} {
		cfg, err := service.Load[app.Config]([]string{setting})
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(setting, "=")
		if _, err := app.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}
