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

// sender is in whose name mails go out that have no other.
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
			return nil, errors.New("MAIL_DIR is required")
		}
		return maildir.New(c.MailDir, sender)
	case "smtp":
		return smtp.New(smtp.Config{
			Host: c.SMTPHost, Port: c.SMTPPort, Username: c.SMTPUsername, Password: c.SMTPPassword, TLS: c.SMTPTLS, From: sender, Connections: c.MailWorkers + c.BlastWorkers,
		})
	case "resend":
		return resend.New(resend.Config{APIKey: c.ResendAPIKey, BaseURL: c.ResendURL, From: sender})
	}
	return nil, errors.New("MAIL_PROVIDER must be smtp, resend or maildir")
}

// sms returns the configured provider of text messages, and what ends it.
func (c Config) sms(log *slog.Logger) (messaging.SMSProvider, func(), error) {
	switch c.SMSProvider {
	case "log":
		return smslog.Provider{Log: log}, func() {}, nil
	case "twilio":
		p, err := twilio.New(twilio.Config{AccountSID: c.TwilioAccountSID, AuthToken: c.TwilioAuthToken, From: c.TwilioFrom, BaseURL: c.TwilioURL})
		if err != nil {
			return nil, nil, err //nolint:wrapcheck // it says whose it is
		}
		return p, p.Close, nil
	}
	return nil, nil, errors.New("SMS_PROVIDER must be twilio or log")
}

// domains are the owners' sending domains, as the mail provider has them proven.
func domains(rt *service.Runtime, cfg Config, provider messaging.Provider, from stdmail.Address) (*postgres.Domains, *messaging.Domains, error) {
	if cfg.DomainCheckEvery <= 0 {
		return nil, nil, errors.New("configuration: DOMAIN_CHECK_EVERY must be above 0")
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

// notifications is the intake of the mail provider's, nil without a secret.
func (c Config) notifications(mails *postgres.Mails) (messaginghttp.Notifications, error) {
	if len(c.ResendWebhookSecrets) == 0 {
		return nil, nil //nolint:nilnil // none is configured
	}
	n, err := resend.NewNotifications(c.ResendWebhookSecrets, mails)
	if err != nil {
		return nil, fmt.Errorf("configuration: RESEND_WEBHOOK_SECRETS: %w", err)
	}
	return n, nil
}
