package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/google/uuid"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/pages/api"
	"waitlist.internal/services/pages/forms"
)

// loadForm asks for a form, which may be as old as age if signup does not answer.
func (v *view) loadForm(age time.Duration) (*forms.Form, error) {
	f, err := v.h.forms.Get(v.c.Request.Context(), v.c.Param("waitlist_id"), age)
	if err == nil {
		return f, nil
	}
	if e := apierr.From(err); e.Code == apierr.NotFound || e.Code == apierr.RateLimited {
		return nil, err
	}
	return nil, &api.Error{Cause: err}
}

// formPage is the form with what a visitor brought along or entered.
type formPage struct {
	*forms.Form
	Ref string
	UTM []struct{ Name, Value string }
	// Again says that the visitor has sent the form already.
	Again bool
}

func utmNames() []string {
	return []string{"utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content"}
}

func newFormPage(f *forms.Form, value func(string) string) formPage {
	p := formPage{Form: f, Ref: referral(value("ref"))}
	for _, name := range utmNames() {
		if s := value(name); s != "" {
			p.UTM = append(p.UTM, struct{ Name, Value string }{name, s})
		}
	}
	return p
}

func (h *handler) form(v *view) error {
	f, err := v.loadForm(forms.Shown)
	if err != nil {
		return err
	}
	v.dress(f)
	v.Title = f.Heading()
	if f.Status != "open" {
		v.Data = newFormPage(f, func(string) string { return "" })
		return v.render(http.StatusOK, "closed")
	}
	if v.c.Request.Method != http.MethodHead && !robot.MatchString(v.c.Request.UserAgent()) {
		h.shown(f.ID)
	}
	return v.drawForm(f)
}

// maxDrawn bounds the forms that are kept as they were drawn, in bytes.
const maxDrawn = 16 << 20

// drawn keeps forms as they were drawn: many people come to one form, by links that
// differ in their referral token only.
type drawn struct {
	mu    sync.Mutex
	pages map[drawing]drawnPage
	bytes int
}

// drawing is a form in a language.
type drawing struct {
	id, lang string
	referred bool
}

// drawnPage is a page in pieces, between which the referral token belongs.
type drawnPage struct {
	// form is what was drawn; signup sends another one as soon as anything changes.
	form   *forms.Form
	policy string
	pieces [][]byte
	bytes  int
}

// keep replaces what was drawn before, so that each drawing is there once.
func (d *drawn) keep(key drawing, p drawnPage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bytes += p.bytes - d.pages[key].bytes
	if d.pages == nil || d.bytes > maxDrawn {
		d.pages, d.bytes = map[drawing]drawnPage{}, p.bytes
	}
	d.pages[key] = p
}

// drawForm answers with a form, as it was drawn before if nothing but the referral token differs.
func (v *view) drawForm(f *forms.Form) error {
	ref := referral(httpapi.Query(v.c, "ref"))
	p := newFormPage(f, func(name string) string { return httpapi.Query(v.c, name) })
	v.Data = p
	if len(p.UTM) > 0 || httpapi.Query(v.c, "email") != "" || (ref != "" && !referralToken.MatchString(ref)) {
		return v.render(http.StatusOK, "form")
	}
	d, key := &v.h.drawn, drawing{f.ID, v.lang, ref != ""}
	d.mu.Lock()
	kept := d.pages[key]
	d.mu.Unlock()
	if kept.form != f {
		// The mark is random and new, so no owner's text contains it.
		mark := strings.ReplaceAll(uuid.NewString(), "-", "")
		if ref != "" {
			p.Ref = mark
		}
		v.Data = p
		page, err := v.draw("form")
		if err != nil {
			return err
		}
		kept = drawnPage{f, v.policy(), bytes.Split(page, []byte(mark)), len(page)}
		d.keep(key, kept)
	}
	out := kept.pieces[:1:1]
	for _, piece := range kept.pieces[1:] {
		out = append(out, []byte(ref), piece)
	}
	v.answer(http.StatusOK, kept.policy, out...)
	return nil
}

