package http

import (
	"errors"
	"net/http"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/pages/api"
)

// link is what a mail's link to a signup carries.
type link struct {
	// Purpose is the first part of the texts' keys.
	Purpose                string
	Waitlist, Email, Token string
}

// Action is the path of the button.
func (l link) Action() string {
	if l.Purpose == "delete" {
		return "/delete-my-data"
	}
	return "/" + l.Purpose
}

// signupLink returns the handler that shows a link's button.
func (*handler) signupLink(purpose string) func(*view) error {
	return func(v *view) error {
		l := link{purpose, httpapi.Query(v.c, "waitlist"), httpapi.Query(v.c, "email"), httpapi.Query(v.c, "token")}
		if l.Waitlist == "" || l.Email == "" || l.Token == "" {
			return v.gone()
		}
		v.Key, v.Private, v.Data = purpose+".title", true, l
		return v.render(http.StatusOK, "link")
	}
}

// follow calls the API with what a button sent, and shows the button again where another
// try may succeed.
func (v *view) follow(purpose string, call func(l link) error) error {
	l := link{purpose, v.Sent("waitlist"), v.Sent("email"), v.Sent("token")}
	if l.Waitlist == "" || l.Email == "" || l.Token == "" {
		return v.gone()
	}
	v.Key, v.Private = purpose+".title", true
	err := call(l)
	refusal, refused := errors.AsType[*api.Error](err)
	if !refused || (refusal.Code != "RATE_LIMITED" && refusal.Status != 0 && refusal.Status < http.StatusInternalServerError) {
		return err
	}
	v.Data = l
	return v.render(v.refuse(refusal), "link")
}

func (*handler) verify(v *view) error {
	return v.follow("verify", func(l link) error {
		path := api.Path("public", "waitlists", l.Waitlist, "signups", l.Email, "verify")
		if err := v.call(http.MethodPost, path, "", map[string]string{"token": l.Token}, nil); err != nil {
			return err
		}
		return v.say("verify.title", "verify.done")
	})
}

func (*handler) unsubscribe(v *view) error {
	return v.follow("unsubscribe", func(l link) error {
		var out struct {
			DeleteToken string `json:"delete_token"`
		}
		path := api.Path("public", "waitlists", l.Waitlist, "unsubscribe")
		if err := v.call(http.MethodPost, path, "", map[string]string{"email": l.Email, "token": l.Token}, &out); err != nil {
			return err
		}
		v.Data = link{"delete", l.Waitlist, l.Email, out.DeleteToken}
		return v.render(http.StatusOK, "unsubscribed")
	})
}

func (*handler) deleteMyData(v *view) error {
	return v.follow("delete", func(l link) error {
		path := api.Path("public", "waitlists", l.Waitlist, "delete-my-data")
		if err := v.call(http.MethodPost, path, "", map[string]string{"email": l.Email, "token": l.Token}, nil); err != nil {
			return err
		}
		return v.say("delete.title", "delete.done")
	})
}
