package pages_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"waitlist.internal/tools/test/e2e"
)

// screenshots names a folder that gets a picture of every page that axe has looked at.
const screenshots = "PAGES_SCREENSHOTS"

// person is somebody at a browser of their own.
type person struct {
	*testing.T
	ctx  context.Context // a browser is a context
	site string

	mu    sync.Mutex
	wrong []string
}

// browser starts Chromium. Each person has a profile of their own. At the end nothing may
// have violated a policy, thrown, or been loaded from elsewhere than from origins.
func browser(t *testing.T, origins ...string) func() *person {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.WindowSize(400, 800), chromedp.Flag("lang", "en"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, free := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(free)
	first, closeFirst := chromedp.NewContext(allocator)
	t.Cleanup(closeFirst)
	if err := chromedp.Do(first); err != nil {
		t.Fatalf("start Chromium (Debian: apt install chromium): %v", err)
	}
	t.Cleanup(func() {
		if err := chromedp.Cancel(first); err != nil {
			t.Errorf("close the browser: %v", err)
		}
	})
	return func() *person {
		return arrive(first, t, origins)
	}
}

// arrive opens a tab with a profile of its own.
func arrive(browser context.Context, t *testing.T, origins []string) *person {
	t.Helper()
	p := &person{T: t, site: origins[0]}
	ctx, leave := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(func(ev any) { p.hear(ev, origins) }))
	p.ctx = ctx
	t.Cleanup(func() {
		leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, w := range p.wrong {
			t.Error(w)
		}
	})
	// The tab lives as long as the context of its first step.
	if err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		if _, err := cdp.Call(ctx, tab, log.Enable, cdp.Empty{}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, tab, network.Enable, network.EnableParams{})
		return err
	})); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	return p
}

func (p *person) hear(ev any, origins []string) {
	wrong := ""
	switch ev := ev.(type) {
	case *log.EventEntryAdded:
		if text := ev.Entry.Text; strings.Contains(text, "Security Policy") || strings.Contains(text, "Trusted") {
			wrong = text
		}
	case *runtime.EventExceptionThrown:
		wrong = "exception: " + ev.ExceptionDetails.Text
		if ev.ExceptionDetails.Exception != nil {
			wrong += " " + ev.ExceptionDetails.Exception.Description
		}
	case *network.EventRequestWillBeSent:
		wrong = "request to " + ev.Request.URL
		if strings.HasPrefix(ev.Request.URL, "data:") { // the browser's own error page
			wrong = ""
		}
		for _, o := range origins {
			if strings.HasPrefix(ev.Request.URL, o+"/") {
				wrong = ""
			}
		}
	}
	if wrong != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wrong = append(p.wrong, wrong)
	}
}

func (p *person) do(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.Fatal(err)
	}
}

func eval[T any](p *person, js string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatal(err)
	}
	return v
}

