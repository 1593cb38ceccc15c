package app

import (
	"errors"
	"fmt"
	"log/slog"
	stdmail "net/mail"
	"time"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/dns"
	"waitlist.internal/services/messaging/eml"
	messaginghttp "waitlist.internal/services/messaging/http"
	"waitlist.internal/services/messaging/maildir"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/resend"
	"waitlist.internal/services/messaging/smslog"
	"waitlist.internal/services/messaging/smtp"
	"waitlist.internal/services/messaging/twilio"
)

// sender returns the sender of mails that have no other.
func (c Config) sender() (stdmail.Address, error) {
	from := c.MailFrom
	if from == "" && c.MailProvider == "maildir" {
		from = "Waitlist <no-reply@localhost>"
	}
	sender, err := eml.ParseFrom(from)
	if err != nil {
		return sender, fmt.Errorf("MAIL_FROM: %w", err)
	}
	return sender, nil
}

// provider opens the configured mail provider.
func (c Config) provider(sender stdmail.Address) (messaging.Provider, error) {
	switch c.MailProvider {
	case "maildir":
		if c.MailDir == "" {
			return nil, errors.New("Set MAIL_DIR.") //nolint:staticcheck // an instruction
		}
		return maildir.New(c.MailDir, sender)
	case "smtp":
		return smtp.New(smtp.Config{
			Host: c.SMTPHost, Port: c.SMTPPort, Username: c.SMTPUsername, Password: c.SMTPPassword, TLS: c.SMTPTLS, From: sender,
			Connections: c.MailWorkers + c.BlastWorkers,
		})
	case "resend":
		return resend.New(resend.Config{APIKey: c.ResendAPIKey, BaseURL: c.ResendURL, From: sender})
	}
	return nil, errors.New("Set MAIL_PROVIDER to smtp, resend or maildir.") //nolint:staticcheck // an instruction
}

// sms returns the configured provider of text messages and a function that closes it.
func (c Config) sms(log *slog.Logger) (messaging.SMSProvider, func(), error) {
	switch c.SMSProvider {
	case "log":
		return smslog.Provider{Log: log}, func() {}, nil
	case "twilio":
		p, err := twilio.New(twilio.Config{
			AccountSID: c.TwilioAccountSID, AuthToken: c.TwilioAuthToken, From: c.TwilioFrom, BaseURL: c.TwilioURL,
		})
		if err != nil {
			return nil, nil, err //nolint:wrapcheck // the error names Twilio
		}
		return p, p.Close, nil
	}
	return nil, nil, errors.New("Set SMS_PROVIDER to twilio or log.") //nolint:staticcheck // an instruction
}

// domains opens the owners' sending domains. The mail provider decides how owners prove
// them.
func domains(
	rt *service.Runtime, cfg Config, provider messaging.Provider, from stdmail.Address,
) (*postgres.Domains, *messaging.Domains, error) {
	if cfg.DomainCheckEvery <= 0 {
		return nil, nil, errors.New("configuration: Set DOMAIN_CHECK_EVERY to a positive duration.") //nolint:staticcheck // an instruction
	}
	texts, err := dns.New(cfg.DNSResolver)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: DNS_RESOLVER: %w", err)
	}
	var prover messaging.Prover = messaging.Records{Texts: texts}
	if p, ok := provider.(*resend.Provider); ok {
		prover = resend.Domains{Provider: p, Texts: texts}
	}
	store := postgres.NewDomains(rt.Pool, rt.Seal, prover.Method(), from)
	owners := messaging.NewDomains(messaging.DomainsConfig{
		Store: store, Prover: prover, Own: emailaddr.Domain(from.Address), EnforceVerification: cfg.EnforceEmailVerification,
		Every: cfg.DomainCheckEvery, Log: rt.Log, Now: time.Now,
	})
	rt.Go("sending domains", owners.Run)
	return store, owners, nil
}

// notifications returns the receiver of the mail provider's notifications, or nil if no
// secret is set.
func (c Config) notifications(mails *postgres.Mails) (messaginghttp.Notifications, error) {
	if len(c.ResendWebhookSecrets) == 0 {
		return nil, nil //nolint:nilnil // nil means that none is configured
	}
	n, err := resend.NewNotifications(c.ResendWebhookSecrets, mails)
	if err != nil {
		return nil, fmt.Errorf("configuration: RESEND_WEBHOOK_SECRETS: %w", err)
	}
	return n, nil
}
