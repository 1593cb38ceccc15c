// Package http serves the pages. Each works without JavaScript; page.js adds what only a
// browser can do: a place that moves by itself, copying and sharing, a countdown.
//
//	GET   shows and changes nothing: mail scanners and previews follow links
//	POST  calls the REST interface for the visitor and shows what it says
//
// Nothing is kept between two requests, neither in cookies nor here. Package forms keeps
// what waitlists' forms look like.
package http

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/httpstatus"
	"waitlist.internal/libs/telemetry"
	"waitlist.internal/services/pages/api"
	"waitlist.internal/services/pages/forms"
)

//go:embed templates/*.html
var templateFiles embed.FS

const (
	// maxForm bounds the body of a POST, in bytes. The API bounds the values.
	maxForm = 64 << 10
	// forGood is for names that change with the content.
	forGood = "public, max-age=31536000, immutable"
	// widgetFor is how long a browser keeps the widget by its unversioned name.
	widgetFor = "public, max-age=300"
)

// policy is the Content-Security-Policy of every page. The first %s is the hash of its style, the second has the origins of
// its pictures.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'%s; connect-src 'self'; img-src 'self'%s; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

type handler struct {
	api       *api.Client
	public    string // where people reach the pages, without a slash at its end
	log       *slog.Logger
	templates map[string]*template.Template
	languages *languages
	assets    map[string]asset

	forms *forms.Forms
	shown func(waitlistID string)
	drawn drawn
}

// Backends are what the pages need.
type Backends struct {
	API   *api.Client
	Forms *forms.Forms
	// Shown counts a form that was shown.
	Shown func(waitlistID string)
	// Public is the address at which people reach the pages, without a slash at its end.
	Public string
	Log    *slog.Logger
}

// Routes adds the pages to an engine.
func Routes(e *gin.Engine, b Backends) error {
	h := &handler{
		api: b.API, public: b.Public, log: b.Log, forms: b.Forms, shown: b.Shown, templates: map[string]*template.Template{},
	}
	var err error
	if h.languages, err = loadLanguages(); err != nil {
		return err
	}
	var served map[string]asset
	if h.assets, served, err = loadAssets(); err != nil {
		return err
	}
	if err := h.parse(); err != nil {
		return err
	}
	get(e, "/assets/:file", h.versioned(served))
	get(e, "/widget.js", h.assets["widget.js"].serve(widgetFor))
	get(e, "/favicon.ico", h.assets["icon.svg"].serve(widgetFor))
	if err := h.docs(e); err != nil {
		return err
	}

	h.page(e, "/", h.home, nil)
	h.page(e, "/w/:waitlist_id", h.form, h.join)
	h.page(e, "/w/:waitlist_id/status", h.returning(h.statusForm), h.returning(h.status))
	h.page(e, "/w/:waitlist_id/link", nil, h.returning(h.mailLink))
	h.page(e, "/w/:waitlist_id/leaderboard", h.leaderboard, nil)
	h.page(e, "/verify", h.signupLink("verify"), h.verify)
	h.page(e, "/unsubscribe", h.signupLink("unsubscribe"), h.unsubscribe)
	h.page(e, "/delete-my-data", nil, h.deleteMyData)
	h.page(e, "/verify-email", h.accountForm("verify-email"), h.verifyEmail)
	h.page(e, "/forgot-password", h.accountForm("forgot-password"), h.forgotPassword)
	h.page(e, "/reset-password", h.accountForm("reset-password"), h.resetPassword)
	h.page(e, "/login", h.accountForm("login"), h.login)
	h.page(e, "/register", h.accountForm("register"), h.register)
	h.page(e, "/billing", h.message("billing.title", "billing.text"), nil)
	h.page(e, "/billing/success", h.message("billing.success.title", "billing.success.text"), nil)
	h.page(e, "/billing/canceled", h.message("billing.canceled.title", "billing.canceled.text"), nil)
	e.NoRoute(h.handle(func(v *view) error { return v.gone() }))
	return nil
}

func get(e *gin.Engine, path string, f gin.HandlerFunc) {
	e.GET(path, f)
	e.HEAD(path, f) // net/http drops the body
}

