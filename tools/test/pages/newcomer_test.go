package pages_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"waitlist.internal/tools/test/e2e"
)

// TestNewcomer clicks through what make run offers, with the mails that the suite itself
// shows: account, reference, form, mail.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]string{"TRUSTED_PROXIES": "none", "DEV_KEY": "secret"})
	p := browser(t, s.server.URL)()
	p.open("/dev/mail?key=secret") // once: then it is in a cookie
	p.sees("There are no mails yet")
	p.press(`a[href="/register"]`)
	p.fill("#email", "owner@example.com")
	p.fill("#password", password)
	p.press("form button")
	p.sees("Your account is ready", "wl_live_")
	key := strings.TrimSpace(eval[string](p, `document.querySelector("#key").textContent`))
	s.server.AwaitMails(t, "owner@example.com", 1)
	p.open("/dev/mail")
	p.sees("to owner@example.com")
	p.audit("inbox")
	p.press(`a[href^="/dev/mail/"]`)
	p.sees("From", "to owner@example.com", "Links")
	p.audit("inbox-mail")
	p.press(`a[href*="/verify-email?"]`)
	p.sees("Enter the password")
	p.fill("#password", password)
	p.press("form button")
	p.sees("Your address is confirmed.")

	p.open("/docs#createWaitlist")
	p.fill("#key", key)
	p.press("#createWaitlist form button")
	p.sees("201", `"waitlist_id"`)
	id := eval[string](p, `JSON.parse(document.querySelector("#createWaitlist .answer pre").textContent).waitlist_id`)
	s.api(http.MethodPatch, "/waitlists/"+id, key, object{"settings": object{"require_email_verification": true}})
	p.open("/w/" + id)
	p.fill("#email", "ann@example.com")
	p.press("form button")
	p.sees("You are on the list", "1 of 1")
	s.server.AwaitMails(t, "ann@example.com", 1)
	p.open("/dev/mail")
	p.sees("to ann@example.com")
	p.press(`li:first-child a[href^="/dev/mail/"]`)
	p.sees("to ann@example.com")
	p.press(`a[href*="/verify?"]`)
	p.sees("Confirm that ann@example.com is yours.")
	p.press("form button")
	p.sees("Your address is confirmed.")

	// A mail's own HTML runs no script and asks nobody; its links take the whole window.
	s.api(http.MethodPost, "/waitlists/"+id+"/blasts", key, object{
		"subject":   "Look",
		"html_body": `<p><a href="` + s.server.URL + `/docs/errors">Codes</a></p><img src="https://example.com/x.png">`,
	})
	s.server.AwaitMails(t, "ann@example.com", 2)
	p.open("/dev/mail")
	p.sees("Look")
	p.press(`li:first-child a[href^="/dev/mail/"]`)
	p.sees("HTML")
	if sandbox := eval[string](p, `document.querySelector("iframe").getAttribute("sandbox")`); strings.Contains(sandbox, "scripts") {
		t.Errorf("the mail may run scripts: %s", sandbox)
	}
}

// TestReset forgets a password, sets another by the mail, and logs in with it.
func TestReset(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.owner()
	p := browser(t, s.server.URL)()
	p.open("/login")
	p.press(`a[href="/forgot-password"]`)
	p.sees("Forgot")
	p.audit("forgot")
	p.fill("#email", "owner@example.com")
	p.press("form button")
	p.sees("a mail is on its way")
	for _, mail := range s.server.AwaitMails(t, "owner@example.com", 2) {
		for _, link := range mail.Links() {
			if link.Path == "/reset-password" {
				p.open(link.String())
			}
		}
	}
	if at := p.at(); at.RawQuery != "" || at.Path != "/reset-password" {
		t.Errorf("the token stays in the address bar: %s", at)
	}
	p.audit("reset")
	p.fill("#password", "short")
	p.press("form button")
	p.sees("Please correct")
	p.fill("#password", "another horse battery")
	p.press("form button")
	p.sees("Your password is set.")
	p.enters("/login", "owner@example.com", password)
	p.sees("The address or the password is wrong.")
	p.fill("#password", "another horse battery")
	p.press("form button")
	p.sees("Your waitlists")
}

// TestPayment cancels a payment at the simulator, pays, and comes back each time, with and without JavaScript.
func TestPayment(t *testing.T) {
	t.Parallel()
	for name, scripts := range map[string]bool{"with JavaScript": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPayment(t, scripts)
		})
	}
}

func testPayment(t *testing.T, scripts bool) {
	t.Helper()
	s := start(t, nil)
	key := s.owner()
	p := browser(t, s.server.URL)()
	audit := p.audit
	if !scripts {
		p.withoutScripts()
		audit = func(string) {} // axe is a script
	}
	checkout := func() {
		t.Helper()
		opened := s.api(http.MethodPost, "/billing/checkout", key, object{"tier": "advanced", "interval": "monthly"})
		p.open(opened["url"].(string))
	}
	checkout()
	p.press(`button[value="cancel"]`)
	p.sees("Nothing was charged")
	if at := p.at(); at.Path != "/billing/canceled" {
		t.Errorf("canceling leads to %s", at)
	}
	audit("billing-canceled")
	checkout()
	p.press(`button[value="decline"]`)
	p.do(chromedp.WaitVisible(chromedp.CSS("[role=alert]")))
	p.press(`button[value="pay"]`)
	p.sees("Thank you")
	if at := p.at(); at.Path != "/billing/success" {
		t.Errorf("paying leads to %s", at)
	}
	audit("billing-success")
	var me object
	e2e.Await(t, patience, "an active subscription", func() bool {
		me = s.api(http.MethodGet, "/auth/me", key, nil)
		return me["subscription_status"] == "active"
	})
	if me["subscription_tier"] != "advanced" {
		t.Errorf("paid for %v", me)
	}
	portal := s.api(http.MethodPost, "/billing/portal", key, nil)["url"].(string)
	p.open(portal)
	p.press(`button[value="return"]`)
	p.sees("Plans and invoices")
	audit("billing")
}

// TestKeyboard registers and signs up with a keyboard alone, and sees where it is at each
// stop.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	p := browser(t, s.server.URL)()
	p.open("/")
	p.tabTo(`a[href="/register"]`)
	p.do(chromedp.KeyEvent(kb.Enter))
	p.sees("Create an account")
	p.tabTo("#email")
	p.do(chromedp.KeyEvent("owner@example.com"))
	p.tabTo("#password")
	p.do(chromedp.KeyEvent("short" + kb.Enter))
	p.sees("Please correct")
	if !eval[bool](p, `document.activeElement.matches(".problem")`) {
		t.Error("the problem has no focus")
	}
	p.tabTo("#password")
	p.do(chromedp.KeyEvent(password + kb.Enter))
	p.sees("Your account is ready")
	key := strings.TrimSpace(eval[string](p, `document.querySelector("#key").textContent`))
	id := s.waitlist(key, full())
	p.open("/w/" + id)
	p.tabTo("#email")
	p.do(chromedp.KeyEvent("ann@example.com"))
	p.tabTo(`[name="q.size"]`)
	p.do(chromedp.KeyEvent("Large"))
	p.tabTo("#consent")
	p.do(chromedp.KeyEvent(" "))
	p.tabTo("form button")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.sees("You are on the list", "1 of 1")
	for _, stop := range []string{"#link", "[data-copy]", `a[href$="/leaderboard"]`} {
		p.tabTo(stop)
	}
}
