package standalone

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/tools/internal/stripesim"
)

const (
	// simulatorKey is the simulator's API key. It protects nothing of value.
	simulatorKey = "sk_test_simulator"
	// webhookSecret is the name of the file with the secret that signs the simulator's events.
	webhookSecret = "stripe-webhook-secret"
)

// startPayments starts the payment simulator if STRIPE_SECRET_KEY is empty and returns
// billing's environment for it. The suite's edge serves the simulator's pages; its API
// has an address of its own.
func (s *Standalone) startPayments(ctx context.Context) (map[string]string, error) {
	if s.cfg.StripeSecretKey != "" {
		s.parts = append(s.parts, part{name: "Payments", what: "Stripe, with the key in STRIPE_SECRET_KEY"})
		return nil, nil
	}
	secret := s.cfg.StripeWebhookSecrets
	if len(secret) == 0 {
		made, err := keep(filepath.Join(s.dir("keys"), webhookSecret), func() (string, error) { return "whsec_" + random(), nil })
		if err != nil {
			return nil, err
		}
		secret = []string{made}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.StripesimAddr)
	if err != nil {
		return nil, fmt.Errorf("listen at STRIPESIM_ADDR: %w", err)
	}
	s.onStop(func() error { _ = listener.Close(); return nil })
	sim, err := stripesim.New(stripesim.Config{
		Key: simulatorKey, ControlKey: s.cfg.DevKey, PublicURL: s.URL, WebhookURL: s.URL + "/v1/billing/webhook", WebhookSecret: secret[0],
		File: s.dir("payments.json"),
	})
	if err != nil {
		return nil, fmt.Errorf("start the payment simulator: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		err := sim.Run(running)
		ended <- err
		if err != nil {
			s.fail(fmt.Errorf("payment simulator: %w", err))
		}
	}()
	s.serve("payment simulator", listener, sim, httpapi.ServerConfig{Log: s.log}) //nolint:contextcheck // draining goes on when ctx has ended
	// End requests that hang on purpose before the server drains.
	s.onStop(func() error { stop(); return <-ended })
	s.pages = sim
	address := "http://" + reachable(listener.Addr())
	s.parts = append(s.parts, part{
		name: "Payments", what: "simulator at " + address + ", no card is charged; controls at /_sim/…?key=" + s.cfg.DevKey,
	})
	var prices []string
	for _, tier := range []string{"basic", "advanced", "pro"} {
		for _, interval := range []string{"monthly", "yearly"} {
			prices = append(prices, fmt.Sprintf("%s.%s=price_%s_%s", tier, interval, tier, interval))
		}
	}
	return map[string]string{
		"STRIPE_SECRET_KEY": simulatorKey, "STRIPE_URL": address,
		"STRIPE_WEBHOOK_SECRETS": strings.Join(secret, ","), "STRIPE_PRICES": strings.Join(prices, ","),
	}, nil
}

// hosted reports whether a path is a page of the payment simulator.
func hosted(path string) bool {
	pages := []string{"/c/pay/", "/p/session/", "/invoice/"}
	return slices.ContainsFunc(pages, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

// withPayments adds billing's settings to env.
func (s *Standalone) withPayments(env, payments map[string]string) {
	maps.Copy(env, payments)
	setDefault(env, "BILLING_URL", strings.TrimRight(env["PUBLIC_FORM_URL"], "/")+"/billing")
}

// page serves a page of the payment simulator. It reports false if the path is no such
// page or there is no simulator.
func (s *Standalone) page(w http.ResponseWriter, r *http.Request) bool {
	if s.pages == nil || !hosted(r.URL.Path) {
		return false
	}
	s.pages.ServeHTTP(w, r)
	return true
}