// signup is the API's answer to a signup, and to a request for its place.
type signup struct {
	Email         string `json:"email"`
	ReferralToken string `json:"referral_token"`
	Position      *int64 `json:"position"`
	ReferralCount int64  `json:"referral_count"`
	Total         *int64 `json:"total_signups"`
	RedirectURL   string `json:"redirect_url"`
}

func (h *handler) join(v *view) error {
	f, err := v.loadForm(forms.Sent)
	if err != nil {
		return err
	}
	v.dress(f)
	var s signup
	body := v.joinBody(f)
	join := func() error {
		return v.call(http.MethodPost, api.Path("public", "waitlists", f.ID, "signups"), "", body, &s)
	}
	err = join()
	refusal, refused := errors.AsType[*api.Error](err)
	if refused && dropAdded(body, refusal.Fields) {
		err = join()
		refusal, refused = errors.AsType[*api.Error](err)
	}
	if !refused {
		v.Key, v.Private = "thanks.title", true
		v.Data = h.place(f, s)
		return v.render(http.StatusOK, "place")
	}
	switch refusal.Code {
	case "NOT_FOUND", "WAITLIST_CLOSED":
		return err
	case "DOMAIN_RESTRICTED":
		v.Errors["email"] = v.translate(refusal.Message)
	}
	status := v.refuse(refusal)
	p := newFormPage(f, v.sent.Get)
	p.Again = true
	v.Title, v.Data = f.Heading(), p
	return v.render(status, "form")
}

// joinBody is the body of a signup. Values that were left empty are left out.
func (v *view) joinBody(f *forms.Form) map[string]any {
	body := map[string]any{}
	for _, name := range append(utmNames(), "email", "first_name", "last_name", "phone", "timezone", "website") {
		s := v.sent.Get(name)
		if strings.HasPrefix(name, "utm_") {
			s = cut(strings.ReplaceAll(s, "\x00", ""), maxUTM)
		}
		if s != "" {
			body[name] = s
		}
	}
	if ref := referral(v.sent.Get("ref")); ref != "" {
		body["referred_by_token"] = ref
	}
	if ms := v.sent.Get("elapsed_ms"); regexp.MustCompile(`^[0-9]{1,15}$`).MatchString(ms) {
		body["elapsed_ms"] = json.Number(ms)
	}
	if v.sent.Get("consent") != "" {
		body["consent"] = true
	}
	answers := map[string]any{}
	for _, q := range f.Questions {
		s := v.sent.Get("q." + q.ID)
		switch {
		case q.Type == "checkbox":
			answers[q.ID] = s != ""
		case s != "":
			answers[q.ID] = s
		}
	}
	if len(answers) > 0 {
		body["custom_answers"] = answers
	}
	return body
}

// maxUTM is how many characters of a utm value the API takes.
const maxUTM = 255

