// Package app wires the messaging service.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"waitlist.internal/libs/claims"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/grpc"
	messaginghttp "waitlist.internal/services/messaging/http"
	messagingkafka "waitlist.internal/services/messaging/kafka"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/providers/smslog"
	"waitlist.internal/services/messaging/templates"
)

// Config is the service's environment.
type Config struct {
	service.Config

	// smtp, resend or maildir.
	MailProvider string `env:"MAIL_PROVIDER" envDefault:"smtp" run:"maildir"`
	// Folder of maildir: one `.eml` file per mail.
	MailDir string `env:"MAIL_DIR" run:"DATA_DIR/mail"`
	// Sender: `Name <address>` or an address. Required for smtp and resend.
	MailFrom string `env:"MAIL_FROM" run:"Waitlist <no-reply@localhost>" deployed:"required"`
	// Host of the mail server.
	SMTPHost string `env:"SMTP_HOST"`
	// Port of the mail server.
	SMTPPort int `env:"SMTP_PORT" envDefault:"587"`
	// Our name in EHLO. Empty: the domain of MAIL_FROM.
	SMTPHello string `env:"SMTP_HELLO"`
	// User name at the mail server. Empty: no login.
	SMTPUsername string `env:"SMTP_USERNAME"`
	// Password at the mail server.
	SMTPPassword string `env:"SMTP_PASSWORD"`
	// starttls, tls or none.
	SMTPTLS string `env:"SMTP_TLS" envDefault:"starttls"`
	// Mails sent at a time, as many text messages, and as many mails of blasts (or requests of several).
	MailWorkers int `env:"MAIL_WORKERS" envDefault:"4"`

	// Mails of blasts a second, over all processes. 0: no limit.
	BlastRate float64 `env:"BLAST_RATE" envDefault:"0"`
	// Blasts and mails about signups that an owner may send in 24 hours. Beyond it blasts get 429, and others are not sent.
	// 0: no limit.
	MailDailyCap int64 `env:"MAIL_DAILY_CAP" envDefault:"0"`
	// The same for an owner on trial. 0: MAIL_DAILY_CAP applies.
	BlastDailyCapTrial int64 `env:"BLAST_DAILY_CAP_TRIAL" envDefault:"0"`
	// Blasts and mails about signups that one person may get in 24 hours, from all owners. 0: no limit.
	MailDailyCapRecipient int64 `env:"MAIL_DAILY_CAP_RECIPIENT" envDefault:"0"`
	// Verifications of accounts or signups, links and invitations that one person may get in 24 hours, of each kind. 0: no
	// limit.
	AskDailyCapRecipient int64 `env:"ASK_DAILY_CAP_RECIPIENT" envDefault:"0"`
	// Templates that an account can have; beyond it 409. 0: no bound.
	MaxTemplates int64 `env:"MAX_TEMPLATES" envDefault:"0" deployed:"200"`
	// Blasts that the waitlists of an account can have, ended ones included; beyond it 409. 0: no bound.
	MaxBlasts int64 `env:"MAX_BLASTS" envDefault:"0" deployed:"10000"`

	// Key of Resend's API. Required for resend.
	ResendAPIKey string `env:"RESEND_API_KEY"`
	// Replaces the address of Resend's API.
	ResendURL string `env:"RESEND_URL"`
	// Secrets that sign Resend's notifications of bounces and complaints: two while one replaces the other. None:
	// notifications are refused.
	ResendWebhookSecrets []string `env:"RESEND_WEBHOOK_SECRETS"`

	// twilio, or log, which sends nothing.
	SMSProvider string `env:"SMS_PROVIDER" envDefault:"log"`
	// SID of the account at Twilio.
	TwilioAccountSID string `env:"TWILIO_ACCOUNT_SID"`
	// Token of the account at Twilio.
	TwilioAuthToken string `env:"TWILIO_AUTH_TOKEN"`
	// Sender of text messages: a number, a name or the SID of a messaging service.
	TwilioFrom string `env:"TWILIO_FROM"`
	// Replaces the address of Twilio's API.
	TwilioURL string `env:"TWILIO_URL"`
	// Countries to which text messages go through twilio: `DE,US`. None: nothing goes out.
	SMSCountries []string `env:"SMS_COUNTRIES"`
	// Whether owners on trial may send text messages through twilio.
	SMSTrials bool `env:"SMS_TRIALS" envDefault:"false"`
	// Text messages through twilio that an owner may send in 24 hours. 0: no limit.
	SMSDailyCap int64 `env:"SMS_DAILY_CAP" envDefault:"0"`
	// The same for all numbers that differ only in their last four digits, from all owners.
	SMSDailyCapPrefix int64 `env:"SMS_DAILY_CAP_PREFIX" envDefault:"0"`

	// `host:port` of the resolver for sending domains. Empty: the machine's.
	DNSResolver string `env:"DNS_RESOLVER"`

	// BlastLease is how long a batch stays with a process that no longer renews it. Only
	// code can set it; 0 means the default.
	BlastLease time.Duration `env:"-"`

	// Your site, which has the pages that links in mails lead to.
	PublicFormURL string `env:"PUBLIC_FORM_URL" envDefault:"http://127.0.0.1:8080" run:"the standalone's" deployed:"required"`
	// The API as people reach it, with `/v1`. Empty: PUBLIC_FORM_URL + `/v1`.
	PublicAPIURL string `env:"PUBLIC_API_URL"`
}