func (p *person) withoutScripts() {
	p.Helper()
	p.do(chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
}

func (p *person) open(path string) {
	p.Helper()
	if !strings.HasPrefix(path, "http") {
		path = p.site + path
	}
	p.do(chromedp.Navigate(path))
}

func (p *person) fill(field, text string) {
	p.Helper()
	p.do(chromedp.SendKeys(chromedp.CSS(field), text))
}

// enters opens a form about an account and sends it.
func (p *person) enters(path, email, password string) {
	p.Helper()
	p.open(path)
	p.fill("#email", email)
	p.fill("#password", password)
	p.press("form button")
}

func (p *person) press(button string) {
	p.Helper()
	p.do(chromedp.Click(chromedp.CSS(button)))
}

// sees waits until the page says all texts.
func (p *person) sees(texts ...string) {
	p.Helper()
	var page string
	defer func() {
		if p.Failed() {
			p.Logf("the page says:\n%s", page)
		}
	}()
	e2e.Await(p, patience, fmt.Sprintf("a page with %q", texts), func() bool {
		ctx, cancel := context.WithTimeout(p.ctx, patience)
		defer cancel()
		var err error
		if page, err = chromedp.Run(ctx, chromedp.TextContent(chromedp.CSS("main"))); err != nil {
			return false // on the way to the next page
		}
		for _, text := range texts {
			if !strings.Contains(page, text) {
				return false
			}
		}
		return true
	})
}

func (p *person) at() *url.URL {
	p.Helper()
	u, err := url.Parse(eval[string](p, "location.href"))
	if err != nil {
		p.Fatal(err)
	}
	return u
}

// tabTo presses Tab until the focus is on an element. Whatever has the focus on the way must
// show it.
func (p *person) tabTo(css string) {
	p.Helper()
	for range 200 {
		p.do(chromedp.KeyEvent(kb.Tab))
		at := eval[string](p, fmt.Sprintf(`(() => {
			const at = document.activeElement;
			if (at !== document.body && getComputedStyle(at).outlineStyle === "none") return "unseen " + at.outerHTML;
			return at.matches(%q) ? "there" : "";
		})()`, css))
		if strings.HasPrefix(at, "unseen") {
			p.Error(at)
		}
		if at == "there" {
			return
		}
	}
	p.Fatalf("Tab does not lead to %s", css)
}

// fits checks that nobody has to scroll sideways with text of twice its size, as wide as a
// window of 1280 pixels is at 200 %.
func (p *person) fits(name string) {
	p.Helper()
	const width = 640
	p.do(chromedp.EmulateViewport(width, 800))
	const size = `document.documentElement.style.fontSize = %q; document.documentElement.scrollWidth`
	if wide := eval[int64](p, fmt.Sprintf(size, "200%")); wide > width {
		p.Errorf("%s: %d pixels wide with large text", name, wide)
	}
	eval[int64](p, fmt.Sprintf(size, ""))
}

// audit has axe look at the page in both themes, on the narrowest screen and with large
// text too.
func (p *person) audit(name string) {
	p.Helper()
	source := axeSource(p.T)
	p.fits(name)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{320, 1280} {
			p.do(chromedp.EmulateViewport(width, 800), chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
				_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
				})
				return err
			}))
			state := fmt.Sprintf("%s-%s-%d", name, theme, width)
			if wide := eval[int64](p, "document.documentElement.scrollWidth"); wide > width {
				p.Errorf("%s: %d pixels wide", state, wide)
			}
			found := eval[string](p, source+`;axe.run().then(r => JSON.stringify(r.violations.map(
				v => v.id + ": " + v.nodes.map(n => n.html + " " + n.failureSummary).join("\n"))))`)
			var violations []string
			if err := json.Unmarshal([]byte(found), &violations); err != nil {
				p.Fatal(err)
			}
			for _, v := range violations {
				p.Errorf("%s: %s", state, v)
			}
			if dir := os.Getenv(screenshots); dir != "" {
				picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
				if err != nil {
					p.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, state+".png"), picture, 0o644); err != nil {
					p.Fatal(err)
				}
			}
		}
	}
	p.do(chromedp.EmulateViewport(400, 800))
}

// picture keeps what a window of that size shows, with an element at its end, for the
// documents.
func (p *person) picture(name, css string, width, height int64) {
	p.Helper()
	dir := os.Getenv(screenshots)
	if dir == "" {
		return
	}
	p.do(chromedp.EmulateViewport(width, height))
	eval[bool](p, fmt.Sprintf(`document.querySelector(%q).scrollIntoView({block: "end"}), true`, css))
	shown, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), shown, 0o644); err != nil {
		p.Fatal(err)
	}
	p.do(chromedp.EmulateViewport(400, 800))
}

func full() object {
	return object{
		"headline": "The kite that flies itself", "subheadline": "The first hundred kites leave in spring.",
		"phone_field": "optional", "require_consent": true, "referral_boost": 5,
		"consent_text": "I agree to the [terms](https://example.com/terms).",
		"custom_questions": []object{
			{"id": "size", "label": "Which size?", "type": "dropdown", "required": true, "options": []string{"Small", "Large"}},
			{"id": "beta", "label": "I would fly early versions", "type": "checkbox"},
		},
		"require_email_verification": true, "notify_referrer": true,
	}
}

