package smtp_test

import (
	"testing"

	gosmtp "github.com/emersion/go-smtp"

	"waitlist.internal/services/messaging/providers/providertest"
	"waitlist.internal/services/messaging/providers/smtp"
)

func TestProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Fixture {
		t.Helper()
		s := start(t, mode{starttls: true, auth: true})
		p := provider(t, s, func(c *smtp.Config) {
			c.TLS, c.Username, c.Password, c.From = smtp.StartTLS, user, password, providertest.From
		})
		return providertest.Fixture{
			Provider: p, Secrets: []string{password},
			Fail: func(f providertest.Failure) bool {
				replies := map[providertest.Failure]*gosmtp.SMTPError{
					providertest.Refuse:      {Code: 550, EnhancedCode: gosmtp.EnhancedCode{5, 1, 1}, Message: "no o'hara+x@example.org here"},
					providertest.Busy:        {Code: 451, EnhancedCode: gosmtp.EnhancedCode{4, 3, 0}, Message: "later, o'hara+x@example.org"},
					providertest.Credentials: {Code: 530, EnhancedCode: gosmtp.EnhancedCode{5, 7, 0}, Message: "who is that"},
				}
				reply, ok := replies[f]
				s.mu.Lock()
				defer s.mu.Unlock()
				s.reply, s.lose = nil, f == providertest.Lost
				if ok {
					s.reply = func(step string) error {
						if step == "rcpt" {
							return reply
						}
						return nil
					}
				}
				return true
			},
			Received: func() []providertest.Received {
				s.mu.Lock()
				defer s.mu.Unlock()
				var out []providertest.Received
				for _, raw := range s.mails {
					r, err := providertest.Parse(raw)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, r)
				}
				return out
			},
		}
	})
}
