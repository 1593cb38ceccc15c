package pages_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"waitlist.internal/tools/test/e2e"
)

// TestReference finds an operation in the API reference, calls it there, and looks up the
// error that it gets.
func TestReference(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	key := s.owner()
	p := browser(t, s.server.URL)()
	p.open("/")
	p.press(`a[href="/docs"]`)
	p.sees("API reference", "createWaitlist")
	p.audit("docs")
	p.fill("#filter", "post createwait")
	e2e.Await(t, patience, "fewer operations", func() bool {
		return eval[bool](p, `!document.getElementById("createSignup").closest("details").checkVisibility() &&
			document.getElementById("createWaitlist").closest("details").checkVisibility()`)
	})

	// Nothing but a keyboard, from the operation's own link on.
	p.open("/docs#createWaitlist")
	e2e.Await(t, patience, "an open operation", func() bool {
		return eval[bool](p, `document.getElementById("createWaitlist").closest("details").open`)
	})
	p.do(chromedp.Focus(chromedp.CSS("#createWaitlist-body")), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	p.sees("401", "What AUTHENTICATION_REQUIRED means")
	p.audit("docs-refused")
	p.do(chromedp.Focus(chromedp.CSS("#createWaitlist .answer a")), chromedp.KeyEvent(kb.Enter))
	p.sees("Error codes", "exchange the refresh token")
	if at := p.at(); at.Path != "/docs/errors" || at.Fragment != "AUTHENTICATION_REQUIRED" {
		t.Errorf("the code leads to %s", at)
	}
	p.audit("docs-errors")

	p.open("/docs#createWaitlist")
	p.fill("#key", key)
	p.fill("#createWaitlist-body", kb.End)
	p.press("#createWaitlist form button")
	p.sees("201", `"waitlist_id"`)
	lists := s.api(http.MethodGet, "/waitlists", key, nil)["waitlists"].([]any)
	if len(lists) != 1 {
		t.Errorf("%d waitlists", len(lists))
	}
	p.picture("docs", "#createWaitlist .answer", 800, 700)
}

// TestDocument fetches the contract as programs do.
func TestDocument(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for path, kind := range map[string]string{"/openapi.yaml": "application/yaml", "/openapi.json": "application/json"} {
		a := s.send(http.MethodGet, path, "", "", http.NoBody)
		if a.status != http.StatusOK || a.header.Get("Content-Type") != kind || a.header.Get("Access-Control-Allow-Origin") != "*" ||
			!strings.Contains(a.body, s.server.URL+"/v1") {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
	}
	document := object{}
	if err := json.Unmarshal([]byte(s.send(http.MethodGet, "/openapi.json", "", "", http.NoBody).body), &document); err != nil {
		t.Fatal(err)
	}
	if document["openapi"] != "3.1.0" {
		t.Errorf("openapi %v", document["openapi"])
	}
	_, page := s.get("/docs")
	t.Logf("the reference: %d bytes, %d compressed", len(page), compressed(t, page))
	if n := compressed(t, page); n > 100_000 {
		t.Errorf("the reference has %d bytes compressed", n)
	}
	_, errors := s.get("/docs/errors")
	for _, code := range []string{"RATE_LIMITED", "TIER_REQUIRED", "INTERNAL_ERROR"} {
		if !strings.Contains(errors, `<section id="`+code+`">`) {
			t.Errorf("there is no section about %s", code)
		}
	}
}