// TestWalk has an owner register, and people sign up, share, confirm and leave.
func TestWalk(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	newPerson := browser(t, s.server.URL)

	owner := newPerson()
	owner.open("/")
	owner.audit("home")
	owner.press(`a[href="/register"]`)
	owner.sees("Create an account")
	owner.audit("register")
	owner.fill("#email", "owner@example.com")
	owner.fill("#password", "short")
	owner.press("form button")
	owner.sees("Please correct")
	owner.audit("register-wrong")
	owner.fill("#password", password)
	owner.press("form button")
	owner.sees("Your account is ready", "wl_live_")
	owner.audit("registered")
	key := strings.TrimSpace(eval[string](owner, `document.querySelector("#key").textContent`))
	owner.open(s.server.AwaitMails(t, "owner@example.com", 1)[0].Links()[0].String())
	owner.sees("Enter the password")
	if at := owner.at(); at.RawQuery != "" || at.Path != "/verify-email" {
		t.Errorf("the token stays in the address bar: %s", at)
	}
	owner.audit("verify-email")
	owner.fill("#password", password)
	owner.press("form button")
	owner.sees("Your address is confirmed.")
	id := s.waitlist(key, full())
	s.api(http.MethodPost, "/public/waitlists/"+id+"/signups", "", object{
		"email": "early@example.com", "consent": true, "custom_answers": object{"size": "Small"},
	})
	owner.enters("/login", "owner@example.com", password)
	owner.sees("Your waitlists", "Kites", "signups: 1")
	owner.audit("login")

	ann := newPerson()
	ann.open("/w/" + id)
	ann.sees("The kite that flies itself")
	ann.audit("form")
	ann.press("form button")
	ann.sees("Please correct", "This field is required.")
	ann.audit("form-wrong")
	// Nothing but a keyboard: the list of questions is left by Tab.
	ann.do(chromedp.Focus(chromedp.CSS("#email")), chromedp.KeyEvent("ann@example.com"),
		chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("Ann"), chromedp.KeyEvent(kb.Tab+kb.Tab+kb.Tab), chromedp.KeyEvent("Small"),
		chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(" "), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(" "),
		chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	ann.sees("You are on the list", "2 of 2", "moves you up by 5")
	ann.audit("thanks")
	row := s.signup(key, id, "ann@example.com")
	if row["first_name"] != "Ann" || fmt.Sprint(row["custom_answers"]) != "map[beta:true size:Small]" {
		t.Errorf("stored: %v", row)
	}
	eval[bool](ann, "window.same = true")
	link := eval[string](ann, `document.querySelector("#link").value`)

	bob := newPerson()
	bob.open(link + "&utm_source=friend")
	bob.sees("A friend invited you")
	bob.fill("#email", "bob@example.com")
	bob.fill(`[name="q.size"]`, "Large")
	bob.press("#consent")
	bob.press("form button")
	bob.sees("You are on the list", "3 of 3")
	ann.sees("1 of 3", "link: 1") // by itself, and all of it
	if !eval[bool](ann, "window.same === true") {
		t.Error("the page was loaded again")
	}

	ann.open("/w/" + id + "/status")
	ann.sees("1 of 3")
	if got := eval[string](ann, `document.querySelector("#link").value`); got != link {
		t.Errorf("a returner sees the link %s, want %s", got, link)
	}
	ann.audit("returning")
	ann.press("[data-forget]")
	ann.sees("Enter the address")
	ann.audit("status")
	// This device has forgotten the link; the address gets it again.
	ann.fill("#email", "ann@example.com")
	ann.press("form button")
	ann.sees("1 of 3")
	ann.audit("place-without-link")
	ann.press("form button")
	ann.sees("If this address is on the list")
	ann.audit("link-mailed")
	mailed := func(path string) string { return s.mailed("ann@example.com", 3, path) }
	if got := mailed("/w/" + id); got != link {
		t.Errorf("mailed %s, want %s", got, link)
	}
	ann.open("/w/" + id + "/leaderboard")
	ann.sees("Rank")
	ann.audit("leaderboard")

	ann.open(mailed("/verify"))
	ann.sees("Confirm that ann@example.com is yours.")
	if at := ann.at(); at.RawQuery != "" {
		t.Errorf("the token stays in the address bar: %s", at)
	}
	ann.audit("verify")
	ann.press("form button")
	ann.sees("Your address is confirmed.")
	ann.open(mailed("/unsubscribe"))
	ann.sees("Stop all mails")
	ann.audit("unsubscribe")
	ann.press("form button")
	ann.sees("You will get no more mails")
	ann.audit("unsubscribed")
	ann.press("form button")
	ann.sees("Your data has been deleted")
	if s.signup(key, id, "ann@example.com") != nil {
		t.Error("the data is still there")
	}
	ann.open("/nothing")
	ann.sees("There is no such page")
	ann.audit("gone")
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{"status": "closed"}})
	ann.open("/w/" + id)
	ann.sees("This waitlist is closed")
	ann.audit("closed")
	ann.open("/register?lang=de")
	ann.sees("Konto anlegen")
	ann.audit("german")
}

