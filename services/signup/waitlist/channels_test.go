package waitlist_test

import (
	"slices"
	"testing"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/waitlist"
)

func TestChannelsOfAnEvent(t *testing.T) {
	t.Parallel()
	all := waitlist.DefaultSettings()
	all.WebhookURL, all.SlackWebhookURL, all.DiscordWebhookURL = "w", "s", "d"
	with := func(events ...string) waitlist.Settings {
		s := all
		s.WebhookEvents = events
		return s
	}
	for _, tc := range []struct {
		name                    string
		settings                waitlist.Settings
		event                   string
		webhook, slack, discord bool
	}{
		{"nothing set", waitlist.DefaultSettings(), waitlist.EventSignupCreated, false, false, false},
		{"both by default", all, waitlist.EventSignupCreated, true, true, true},
		{"chats hear of signups alone", all, waitlist.EventReferralCredited, true, false, false},
		{"none chosen", with(), waitlist.EventSignupCreated, false, true, true},
		{"the other chosen", with(waitlist.EventReferralCredited), waitlist.EventSignupCreated, false, true, true},
		{"below Pro", all.Effective("advanced"), waitlist.EventSignupCreated, false, false, false},
		{"Pro", all.Effective("pro"), waitlist.EventSignupCreated, true, true, true},
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