func definition() service.Definition {
	return service.Definition{
		Name: messaging.Name, Migrations: postgres.Migrations,
		Options: service.Options{HTTP: true, GRPC: true, Calls: true, Kafka: true, Tokens: true, AccountTokens: true, Seal: true},
	}
}

// Migrate brings the schema and the topics up to date; see service.Migrate.
func Migrate(ctx context.Context, cfg service.Config) error { return definition().Migrate(ctx, cfg) }

// App is the service.
type App = service.Runtime

// domainCheckEvery is the pause between two look-ups of a sending domain's records.
const domainCheckEvery = 10 * time.Minute

// otherConns is how many connections the default pool has in addition to one for each
// worker that sends mails or blasts.
const otherConns = 8

// New opens the service's connections and registers its routes.
func New(ctx context.Context, cfg Config) (_ *App, err error) {
	in, problems := cfg.open()
	if cfg.MailWorkers < 1 {
		problems = append(problems, errors.New("Set MAIL_WORKERS to 1 or more.")) //nolint:staticcheck // an instruction
	}
	if cfg.BlastRate < 0 {
		problems = append(problems, errors.New("Set BLAST_RATE to 0 or more.")) //nolint:staticcheck // an instruction
	}
	problems = append(problems, cfg.limitProblems()...)
	if cfg.MaxTemplates < 0 || cfg.MaxBlasts < 0 {
		//nolint:staticcheck // an instruction
		problems = append(problems, errors.New("Set MAX_TEMPLATES and MAX_BLASTS to 0 or more."))
	}
	cfg.PostgresMaxConns = cmp.Or(cfg.PostgresMaxConns, 2*int32(cfg.MailWorkers)+otherConns)
	wired := false
	defer func() {
		if !wired && in.provider != nil {
			err = errors.Join(err, in.provider.Close())
		}
	}()
	return definition().Open(ctx, cfg.Config, problems, func(rt *service.Runtime) error {
		wired = true
		rt.OnClose("mail provider", func(context.Context) error { return in.provider.Close() })
		composer, err := cfg.composer(rt.Tokens, rt.AccountTokens)
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		accounts, err := rt.Dial("account")
		if err != nil {
			return err
		}
		limits := cfg.limits(accountv1.NewAccountServiceClient(accounts))
		conn, err := rt.Dial("signup")
		if err != nil {
			return err
		}
		signups := signupv1.NewSignupServiceClient(conn)
		wake, err := rt.Outbox()
		if err != nil {
			return err
		}
		mailStore, templateStore := postgres.NewMails(rt.Pool), postgres.NewTemplates(rt.Pool, wake)
		senders, owned := openDomains(rt, cfg, in)
		notifications, err := cfg.notifications(mailStore)
		if err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		var sms mails.SMSProvider = smslog.Provider{Log: rt.Log, Keys: rt.Tokens}
		if in.twilio != nil {
			sms = in.twilio
			rt.OnClose("SMS provider", func(context.Context) error { in.twilio.Close(); return nil })
		}
		sender := mails.NewSender(mails.SenderConfig{
			Queue: mailStore, Provider: in.provider, Composer: composer, Workers: cfg.MailWorkers, Log: rt.Log, Now: time.Now,
			Mailings: grpc.NewMailings(signups), Templates: templateStore,
			Facts: grpc.Facts{Accounts: accountv1.NewAccountServiceClient(accounts), Signups: signups},
			SMS:   sms, Suppressions: mailStore, Senders: senders, Limits: limits, Registerer: rt.Telemetry.Registerer,
			Tracers: rt.Telemetry.Tracers,
		})
		if err := rt.Consume("consumer", kafka.ConsumerConfig{
			Topics: []string{kafka.AccountsTopic, kafka.SignupsTopic}, Handler: messagingkafka.Handler(mailStore),
			Wants: messagingkafka.Wants, AfterCommit: sender.Wake,
			Confirm: claims.Owners{Accounts: accountv1.NewAccountServiceClient(accounts), Waitlists: signups}.Confirm,
		}); err != nil {
			return err
		}
		blastService := openBlasts(rt, cfg, blasts.BlasterConfig{
			Lists: grpc.NewLists(signups), Provider: in.provider, Composer: composer, Senders: senders, Suppressions: mailStore, Limits: limits,
		})
		templateService := templates.New(templateStore, cfg.MaxTemplates, time.Now)
		messagingv1.RegisterMessagingServiceServer(rt.GRPC, grpc.NewServer(blastService, templateService))
		messaginghttp.Routes(rt.Engine, messaginghttp.Backends{
			Accounts: accountv1.NewAccountServiceClient(accounts), Templates: templateService, Domains: owned, Notifications: notifications,
		})
		rt.Audit()
		rt.Go("mail sender", sender.Run)
		rt.Singleton("retention of mails", sender.Prune)
		rt.Go("age of the oldest mail", func(ctx context.Context) error {
			return watchOldest(ctx, mailStore, rt.Telemetry.Registerer)
		})
		purge := &postgres.Purge{Pool: rt.Pool, Every: cfg.PurgeEvery, Log: rt.Log}
		rt.Singleton("purge", purge.Run)
		return nil
	})
}