// page adds the handlers of a path; nil: the path has no such method.
func (h *handler) page(e *gin.Engine, path string, show, act func(*view) error) {
	if show != nil {
		get(e, path, h.handle(show))
	}
	if act != nil {
		e.POST(path, h.handle(func(v *view) error {
			if v.c.GetHeader("Sec-Fetch-Site") == "cross-site" {
				// Another site's form could make this browser remember that site's link.
				return &api.Error{Status: http.StatusForbidden, Code: string(apierr.Forbidden), Message: "Open this page and send the form from there."}
			}
			raw, err := httpapi.ReadBody(v.c, maxForm)
			if err != nil {
				return err
			}
			// The API judges the readable part of a broken body, field by field.
			v.sent, _ = url.ParseQuery(string(raw))
			return act(v)
		}))
	}
}

func (h *handler) parse() error {
	names, err := templateFiles.ReadDir("templates")
	if err != nil {
		return fmt.Errorf("list the templates: %w", err)
	}
	for _, n := range names {
		name, _ := strings.CutSuffix(n.Name(), ".html")
		t, err := template.New("layout.html").ParseFS(templateFiles, "templates/layout.html", "templates/"+n.Name())
		if err != nil {
			return fmt.Errorf("parse the template %s: %w", name, err)
		}
		h.templates[name] = t
	}
	return nil
}

// view is one request, and what its template sees.
type view struct {
	*catalogue
	h    *handler
	c    *gin.Context
	sent url.Values

	// Key is the key of the page's title. If it is empty, Title is the title itself.
	Key, Title string
	// Private keeps search engines away, and has page.js take the query out of the address bar.
	Private bool
	// Picture is the URL of the owner's picture; empty: none.
	Picture string
	// Logo is the URL of the owner's logo; empty: none.
	Logo string
	// accent is the owner's colour, #rrggbb; empty: none.
	accent string
	// Problem is what went wrong; nil: nothing.
	Problem *problem
	// Request is the id of a request that failed, for questions to the operator.
	Request string
	// Errors has the messages beside fields, by the field's name.
	Errors map[string]string
	// Data is what only this page's template shows.
	Data any
}

// problem is a message above a page.
type problem struct {
	Text string
	// Seconds is how long to wait, and Wait says it; 0: no time was named.
	Seconds int64
	Wait    string
}

// handle calls f, and answers with the error page if it fails.
func (h *handler) handle(f func(*view) error) gin.HandlerFunc {
	return httpapi.H(func(c *gin.Context) error {
		v := &view{
			catalogue: h.languages.choose(httpapi.Query(c, "lang"), c.GetHeader("Accept-Language")), h: h, c: c, Errors: map[string]string{},
		}
		// The engine sets this header for the API. Pages do not need it.
		c.Writer.Header().Del("Access-Control-Allow-Origin")
		err := f(v)
		refusal, ok := errors.AsType[*api.Error](err)
		if !ok {
			e := apierr.From(err)
			if err == nil || e.Kind.Failure() {
				return err
			}
			refusal = &api.Error{Status: httpstatus.Of(e.Kind), Code: string(e.Code), Message: e.Message, RetryAfter: e.RetryAfter}
		}
		switch refusal.Code {
		case "NOT_FOUND":
			return v.gone()
		case "WAITLIST_CLOSED":
			v.Key = "closed.title"
			return v.render(http.StatusForbidden, "closed")
		}
		v.Key, v.Data = "failed.title", nil
		status := v.refuse(refusal)
		if problems := v.Unnamed(); len(problems) > 0 { // no field beside which to show them
			v.Problem.Text = strings.Join(problems, " ")
		}
		return v.render(status, "message")
	})
}

// gone shows that there is no such page.
func (v *view) gone() error {
	v.Key, v.Data, v.Private = "gone.title", "gone.text", true
	return v.render(http.StatusNotFound, "message")
}

// refuse makes a refusal of the API the page's problem, and returns the page's status.
func (v *view) refuse(e *api.Error) int {
	c := v.c
	for _, f := range e.Fields {
		if _, ok := v.Errors[f.Field]; !ok {
			v.Errors[f.Field] = v.translate(f.Message)
		}
	}
	p := &problem{}
	v.Problem, v.Request = p, e.RequestID
	status := e.Status
	text := func(key string) { p.Text, _ = v.T(key) } // a test reads every key
	switch {
	case e.Code == "RATE_LIMITED":
		p.Seconds = max(1, int64(e.RetryAfter/time.Second))
		c.Header("Retry-After", strconv.FormatInt(p.Seconds, 10))
		p.Wait = v.wait(p.Seconds)
		if text("busy.text"); !strings.HasPrefix(e.Message, "Too many requests.") && e.Message != "" {
			p.Text = v.translate(e.Message)
		}
	case len(v.Errors) > 0:
		text("errors.title")
	case e.Code == "INVALID_TOKEN":
		text("link.bad")
	case status == 0 || status >= http.StatusInternalServerError:
		if status == 0 {
			status = http.StatusBadGateway
			v.h.log.LogAttrs(c.Request.Context(), slog.LevelWarn, "no answer from the API", telemetry.Err(e))
		}
		text("failed.text")
	default:
		p.Text = v.translate(e.Message)
	}
	return status
}

