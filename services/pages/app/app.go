// Package app wires the pages service: the pages that people see in a browser. It keeps
// nothing. Forms come from signup, which also hears how often they were shown; all else
// that it knows and does goes through the REST interface.
package app

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"waitlist.internal/libs/service"
	"waitlist.internal/libs/views"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/pages/api"
	"waitlist.internal/services/pages/forms"
	pageshttp "waitlist.internal/services/pages/http"
)

// Name is the name of the service.
const Name = "pages"

// Config is the service's environment.
type Config struct {
	service.Config

	// The REST interface as this service reaches it, with /v1. TRUSTED_PROXIES there must name this service's addresses;
	// otherwise all visitors are one client.
	APIURL string `env:"PAGES_API_URL" envDefault:"http://127.0.0.1:8080/v1" run:"the standalone's" deployed:"required"`
	// The pages as people reach them, without a path; the REST interface is at /v1 beside them.
	PublicFormURL string `env:"PUBLIC_FORM_URL" envDefault:"http://127.0.0.1:8080" run:"the standalone's" deployed:"required"`
}

func definition() service.Definition {
	return service.Definition{Name: Name, Options: service.Options{HTTP: true, Unlimited: true, Calls: true}}
}

// App is the service.
type App = service.Runtime

// New opens the service and registers its pages.
func New(ctx context.Context, cfg Config) (*App, error) {
	var problems []error
	base, err := baseURL(cfg.APIURL)
	if err != nil {
		problems = append(problems, fmt.Errorf("PAGES_API_URL: %w", err))
	}
	public, err := baseURL(cfg.PublicFormURL)
	if err != nil {
		problems = append(problems, fmt.Errorf("PUBLIC_FORM_URL: %w", err))
	} else if u, _ := url.Parse(public); u.Path != "" {
		problems = append(problems, fmt.Errorf("PUBLIC_FORM_URL has the path %s: the pages are at the root of their host", u.Path))
	}
	return definition().Open(ctx, cfg.Config, problems, func(rt *service.Runtime) error {
		client := api.New(base)
		rt.OnClose("connections to the API", func(context.Context) error { client.Close(); return nil })
		conn, err := rt.Dial("signup")
		if err != nil {
			return err
		}
		signup := signupv1.NewFormServiceClient(conn)
		shown := views.New(forms.Reports{Signup: signup}, time.Now, rt.Log)
		rt.Go("page views", shown.Run)
		return pageshttp.Routes(rt.Engine, pageshttp.Backends{
			API: client, Forms: forms.New(signup, time.Now), Shown: shown.Add, Public: public, Log: rt.Log,
		})
	})
}

// baseURL returns an absolute http(s) URL without a slash at its end.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("set an http(s) URL without a user name, query or fragment")
	}
	return strings.TrimRight(s, "/"), nil
}