// TestWithoutJavaScript goes the ways of a signup and of an account.
func TestWithoutJavaScript(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	key := s.owner()
	id := s.waitlist(key, full())
	p := browser(t, s.server.URL)()
	p.withoutScripts()
	p.open("/w/" + id)
	p.fill("#email", "ann")
	p.press("form button")
	p.sees("Please correct", "Enter a valid email address.")
	p.fill("#email", kb.End+"@example.com")
	p.fill(`[name="q.size"]`, "Large")
	p.press("#consent")
	p.press("form button")
	p.sees("You are on the list", "1 of 1")
	p.open("/w/" + id + "/status")
	p.fill("#email", "ann@example.com")
	p.press("form button")
	p.sees("Your place", "1 of 1")
	p.open(s.server.AwaitMails(t, "ann@example.com", 1)[0].Links()[0].String())
	p.press("form button")
	p.sees("Your address is confirmed.")
	p.open("/w/" + id + "/status")
	p.press("form button.second")
	p.sees("Please correct", "This field is required.")
	p.fill("#email", "ann@example.com")
	p.press("form button.second")
	p.sees("If this address is on the list")
	link := s.server.URL + ref(id, s.signup(key, id, "ann@example.com")["referral_token"])
	if got := s.mailed("ann@example.com", 2, "/w/"+id); got != link {
		t.Errorf("mailed %s, want %s", got, link)
	}
	if row := s.signup(key, id, "ann@example.com"); row["email_verified"] != true {
		t.Errorf("stored: %v", row)
	}
	s.api(http.MethodPost, "/public/waitlists/"+id+"/signups", "", object{
		"email": "bob@example.com", "consent": true, "custom_answers": object{"size": "Small"},
		"referred_by_token": s.signup(key, id, "ann@example.com")["referral_token"],
	})
	p.open(s.mailed("ann@example.com", 3, "/unsubscribe"))
	p.press("form button")
	p.sees("You will get no more mails")
	p.press("form button")
	p.sees("Your data has been deleted")

	p.enters("/register", "next@example.com", password)
	p.sees("Your account is ready", "wl_live_")
	p.open(s.mailed("next@example.com", 1, "/verify-email"))
	p.fill("#password", password)
	p.press("form button")
	p.sees("Your address is confirmed.")
	p.open("/forgot-password")
	p.fill("#email", "next@example.com")
	p.press("form button")
	p.sees("a mail is on its way")
	p.open(s.mailed("next@example.com", 2, "/reset-password"))
	p.fill("#password", "another "+password)
	p.press("form button")
	p.sees("Your password is set.")
	p.enters("/login", "next@example.com", "another "+password)
	p.sees("Your waitlists")
}

// TestRareStates audits what the walk does not meet: a place that is hidden, a redirect that waits, and a limit.
func TestRareStates(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	key := s.owner()
	id := s.waitlist(key, object{"hide_position": true, "redirect_url": "https://owner.invalid/next"})
	newPerson := browser(t, s.server.URL, "https://owner.invalid")
	join := func(p *person, email string) {
		p.open("/w/" + id)
		p.fill("#email", email)
		p.press("form button")
		p.sees("You are on the list", "We will write to you", "You will be redirected in 0:")
	}
	stays, goes := newPerson(), newPerson()
	join(goes, "goes@example.com")
	join(stays, "stays@example.com")
	stays.press("button.second")
	if eval[bool](stays, `document.querySelector("main").textContent.includes("redirected")`) {
		t.Error("the countdown goes on")
	}
	stays.audit("thanks-hidden")
	e2e.Await(t, patience, "the browser is on its way to the owner's site, which is none", func() bool {
		return eval[string](goes, "location.protocol") == "chrome-error:"
	})
	if at := stays.at().Path; at != "/w/"+id {
		t.Errorf("whoever stays is at %s", at)
	}

	// The place was shown when the page was loaded, and is hidden now.
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{"hide_position": false, "redirect_url": nil}})
	stays.open("/w/" + id + "/status")
	stays.sees("2 of 2")
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{"hide_position": true}})
	e2e.Await(t, patience, "the place is hidden", func() bool { return !eval[bool](stays, `!!document.querySelector("[data-live]")`) })

	stays.open("/login")
	for range 10 { // from the browser's own address
		eval[int64](stays, `fetch("/login", {method: "POST", body: new URLSearchParams({email: "owner@example.com", password: "wrong"})})`+
			`.then(r => r.status)`)
	}
	stays.fill("#email", "owner@example.com")
	stays.fill("#password", password)
	stays.press("form button")
	stays.sees("Too many failed logins", "minutes", "Time left: ")
	if !eval[bool](stays, `document.querySelector("form button").disabled`) {
		t.Error("the form can be sent before it is time")
	}
	stays.audit("login-busy")
}

