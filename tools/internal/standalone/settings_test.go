package standalone_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	account "waitlist.internal/services/account/app"
	admin "waitlist.internal/services/admin-analytics/app"
	billing "waitlist.internal/services/billing/app"
	messaging "waitlist.internal/services/messaging/app"
	notifier "waitlist.internal/services/notifier/app"
	signup "waitlist.internal/services/signup/app"
	"waitlist.internal/tools/internal/standalone"
)

// The README lists every setting that any service reads, with its default.
func TestTheReadmeListsEverySetting(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(readme)) {
		cells := strings.Split(line, "|")
		if len(cells) > 3 && strings.HasPrefix(cells[1], " `") {
			listed[strings.Trim(cells[1], " `")] = strings.Trim(cells[2], " `")
		}
	}
	// What make run sets itself, so that the service's own default is not the
	// one that counts.
	own := map[string]bool{
		"HTTP_ADDR": true, "MAIL_PROVIDER": true, "ACCOUNT_GRPC": true, "SIGNUP_GRPC": true, "MESSAGING_GRPC": true,
		"PUBLIC_FORM_URL": true,
	}
	for _, config := range []any{
		account.Config{}, admin.Config{}, billing.Config{}, messaging.Config{}, notifier.Config{}, signup.Config{}, standalone.Config{},
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(config)) {
			name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
			if name == "" || name == "-" {
				continue
			}
			shown, ok := listed[name]
			if def := field.Tag.Get("envDefault"); !ok {
				t.Errorf("%s of %T is not in the README", name, config)
			} else if def != "" && shown != def && !own[name] {
				t.Errorf("%s: the README says the default is %q, it is %q", name, shown, def)
			}
		}
	}
}
