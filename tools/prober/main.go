// Command prober does once a minute what a person does, on a waitlist of its own: it signs
// up, refers somebody, looks at its place, waits for its own webhook and deletes what it
// made. Its metrics know what no metric of a service knows: whether the suite works for
// those outside, the way to it included.
package main

import (
	"context"
	"errors"
	"net/http"
	"net/mail"
	"net/url"
	"os"
	"time"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/ratelimit"
	"waitlist.internal/libs/service"
)

// Config is the environment of the prober.
type Config struct {
	service.Config
	// The API as people reach it: `https://api.example.com/v1`.
	API string `env:"PROBER_API"`
	// API key of an account that has nothing else. For webhooks its plan must be Pro.
	APIKey string `env:"PROBER_API_KEY"`
	// The HTTPS address at which the suite reaches this program's `/webhook`. Empty: webhooks are not probed.
	WebhookURL string `env:"PROBER_WEBHOOK_URL"`
	// Address of the people it invents. Each has a tag of its own: `probe+…@example.com`.
	Email string `env:"PROBER_EMAIL" envDefault:"probe@example.com"`
	// Time between the starts of two rounds.
	Every time.Duration `env:"PROBER_EVERY" envDefault:"1m"`
}

// maxWebhook bounds the body of a webhook, in bytes. The suite's are below 2 KiB.
const maxWebhook = 64 << 10

func main() { os.Exit(service.Command(newApp)) }

func newApp(ctx context.Context, cfg Config) (*service.Runtime, error) {
	// The public interface takes nothing but the suite's webhooks, three a round.
	cfg.Limiter = ratelimit.NewLocal(cfg.RateLimitRPS, cfg.RateLimitBurst)
	rt, err := service.New(ctx, "prober", cfg.Config, service.Options{HTTP: true, Problems: problems(cfg)})
	if err != nil {
		return nil, err
	}
	p, err := newProber(cfg, &http.Client{}, rt.Log)
	if err != nil {
		return nil, errors.Join(err, rt.Close(context.WithoutCancel(ctx)))
	}
	rt.Telemetry.Registerer.MustRegister(p)
	rt.Engine.POST("/webhook", httpapi.H(p.webhook))
	rt.Go("rounds", p.run)
	return rt, nil
}

// webhook takes the suite's notifications.
func (p *prober) webhook(c *gin.Context) error {
	raw, err := httpapi.ReadBody(c, maxWebhook)
	if err != nil {
		return err
	}
	p.hooked(raw, time.Now())
	httpapi.NoContent(c)
	return nil
}

func problems(cfg Config) []error {
	var out []error
	check := func(ok bool, problem string) {
		if !ok {
			out = append(out, errors.New(problem))
		}
	}
	api, err := url.Parse(cfg.API)
	check(err == nil && (api.Scheme == "https" || api.Scheme == "http") && api.Host != "", "Set PROBER_API to the URL of the API.")
	check(cfg.APIKey != "", "Set PROBER_API_KEY.")
	hook, err := url.Parse(cfg.WebhookURL)
	check(cfg.WebhookURL == "" || err == nil && hook.Scheme == "https" && hook.Host != "",
		"Set PROBER_WEBHOOK_URL to an https URL or leave it unset.")
	_, err = mail.ParseAddress(cfg.Email)
	check(err == nil, "Set PROBER_EMAIL to an email address.")
	check(cfg.Every > 0, "Set PROBER_EVERY to a positive duration.")
	return out
}
