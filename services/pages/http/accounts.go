package http

import (
	"errors"
	"net/http"
	"time"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/loop"
	"waitlist.internal/services/pages/api"
)

const (
	// logOutTries is how often a session's end is tried, and logOutPause the longest pause between two tries.
	logOutTries = 3
	logOutPause = 2 * time.Second
)

// accountPage is a form about an account.
type accountPage struct {
	// Action is the path of the form.
	Action       string
	Email, Token string
}

// titles returns the keys of the titles of the forms about accounts.
func titles() map[string]string {
	return map[string]string{
		"verify-email": "account.verify.title", "forgot-password": "forgot.title", "reset-password": "reset.title",
		"login": "login.title", "register": "register.title",
	}
}

// accountForm returns the handler that shows a form about an account.
func (*handler) accountForm(action string) func(*view) error {
	return func(v *view) error {
		p := accountPage{action, httpapi.Query(v.c, "email"), httpapi.Query(v.c, "token")}
		if p.Token == "" && (action == "verify-email" || action == "reset-password") {
			return v.gone()
		}
		v.Key, v.Private, v.Data = titles()[action], true, p
		return v.render(http.StatusOK, "account")
	}
}

// submit calls the API, and shows the form again if it refuses.
func (v *view) submit(action, path string, body map[string]string, out any, done func() error) error {
	v.Key, v.Private = titles()[action], true
	v.Data = accountPage{action, v.Sent("email"), v.Sent("token")}
	err := v.call(http.MethodPost, path, "", body, out)
	if refusal, refused := errors.AsType[*api.Error](err); refused {
		switch refusal.Code {
		case "AUTHENTICATION_REQUIRED":
			refusal.Message, _ = v.T("login.bad") // a test reads every key
		case "CONFLICT":
			refusal.Message, _ = v.T("register.taken")
		}
		return v.render(v.refuse(refusal), "account")
	}
	return done()
}

func (*handler) verifyEmail(v *view) error {
	body := map[string]string{"token": v.Sent("token"), "password": v.Sent("password")}
	return v.submit("verify-email", "/auth/verify-email", body, nil, func() error {
		return v.say("account.verify.title", "account.verify.done")
	})
}

func (*handler) forgotPassword(v *view) error {
	return v.submit("forgot-password", "/auth/forgot-password", map[string]string{"email": v.Sent("email")}, nil, func() error {
		return v.say("forgot.title", "forgot.done")
	})
}

func (*handler) resetPassword(v *view) error {
	body := map[string]string{"token": v.Sent("token"), "password": v.Sent("password")}
	return v.submit("reset-password", "/auth/reset-password", body, nil, func() error { return v.say("reset.title", "reset.done") })
}

func (h *handler) register(v *view) error {
	var out struct {
		Email string `json:"email"`
		Key   string `json:"api_key"`
	}
	body := map[string]string{"email": v.Sent("email"), "password": v.Sent("password")}
	return v.submit("register", "/auth/register", body, &out, func() error {
		v.Key = "registered.title"
		v.Data = struct{ Email, Key, API string }{out.Email, out.Key, h.public + "/v1"}
		return v.render(http.StatusOK, "registered")
	})
}

// login shows an account and its waitlists, and ends the session at once, because pages keep none.
func (*handler) login(v *view) error {
	var session struct {
		ID      string `json:"id_token"`
		Refresh string `json:"refresh_token"`
	}
	body := map[string]string{"email": v.Sent("email"), "password": v.Sent("password")}
	return v.submit("login", "/auth/login", body, &session, func() error {
		var page struct {
			Email  string `json:"email"`
			Tier   string `json:"subscription_tier"`
			Status string `json:"subscription_status"`
			Lists  struct {
				Waitlists []struct {
					ID    string `json:"waitlist_id"`
					Name  string `json:"name"`
					Count int64  `json:"signup_count"`
				} `json:"waitlists"`
			} `json:"-"`
			// Refused is why the waitlists are not shown, such as a trial that is over.
			Refused string `json:"-"`
		}
		err := v.call(http.MethodGet, "/auth/me", session.ID, nil, &page)
		if err == nil {
			if refusal, refused := errors.AsType[*api.Error](v.call(http.MethodGet, "/waitlists", session.ID, nil, &page.Lists)); refused {
				page.Refused = v.translate(refusal.Message)
			}
		}
		err = errors.Join(err, v.logOut(session.Refresh))
		if refusal, refused := errors.AsType[*api.Error](err); refused {
			return v.render(v.refuse(refusal), "account")
		}
		v.Key, v.Data = "account.title", page
		return v.render(http.StatusOK, "profile")
	})
}

// logOut ends a session. It waits for the limit of requests a few times: nobody else could end this session.
func (v *view) logOut(refresh string) (err error) {
	for range logOutTries {
		err = v.call(http.MethodPost, "/auth/logout", "", map[string]string{"refresh_token": refresh}, nil)
		refusal, refused := errors.AsType[*api.Error](err)
		if !refused || refusal.Code != "RATE_LIMITED" {
			return err
		}
		if !loop.Wait(v.c.Request.Context(), min(max(refusal.RetryAfter, time.Second), logOutPause)) {
			return err
		}
	}
	return err
}
