package signup_test

import (
	"testing"

	"waitlist.internal/services/signup"
)

func TestToldChannels(t *testing.T) {
	t.Parallel()
	all := signup.DefaultSettings()
	all.WebhookURL, all.SlackWebhookURL, all.DiscordWebhookURL = "w", "s", "d"
	with := func(events ...string) signup.Settings {
		s := all
		s.WebhookEvents = events
		return s
	}
	for _, tc := range []struct {
		name                    string
		settings                signup.Settings
		event                   string
		webhook, slack, discord bool
	}{
		{"nothing set", signup.DefaultSettings(), signup.EventSignupCreated, false, false, false},
		{"both by default", all, signup.EventSignupCreated, true, true, true},
		{"chats hear of signups alone", all, signup.EventReferralCredited, true, false, false},
		{"none chosen", with(), signup.EventSignupCreated, false, true, true},
		{"the other chosen", with(signup.EventReferralCredited), signup.EventSignupCreated, false, true, true},
		{"below Pro", all.Effective("advanced"), signup.EventSignupCreated, false, false, false},
		{"Pro", all.Effective("pro"), signup.EventSignupCreated, true, true, true},
	} {
		webhook, slack, discord := tc.settings.Told(tc.event)
		if webhook != tc.webhook || slack != tc.slack || discord != tc.discord {
			t.Errorf("%s: %t %t %t", tc.name, webhook, slack, discord)
		}
	}
}