// TestWidget signs somebody up on a site whose policy admits nothing but its own things
// and the widget.
func TestWidget(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	key := s.owner()
	id := s.waitlist(key, full())
	referrer := s.api(http.MethodPost, "/public/waitlists/"+id+"/signups", "", object{
		"email": "early@example.com", "consent": true, "custom_answers": object{"size": "Small"},
	})["referral_token"]
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", fmt.Sprintf("default-src 'self'; script-src 'self' %[1]s; connect-src 'self' %[1]s; "+
			"require-trusted-types-for 'script'; trusted-types 'none'", s.server.URL))
		switch r.URL.Path {
		case "/own.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = fmt.Fprint(w, `window.heard = []; for (const e of ["ready", "joined", "error"]) {
				document.addEventListener("waitlist:" + e, (event) => heard.push(e + " " + (event.detail.email ?? event.detail.code ?? "")));
			}`)
		case "/favicon.ico":
		default:
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = fmt.Fprintf(w, `<!doctype html><html lang="de"><title>A site</title><main><h1>Eine Seite</h1>
				<waitlist-form waitlist="%s"></waitlist-form></main>
				<script src="/own.js"></script><script src="%s/widget.js"></script>`, id, s.server.URL)
		}
	}))
	t.Cleanup(host.Close)
	p := browser(t, host.URL, s.server.URL)()
	p.open(host.URL + "/?utm_source=blog&ref=" + referrer.(string))
	within := func(css string) chromedp.JSPath {
		return chromedp.JSPath(fmt.Sprintf(`document.querySelector("waitlist-form").shadowRoot.querySelector(%q)`, css))
	}
	p.do(chromedp.WaitVisible(within("#f-email")))
	p.audit("widget")
	p.do(chromedp.Click(within("button")))
	p.do(chromedp.WaitVisible(within("#f-consent-error")))
	p.audit("widget-wrong")
	p.do(chromedp.SendKeys(within("#f-email"), "ann@example.com"), chromedp.Click(within("#f-consent")),
		chromedp.SetValue(within(`[name="custom_answers.size"]`), "Large"), chromedp.Click(within("button")))
	p.do(chromedp.WaitVisible(within("[role=status]")))
	if said := eval[string](p, `document.querySelector("waitlist-form").shadowRoot.textContent`); !strings.Contains(said, "Ihr Platz: 2") {
		t.Errorf("the widget says %s", said)
	}
	p.audit("widget-joined")
	if heard := eval[string](p, `heard.join(", ")`); heard != "ready , error VALIDATION_ERROR, joined ann@example.com" {
		t.Errorf("the host hears %s", heard)
	}
	const root = `document.querySelector("waitlist-form").shadowRoot`
	if radius := eval[string](p, `getComputedStyle(`+root+`.querySelector("input")).borderRadius`); radius == "0px" {
		t.Error("the widget has no style")
	}
	row := s.signup(key, id, "ann@example.com")
	if row["referred_by"] != referrer || row["utm"].(object)["utm_source"] != "blog" {
		t.Errorf("stored: %v", row)
	}

	// An accent on which white could not be read, on the widget and on the form itself.
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{"appearance": object{
		"accent": "#ffee00", "button_text": "Count me in", "locale": "en",
	}}})
	s.awaits("/w/"+id, http.StatusOK, "Count me in")
	colours := func(button string) string {
		return eval[string](p, fmt.Sprintf(
			`((b, s) => [b.textContent, s.backgroundColor, s.color].join())(%[1]s, getComputedStyle(%[1]s))`, button))
	}
	const want = "Count me in,rgb(255, 238, 0),rgb(0, 0, 0)"
	p.open(host.URL + "/")
	p.do(chromedp.WaitVisible(within("#f-email")))
	if got := colours(root + `.querySelector("button")`); got != want {
		t.Errorf("the widget's button is %s", got)
	}
	p.audit("widget-look")
	p.open(s.server.URL + "/w/" + id)
	if got := colours(`document.querySelector("form button")`); got != want {
		t.Errorf("the form's button is %s", got)
	}
	p.audit("form-look")
}

// TestWidgetFollows changes what a shown widget depends on: its attributes, and the form.
func TestWidgetFollows(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	key := s.owner()
	first, second := s.waitlist(key, object{"headline": "One"}), s.waitlist(key, object{"phone_field": "optional"})
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprintf(w, `<!doctype html><html lang="en" dir="rtl"><title>A site</title>
			<script>window.heard = []; addEventListener("waitlist:ready", (event) => heard.push(event.detail.waitlist));
				addEventListener("waitlist:error", (event) => heard.push(event.detail.code));</script>
			<waitlist-form></waitlist-form><script src="%s/widget.js"></script>`, s.server.URL)
	}))
	t.Cleanup(host.Close)
	p := browser(t, host.URL, s.server.URL)()
	const widget = `document.querySelector("waitlist-form")`
	within := func(css string) chromedp.JSPath {
		return chromedp.JSPath(fmt.Sprintf(widget+`.shadowRoot.querySelector(%q)`, css))
	}
	set := func(attribute, value string) {
		t.Helper()
		eval[bool](p, fmt.Sprintf(widget+`.setAttribute(%q, %q), true`, attribute, value))
	}
	// A campaign's link that is too long, and a token with the end of a sentence.
	early := s.api(http.MethodPost, "/public/waitlists/"+second+"/signups", "", object{"email": "early@example.com"})
	token, _ := early["referral_token"].(string)
	p.open(host.URL + "/?utm_campaign=" + strings.Repeat("x", 300) + "&ref=" + token + ".")
	if text := eval[string](p, widget+`.shadowRoot.textContent`); text != "" {
		t.Errorf("without a waitlist it shows %q", text)
	}
	set("waitlist", first)
	p.do(chromedp.WaitVisible(within("#f-email")))
	set("waitlist", second)
	p.do(chromedp.WaitVisible(within("#f-phone")))
	p.do(chromedp.SendKeys(within("#f-email"), "ann@example.com"), chromedp.SendKeys(within("#f-last_name"), "Lee"))
	set("locale", "de")
	if got := eval[string](p, `((root) => [root.querySelector("button").textContent, root.querySelector("#f-email").value].join())(`+
		widget+`.shadowRoot)`); got != "Auf die Warteliste,ann@example.com" {
		t.Errorf("in German it shows %s", got)
	}
	for _, width := range []int64{320, 390, 1280} {
		p.do(chromedp.EmulateViewport(width, 800))
		if wide := eval[int64](p, "document.documentElement.scrollWidth"); wide > width {
			t.Errorf("from right to left the site is %d pixels wide, the window %d", wide, width)
		}
	}
	// The owner asks for more meanwhile.
	s.api(http.MethodPatch, "/waitlists/"+second, key, object{"settings": object{"custom_questions": []object{
		{"id": "size", "label": "Size", "type": "text", "required": true},
	}}})
	p.do(chromedp.Click(within("button")), chromedp.WaitVisible(within(`[id="f-custom_answers.size-error"]`)))
	p.do(chromedp.SendKeys(within(`[id="f-custom_answers.size"]`), "Large"), chromedp.Click(within("button")))
	p.do(chromedp.WaitVisible(within("[role=status]")))
	if heard := eval[string](p, `heard.join()`); heard != strings.Join([]string{first, second, "VALIDATION_ERROR", second}, ",") {
		t.Errorf("the host hears %s", heard)
	}
	row := s.signup(key, second, "ann@example.com")
	if row["last_name"] != "Lee" || row["referred_by"] != token || row["utm"].(object)["utm_campaign"] != strings.Repeat("x", 255) {
		t.Errorf("stored: %v", row)
	}
	if list := s.api(http.MethodGet, "/waitlists/"+first+"/signups", key, nil); list["count"] != 0.0 {
		t.Errorf("on the other list: %v", list)
	}
}
