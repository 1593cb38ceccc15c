package twilio_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/twilio"
	"waitlist.internal/services/messaging/providers/twiliotest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	sid, token = "AC0123456789abcdef", "the auth token"
	number     = "+4915112345678"
)

func start(t *testing.T, change func(*twilio.Config)) (*twiliotest.Server, *twilio.Provider) {
	t.Helper()
	s := &twiliotest.Server{AccountSID: sid, AuthToken: token}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	cfg := twilio.Config{AccountSID: sid, AuthToken: token, From: "+12025550123", BaseURL: h.URL}
	if change != nil {
		change(&cfg)
	}
	p, err := twilio.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return s, p
}

func outcome(err error) string {
	if err == nil {
		return "taken"
	}
	if _, ok := errors.AsType[*mails.RefusedError](err); ok {
		return "refused"
	}
	if _, ok := errors.AsType[*mails.DeferredError](err); ok {
		return "deferred"
	}
	if _, ok := errors.AsType[*mails.DoubtfulError](err); ok {
		return "doubtful"
	}
	return "away"
}

func TestMessagesArrive(t *testing.T) {
	for _, from := range []string{"+12025550123", "Waitlist", "MG0123456789abcdef"} {
		s, p := start(t, func(c *twilio.Config) { c.From = from })
		if err := p.SendSMS(t.Context(), mails.SMS{ID: "1", To: number, Text: "Grüße & more: https://a.example/?x=1&y=%20"}); err != nil {
			t.Fatal(err)
		}
		// A long text is cut between characters.
		if err := p.SendSMS(t.Context(), mails.SMS{ID: "2", To: number, Text: strings.Repeat("x", 1599) + "😀" + "y"}); err != nil {
			t.Fatal(err)
		}
		got := s.Messages()
		service := strings.HasPrefix(from, "MG")
		if len(got) != 2 || got[0].To != number || got[0].Body != "Grüße & more: https://a.example/?x=1&y=%20" ||
			(got[0].Service == from) != service || (got[0].From == from) == service || got[1].Body != strings.Repeat("x", 1599) {
			t.Errorf("%+v", got)
		}
	}
}

func TestWhatGoesWrong(t *testing.T) {
	s, p := start(t, nil)
	for _, to := range []string{"", "49151123", "+0123456789", "+49 151 12345678", number + "\r\n", "+49151123456789012", "+491510000"} {
		if err := p.SendSMS(t.Context(), mails.SMS{To: to, Text: "x"}); outcome(err) != "refused" {
			t.Errorf("%q: %v", to, err)
		}
	}
	for _, tc := range []struct {
		twiliotest.Failure
		want string
	}{
		{twiliotest.Failure{Status: 400, Code: 21211}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21214}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21217}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21602}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21610}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21612}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21614}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21617}, "refused"},
		{twiliotest.Failure{Status: 400, Code: 21606}, "doubtful"}, // our sender is none of the account
		{twiliotest.Failure{Status: 400, Code: 21408}, "doubtful"}, // our account may not send to this country
		{twiliotest.Failure{Status: 400}, "doubtful"},
		{twiliotest.Failure{Status: 401, Code: 20003}, "away"},
		{twiliotest.Failure{Status: 403, Code: 20005}, "away"},
		{twiliotest.Failure{Status: 404, Code: 20404}, "away"},
		{twiliotest.Failure{Status: 405, Code: 20004}, "away"},
		{twiliotest.Failure{Status: 408}, "away"},
		{twiliotest.Failure{Status: 429, Code: 20429}, "away"},
		{twiliotest.Failure{Status: 500}, "away"},
		{twiliotest.Failure{Status: 503, After: true}, "away"},
		{twiliotest.Failure{Status: 302}, "away"},
	} {
		s.Fail = func() *twiliotest.Failure { return &tc.Failure }
		err := p.SendSMS(t.Context(), mails.SMS{To: number, Text: "x"})
		if outcome(err) != tc.want || strings.Contains(err.Error(), number) || strings.Contains(err.Error(), token) {
			t.Errorf("%d, code %d: %s (%v), want %s", tc.Status, tc.Code, outcome(err), err, tc.want)
		}
	}
	_, p = start(t, func(c *twilio.Config) { c.AuthToken = "another" })
	if err := p.SendSMS(t.Context(), mails.SMS{To: number, Text: "x"}); outcome(err) != "away" {
		t.Error(err)
	}
	_, p = start(t, func(c *twilio.Config) { c.BaseURL = "http://127.0.0.1:1" })
	if err := p.SendSMS(t.Context(), mails.SMS{To: number, Text: "x"}); outcome(err) != "away" || strings.Contains(err.Error(), token) {
		t.Error(err)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for _, cfg := range []twilio.Config{
		{},
		{AccountSID: sid, AuthToken: token},
		{AccountSID: sid, From: "x"},
		{AccountSID: sid, AuthToken: token, From: "x", BaseURL: "api.twilio.com"},
	} {
		if _, err := twilio.New(cfg); err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
