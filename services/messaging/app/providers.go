package app

import (
	"cmp"
	"errors"
	"fmt"
	stdmail "net/mail"
	"strings"
	"time"

	"waitlist.internal/libs/emailaddr"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/token"
	"waitlist.internal/services/messaging/domains"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/providers/dns"
	"waitlist.internal/services/messaging/providers/eml"
	"waitlist.internal/services/messaging/providers/maildir"
	"waitlist.internal/services/messaging/providers/resend"
	"waitlist.internal/services/messaging/providers/smtp"
	"waitlist.internal/services/messaging/providers/twilio"
)

// opened holds what open makes from the settings that only messaging has.
type opened struct {
	from     stdmail.Address
	provider mails.Provider
	twilio   *twilio.Provider
	resolver *dns.Resolver
}

// open checks the settings of mails, text messages and links. It returns all problems.
// The caller closes the provider if it is not nil.
func (c Config) open() (in opened, problems []error) {
	add := func(err error) bool {
		if err != nil {
			problems = append(problems, err)
		}
		return err == nil
	}
	var err error
	in.from, err = c.sender()
	add(err)
	if provider, err := c.provider(in.from); add(err) {
		in.provider = provider
	}
	in.twilio, err = c.texts()
	add(err)
	if in.resolver, err = dns.New(c.DNSResolver); err != nil {
		add(fmt.Errorf("DNS_RESOLVER: %w", err))
	}
	// These two are checked here and made when the token keys and the store are open.
	_, err = c.composer(nil, nil)
	add(err)
	_, err = c.notifications(nil)
	add(err)
	return in, problems
}

// sender returns the default sender of mails.
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
func (c Config) provider(sender stdmail.Address) (mails.Provider, error) {
	switch c.MailProvider {
	case "maildir":
		if c.MailDir == "" {
			return nil, errors.New("Set MAIL_DIR.") //nolint:staticcheck // an instruction
		}
		return maildir.New(c.MailDir, sender)
	case "smtp":
		return smtp.New(smtp.Config{
			Host: c.SMTPHost, Port: c.SMTPPort, Username: c.SMTPUsername, Password: c.SMTPPassword, TLS: c.SMTPTLS, From: sender,
			Hello: c.SMTPHello, Connections: 2 * c.MailWorkers,
		})
	case "resend":
		return resend.New(resend.Config{APIKey: c.ResendAPIKey, BaseURL: c.ResendURL, From: sender})
	}
	return nil, errors.New("Set MAIL_PROVIDER to smtp, resend or maildir.") //nolint:staticcheck // an instruction
}

// texts returns the configured provider of text messages, or nil if they are only logged.
func (c Config) texts() (*twilio.Provider, error) {
	switch c.SMSProvider {
	case "log":
		return nil, nil // nil means that none is configured
	case "twilio":
		return twilio.New(twilio.Config{
			AccountSID: c.TwilioAccountSID, AuthToken: c.TwilioAuthToken, From: c.TwilioFrom, BaseURL: c.TwilioURL,
		})
	}
	return nil, errors.New("Set SMS_PROVIDER to twilio or log.") //nolint:staticcheck // an instruction
}

// composer returns the composer of mails, which signs links with two rings.
func (c Config) composer(signups, accounts *token.Ring) (*mails.Composer, error) {
	return mails.NewComposer(signups, accounts, c.PublicFormURL, cmp.Or(c.PublicAPIURL, strings.TrimRight(c.PublicFormURL, "/")+"/v1"))
}

// providerSetups is how many domains the mail provider sets up for us at a time.
const providerSetups = 16

// domains opens the owners' sending domains. The mail provider decides how owners prove
// them.
func openDomains(rt *service.Runtime, cfg Config, in opened) (*postgres.Domains, *domains.Service) {
	rt.Telemetry.Registerer.MustRegister(in.resolver.Metrics())
	var prover domains.Prover = domains.Records{Texts: in.resolver}
	setups := 1
	if p, ok := in.provider.(*resend.Provider); ok {
		prover, setups = resend.Domains{Provider: p, Texts: in.resolver}, providerSetups
	}
	store := postgres.NewDomains(rt.Pool, rt.Seal, prover.Method(), in.from)
	owners := domains.New(domains.Config{
		Store: store, Prover: prover, Setups: setups, Own: emailaddr.Domain(in.from.Address), EnforceVerification: cfg.EnforceEmailVerification,
		Every: domainCheckEvery, Log: rt.Log, Now: time.Now,
	})
	rt.Singleton("sending domains", owners.Run)
	return store, owners
}

// notifications returns the receiver of the mail provider's notifications, or nil if no
// secret is set.
func (c Config) notifications(mails *postgres.Mails) (*resend.Notifications, error) {
	if len(c.ResendWebhookSecrets) == 0 {
		return nil, nil // nil means that none is configured
	}
	n, err := resend.NewNotifications(c.ResendWebhookSecrets, mails)
	if err != nil {
		return nil, fmt.Errorf("RESEND_WEBHOOK_SECRETS: %w", err)
	}
	return n, nil
}