// cut returns the first n characters of s.
func cut(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// dropAdded takes out of the body of a signup what the API refused and nobody entered, and reports whether there was any:
// a browser's zone that the API does not know keeps nobody out.
func dropAdded(body map[string]any, refused []apierr.Field) bool {
	before := len(body)
	for _, f := range refused {
		if strings.HasPrefix(f.Field, "utm_") || f.Field == "timezone" || f.Field == "elapsed_ms" {
			delete(body, f.Field)
		}
	}
	return len(body) < before
}

// referral returns a link's token without the punctuation behind it, which programs that make links of text take for a
// part of the link.
func referral(ref string) string {
	return strings.TrimRightFunc(ref, func(r rune) bool {
		return r != '-' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// robot finds the robots and previews that say so. A Cubot is a phone.
var robot = regexp.MustCompile(`(?i)(^|[^u])bot\b|crawl|spider|slurp|preview|lighthouse|facebookexternalhit|whatsapp/|embedly|vkshare|` +
	`google-inspectiontool|mediapartners`)

// placePage shows a place and the link to share.
type placePage struct {
	*forms.Form
	signup
	// Joined says that the visitor has just signed up.
	Joined bool
	// Link is the visitor's own; empty: not known.
	Link string
	// Live is where page.js asks for the place; empty: places are hidden.
	Live string
}

func (h *handler) place(f *forms.Form, s signup) placePage {
	p := placePage{Form: f, signup: s, Joined: true}
	if s.ReferralToken != "" {
		p.Link = h.public + api.Path("w", f.ID) + "?ref=" + url.QueryEscape(s.ReferralToken)
	}
	if s.Position != nil {
		p.Live = "/v1" + api.Path("public", "waitlists", f.ID, "signups", s.Email)
	}
	return p
}

// Share returns the URL that shares the link on a network.
func (p placePage) Share(network, text string) string {
	link, both := url.QueryEscape(p.Link), url.QueryEscape(text+" "+p.Link)
	switch network {
	case "whatsapp":
		return "https://wa.me/?text=" + both
	case "x":
		return "https://x.com/intent/post?text=" + url.QueryEscape(text) + "&url=" + link
	case "linkedin":
		return "https://www.linkedin.com/sharing/share-offsite/?url=" + link
	}
	// Mail programs show a plus as it is.
	return "mailto:?subject=" + mailEscape(p.Heading()) + "&body=" + mailEscape(text+" "+p.Link)
}

func mailEscape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

var referralToken = regexp.MustCompile(`^[0-9a-f]{32}$`)

// returning returns the handler of a page for people who are on a list already. f is its form, which is also the page's
// data.
func (*handler) returning(act func(v *view, f *forms.Form) error) func(*view) error {
	return func(v *view) error {
		f, err := v.loadForm(forms.Sent)
		if err != nil {
			return err
		}
		v.dress(f)
		v.Picture, v.Key, v.Private, v.Data = "", "status.title", true, f
		return act(v, f)
	}
}

func (*handler) statusForm(v *view, _ *forms.Form) error { return v.render(http.StatusOK, "status") }

func (h *handler) status(v *view, f *forms.Form) error {
	email := strings.TrimSpace(v.sent.Get("email"))
	if email == "" {
		v.Errors["email"] = v.translate("This field is required.")
		return v.render(http.StatusBadRequest, "status")
	}
	var s signup
	err := v.call(http.MethodGet, api.Path("public", "waitlists", f.ID, "signups", email), "", nil, &s)
	if refusal, refused := errors.AsType[*api.Error](err); refused {
		if refusal.Status == http.StatusNotFound {
			v.Errors["email"] = v.translate(refusal.Message)
		}
		return v.render(v.refuse(refusal), "status")
	}
	// The API tells the token only to the person who signed up; their browser kept it.
	if t := v.sent.Get("token"); referralToken.MatchString(t) {
		s.ReferralToken = t
	}
	p := h.place(f, s)
	p.Joined = false
	v.Data = p
	return v.render(http.StatusOK, "place")
}

// mailLink asks the API to mail a person the link that their browser has not kept.
func (*handler) mailLink(v *view, f *forms.Form) error {
	body := map[string]string{"email": v.sent.Get("email")}
	err := v.call(http.MethodPost, api.Path("public", "waitlists", f.ID, "link"), "", body, nil)
	if refusal, refused := errors.AsType[*api.Error](err); refused {
		return v.render(v.refuse(refusal), "status")
	}
	return v.say("status.title", "status.mailed")
}

func (*handler) leaderboard(v *view) error {
	var board struct {
		ID      string `json:"waitlist_id"`
		Entries []struct {
			Rank  int64 `json:"rank"`
			Count int64 `json:"referral_count"`
		} `json:"leaderboard"`
	}
	if err := v.call(http.MethodGet, api.Path("public", "waitlists", v.c.Param("waitlist_id"), "leaderboard"), "", nil, &board); err != nil {
		return err
	}
	v.Key, v.Data = "leaderboard", board
	return v.render(http.StatusOK, "leaderboard")
}

// Unnamed returns the errors about values that have no field on the page.
func (v *view) Unnamed(named ...string) (out []string) {
	for field, message := range v.Errors {
		if !slices.Contains(named, field) && !strings.HasPrefix(field, "custom_answers.") {
			out = append(out, field+": "+message)
		}
	}
	slices.Sort(out)
	return out
}
