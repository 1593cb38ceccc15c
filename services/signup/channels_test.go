package signup_test

import (
	"slices"
	"testing"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup"
)

func TestChannelsOfAnEvent(t *testing.T) {
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
		got := tc.settings.Channels(tc.event)
		for channel, want := range map[eventv1.Channel]bool{
			eventv1.Channel_CHANNEL_WEBHOOK: tc.webhook,
			eventv1.Channel_CHANNEL_SLACK:   tc.slack,
			eventv1.Channel_CHANNEL_DISCORD: tc.discord,
		} {
			if slices.Contains(got, channel) != want {
				t.Errorf("%s: %v, want %s %t", tc.name, got, channel, want)
			}
		}
	}
}