// wait says how long to wait.
func (v *view) wait(seconds int64) string {
	var text string
	switch {
	case seconds == 1:
		text, _ = v.T("busy.second")
	case seconds < 120:
		text, _ = v.T("busy.seconds", seconds)
	default:
		text, _ = v.T("busy.minutes", (seconds+59)/60)
	}
	return text
}

// render answers with a page. One that reports an error names the request.
func (v *view) render(status int, name string) error {
	if status >= http.StatusBadRequest && v.Request == "" {
		v.Request = httpapi.RequestID(v.c)
	}
	page, err := v.draw(name)
	if err != nil {
		return err
	}
	v.answer(status, v.policy(), page)
	return nil
}

// draw returns a page.
func (v *view) draw(name string) ([]byte, error) {
	var b bytes.Buffer
	if err := v.h.templates[name].Execute(&b, v); err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return b.Bytes(), nil
}

// policy returns the page's Content-Security-Policy.
func (v *view) policy() string { return fmt.Sprintf(policy, v.styleHash(), origins(v.Picture, v.Logo)) }

// answer answers with a page in one or more pieces.
func (v *view) answer(status int, csp string, pieces ...[]byte) {
	header := v.c.Writer.Header()
	header.Set("Content-Security-Policy", csp)
	header.Set("Vary", "Accept-Language")
	header.Set("Content-Type", "text/html; charset=utf-8")
	length := 0
	for _, p := range pieces {
		length += len(p)
	}
	header.Set("Content-Length", strconv.Itoa(length))
	v.c.Status(status)
	for _, p := range pieces {
		_, _ = v.c.Writer.Write(p) // the visitor may be gone
	}
}

// call calls the REST interface for the visitor. Its errors are *api.Error. It refuses
// what a form sent in broken UTF-8: JSON cannot carry it.
func (v *view) call(method, path, token string, body, out any) error {
	broken := &api.Error{Status: http.StatusBadRequest, Code: string(apierr.ValidationError)}
	for name, values := range v.sent {
		if !utf8.ValidString(strings.Join(values, "")) {
			name = strings.Replace(name, "q.", "custom_answers.", 1)
			broken.Fields = append(broken.Fields, apierr.Field{Field: name, Message: "This must be valid UTF-8."})
		}
	}
	if len(broken.Fields) > 0 {
		return broken
	}
	return v.h.api.Call(v.c.Request.Context(), api.Visitor{
		UserAgent: v.c.Request.UserAgent(), Address: httpapi.ClientIP(v.c), RequestID: httpapi.RequestID(v.c),
	}, method, path, token, body, out)
}

// Lang is the language of the page.
func (v *view) Lang() string { return v.lang }

// Asset returns the URL of an asset.
func (v *view) Asset(name string) string { return v.h.assets[name].url }

// Number writes a number as is usual in the page's language.
func (v *view) Number(n int64) string { return v.number(n) }

// Sent returns a value that the visitor entered.
func (v *view) Sent(name string) string { return v.sent.Get(name) }

// message returns the handler of a page that only says something.
func (*handler) message(title, text string) func(*view) error {
	return func(v *view) error { return v.say(title, text) }
}

// say shows a page that only says something.
func (v *view) say(title, text string) error {
	v.Key, v.Data = title, text
	return v.render(http.StatusOK, "message")
}

// home says what this is and where things are.
func (h *handler) home(v *view) error {
	v.Key = "home.title"
	widget := h.assets["widget.js"]
	v.Data = struct{ API, Alias, Widget, Integrity string }{
		h.public + "/v1", h.public + "/widget.js", h.public + widget.url, widget.integrity,
	}
	return v.render(http.StatusOK, "home")
}
