package http

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"waitlist.internal/libs/httpapi"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/pages/api"
	"waitlist.internal/services/pages/forms"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTexts compares the catalogues with each other and with the keys that the pages use.
func TestTexts(t *testing.T) {
	all, err := loadLanguages()
	if err != nil {
		t.Fatal(err)
	}
	verbs := regexp.MustCompile(`%[a-z]`)
	first := all.list[0]
	for _, c := range all.list {
		for key, text := range c.texts {
			if strings.HasPrefix(key, apiPrefix) {
				continue
			}
			other, ok := first.texts[key]
			if !ok {
				t.Errorf("%s: %s has no %q", key, first.lang, key)
			}
			if !slices.Equal(verbs.FindAllString(text, -1), verbs.FindAllString(other, -1)) {
				t.Errorf("%s: %q and %q say other values", key, text, other)
			}
		}
		for key := range first.texts {
			if _, ok := c.texts[key]; !ok {
				t.Errorf("%s has no %q", c.lang, key)
			}
		}
	}
	used := regexp.MustCompile(`(?:T|text)[ (]"([a-z_.]+)"|(?:Key|Data|say|message)[^"\n]*"([a-z]+\.[a-z.]+)"(?:, "([a-z]+\.[a-z.]+)")?`)
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	templates, err := filepath.Glob("templates/*.html")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range append(sources, templates...) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range used.FindAllStringSubmatch(string(source), -1) {
			for _, key := range m[1:] {
				if key == "" || strings.HasSuffix(key, ".js") || strings.HasSuffix(key, ".css") || strings.HasSuffix(key, ".svg") {
					continue
				}
				found++
				if _, ok := first.texts[key]; !ok {
					t.Errorf("%s: there is no text %q", path, key)
				}
			}
		}
	}
	if found < 80 {
		t.Errorf("found only %d keys", found)
	}
}

// backend stands for signup, with one form.
type backend struct {
	form string
	err  error
}

func (s backend) GetForm(
	context.Context, *signupv1.GetFormRequest, ...grpc.CallOption,
) (*signupv1.GetFormResponse, error) {
	return &signupv1.GetFormResponse{Version: "1", ConfigJson: []byte(s.form)}, s.err
}

func (backend) CountViews(
	context.Context, *signupv1.CountViewsRequest, ...grpc.CallOption,
) (*signupv1.CountViewsResponse, error) {
	return nil, errors.New("not asked here")
}

const list = "0193d4a2-5c1e-7a41-8000-000000000001"

// pages returns the pages in front of an API and of signup.
func pages(t *testing.T, base string, s signupv1.FormServiceClient) http.Handler {
	t.Helper()
	return pagesAt(t, base, s, time.Now)
}

func pagesAt(t *testing.T, base string, s signupv1.FormServiceClient, now func() time.Time) http.Handler {
	t.Helper()
	return pagesShown(t, base, s, now, func(string) {})
}

func pagesShown(t *testing.T, base string, s signupv1.FormServiceClient, now func() time.Time, shown func(string)) http.Handler {
	t.Helper()
	engine, err := httpapi.NewEngine(httpapi.Config{TrustedProxies: []string{"192.0.2.1"}})
	if err != nil {
		t.Fatal(err)
	}
	client := api.New(base + "/v1")
	t.Cleanup(client.Close)
	if err := Routes(engine, Backends{
		API: client, Forms: forms.New(s, now), Shown: shown, Public: "https://example.com", Log: slog.New(slog.DiscardHandler),
	}); err != nil {
		t.Fatal(err)
	}
	return engine
}

// ask sends a request through a trusted proxy; a form makes it a POST.
func ask(t *testing.T, h http.Handler, path string, form url.Values) *httptest.ResponseRecorder {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(form.Encode()))
	r.Header.Set("User-Agent", "Browser/1")
	r.Header.Set("X-Forwarded-For", "203.0.113.9")
	r.Header.Set("Accept-Language", "de-AT,de;q=0.8")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestFailures has no API, and something else in its place.
func TestFailures(t *testing.T) {
	nobody := httptest.NewServer(nil)
	nobody.Close()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>no upstream", http.StatusServiceUnavailable)
	}))
	t.Cleanup(gateway.Close)
	for name, base := range map[string]string{"nobody": nobody.URL, "a gateway": gateway.URL} {
		t.Run(name, func(t *testing.T) {
			h := pages(t, base, backend{err: errors.New("away")})
			for path, form := range map[string]url.Values{
				"/w/" + list: nil, "/w/id/leaderboard": nil, "/login": {"email": {"a@example.com"}},
				"/verify": {"waitlist": {list}, "email": {"a"}, "token": {"x"}},
			} {
				w := ask(t, h, path, form)
				if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "Bei uns ist etwas schiefgegangen") ||
					!strings.Contains(w.Body.String(), "Anfrage "+w.Header().Get("X-Request-Id")) {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
		})
	}
}

// TestForwards checks what the API learns of a visitor, and what the visitor of the API.
func TestForwards(t *testing.T) {
	var got *http.Request
	var sent map[string]any
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		_ = json.NewDecoder(r.Body).Decode(&sent)
		w.Header().Set("Retry-After", "17")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error":"Too many requests.","error_code":"RATE_LIMITED","request_id":"r1"}`))
	}))
	t.Cleanup(upstream.Close)
	w := ask(t, pages(t, upstream.URL, backend{form: `{"waitlist_id":"` + list + `","name":"Kites","status":"open"}`}), "/w/"+list, url.Values{
		"email": {"a@example.com"}, "ref": {"abc"}, "elapsed_ms": {"1e9"}, "unknown": {"x"}, "utm_source": {""},
	})
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "17" || w.Header().Get("Access-Control-Allow-Origin") != "" ||
		!strings.Contains(w.Body.String(), "in 17 Sekunden") || !strings.Contains(w.Body.String(), `data-seconds="17"`) ||
		!strings.Contains(w.Body.String(), `value="a@example.com"`) {
		t.Errorf("%d %v\n%s", w.Code, w.Header(), w.Body)
	}
	if got.UserAgent() != "Browser/1" || got.Header.Get("X-Forwarded-For") != "203.0.113.9" ||
		got.Header.Get("X-Request-Id") != w.Header().Get("X-Request-Id") {
		t.Errorf("sent %v", got.Header)
	}
	if want := map[string]any{"email": "a@example.com", "referred_by_token": "abc"}; fmt.Sprint(sent) != fmt.Sprint(want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
}

// TestAddedValuesKeepNobodyOut: what a link or the browser adds to a form is cut, or left out where the API refuses it.
func TestAddedValuesKeepNobodyOut(t *testing.T) {
	var sent []map[string]any
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		sent = append(sent, body)
		if body["timezone"] != nil {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"Check the field.","error_code":"VALIDATION_ERROR","request_id":"r1",` +
				`"errors":[{"field":"timezone","message":"No."}]}`))
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"email":"a@example.com","position":1,"referral_count":0,"total_signups":1}`))
	}))
	t.Cleanup(upstream.Close)
	token := strings.Repeat("0f", 16)
	w := ask(t, pages(t, upstream.URL, backend{form: `{"waitlist_id":"` + list + `","name":"Kites","status":"open"}`}), "/w/"+list, url.Values{
		"email": {"a@example.com"}, "timezone": {"Etc/Unknown"}, "utm_campaign": {"a\x00" + strings.Repeat("ü", 300)}, "ref": {token + ".)"},
	})
	if w.Code != http.StatusOK || len(sent) != 2 {
		t.Fatalf("%d after %v", w.Code, sent)
	}
	want := map[string]any{"email": "a@example.com", "utm_campaign": "a" + strings.Repeat("ü", 254), "referred_by_token": token}
	if !reflect.DeepEqual(sent[1], want) {
		t.Errorf("sent %v", sent[1])
	}
}

// TestViews: robots and previews that say so do not see a form.
func TestViews(t *testing.T) {
	views := 0
	h := pagesShown(t, "http://127.0.0.1:1", backend{form: `{"waitlist_id":"` + list + `","name":"Kites","status":"open"}`}, time.Now,
		func(string) { views++ })
	for agent, counts := range map[string]bool{
		"Mozilla/5.0 (Linux; Android 14; CUBOT NOTE 50) AppleWebKit/537.36 Chrome/130.0.0.0 Mobile Safari/537.36": true,
		"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0":                                  true,
		"": true,
		"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)":                                      false,
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)": false,
		"Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)":                                                    false,
		"facebookexternalhit/1.1": false,
		"WhatsApp/2.23.20.0 A":    false,
		"Mozilla/5.0 (Windows NT 6.1; WOW64) SkypeUriPreview Preview/0.5": false,
		"TelegramBot (like TwitterBot)":                                   false,
		"Baiduspider+(+http://www.baidu.com/search/spider.htm)":           false,
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			before := views
			r := httptest.NewRequestWithContext(t.Context(), method, "/w/"+list, nil)
			r.Header.Set("User-Agent", agent)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if counted := views > before; w.Code != http.StatusOK || counted != (counts && method == http.MethodGet) {
				t.Errorf("%s by %q: %d, counted %v", method, agent, w.Code, counted)
			}
		}
	}
}

// TestDrawn: a form that was drawn for one visitor shows nothing of them to the next.
func TestDrawn(t *testing.T) {
	h := pages(t, "http://127.0.0.1:1", backend{form: `{"waitlist_id":"` + list + `","name":"Kites","status":"open"}`})
	first, second := strings.Repeat("a1", 16), strings.Repeat("b2", 16)
	for range 2 {
		for _, query := range []string{
			"", "?ref=" + first, "?ref=" + second, "?ref=" + first + "&utm_source=news", "?email=ann@example.com", "?ref=%22%3Ex",
			"?ref=" + first + "&lang=en",
		} {
			w := ask(t, h, "/w/"+list+query, nil)
			body := w.Body.String()
			asked, _ := url.ParseQuery(strings.TrimPrefix(query, "?"))
			for name, value := range map[string]string{
				"ref": asked.Get("ref"), "utm_source": asked.Get("utm_source"), "email": asked.Get("email"),
			} {
				shown := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(body)
				if len(shown) < 2 {
					shown = []string{"", ""}
				}
				if shown[1] != html.EscapeString(value) {
					t.Errorf("%q: %s is %q", query, name, shown[1])
				}
			}
			if strings.Contains(body, "E-Mail-Adresse") == (asked.Get("lang") == "en") ||
				w.Header().Get("Content-Length") != strconv.Itoa(len(body)) || !strings.HasSuffix(strings.TrimSpace(body), "</html>") {
				t.Errorf("%q: %v\n%s", query, w.Header(), body)
			}
		}
	}
}

// TestDrawnAnew: the page follows the form, and what was drawn before is not kept.
func TestDrawnAnew(t *testing.T) {
	now := time.Now()
	s := &backend{}
	h := pagesAt(t, "http://127.0.0.1:1", s, func() time.Time { return now })
	for _, name := range []string{"Kites", "Boats"} {
		s.form = `{"waitlist_id":"` + list + `","name":"` + name + `","status":"open"}`
		now = now.Add(2 * time.Second)
		if w := ask(t, h, "/w/"+list, nil); !strings.Contains(w.Body.String(), name) {
			t.Errorf("%s is not shown: %s", name, w.Body)
		}
	}
	var d drawn
	kept := func() (bytes int) {
		for _, p := range d.pages {
			bytes += p.bytes
		}
		return bytes
	}
	for range 1000 { // signup sends the form again each second
		d.keep(drawing{id: list}, drawnPage{form: new(forms.Form), bytes: maxDrawn / 100})
	}
	if len(d.pages) != 1 || d.bytes != kept() {
		t.Errorf("%d pages are kept with %d bytes, said to be %d", len(d.pages), kept(), d.bytes)
	}
	for i := range 1000 {
		d.keep(drawing{id: strconv.Itoa(i)}, drawnPage{form: new(forms.Form), bytes: maxDrawn / 100})
		if d.bytes != kept() || d.bytes > maxDrawn {
			t.Fatalf("%d pages are kept with %d bytes, said to be %d", len(d.pages), kept(), d.bytes)
		}
	}
}

// TestContrast holds every colour of a grid against WCAG AA: text on it, and links in it.
func TestContrast(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want float64
	}{{"#000000", "#ffffff", 21}, {"#777777", "#ffffff", 4.48}, {"#3730a3", "#ffffff", 9.93}} {
		if got := contrast(c.a, c.b); math.Abs(got-c.want) > .01 {
			t.Errorf("%s on %s: %.2f, want %.2f", c.a, c.b, got, c.want)
		}
	}
	for n := range 16 * 16 * 16 {
		accent := fmt.Sprintf("#%02x%02x%02x", (n>>8)*17, (n>>4&15)*17, (n&15)*17)
		if got := contrast(accent, onAccent(accent)); got < 4.5 {
			t.Errorf("text on %s: %.2f", accent, got)
		}
		for _, p := range []palette{light(), dark()} {
			if got := contrast(p.line(accent), p.ground); got < 4.5 {
				t.Errorf("%s on %s: %.2f", accent, p.ground, got)
			}
		}
	}
	css, err := assetFiles.ReadFile("assets/page.css")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []palette{light(), dark()} {
		ground := strings.Replace(p.ground, "#ffffff", "#fff", 1)
		if !strings.Contains(string(css), "--ground: "+ground+";") || !strings.Contains(string(css), "--accent: "+p.accent+";") {
			t.Errorf("page.css has other colours than %v", p)
		}
	}
}

// TestLook: a form's colour, logo, button and language are on its pages, and its policy
// admits them and nothing else.
func TestLook(t *testing.T) {
	form := func(look string) string {
		return `{"waitlist_id":"` + list + `","name":"Kites","status":"open","hero_image_url":"https://a.example/x.png",` +
			`"appearance":` + look + `}`
	}
	h := pages(t, "http://127.0.0.1:1", backend{
		form: form(`{"accent":"#ffee00","logo_url":"https://b.example/l.svg?x='y","button_text":"Go <now>","locale":"en"}`),
	})
	for _, path := range []string{"", "/status"} {
		w := ask(t, h, "/w/"+list+path, nil)
		body, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
		style := regexp.MustCompile(`<style>(.*)</style>`).FindStringSubmatch(body)
		if len(style) < 2 || !strings.HasPrefix(style[1], ":root{--accent:#ffee00;--on-accent:#000000;--line-accent:#3730a3}") {
			t.Fatalf("%s: style %v", path, style)
		}
		sum := sha256.Sum256([]byte(style[1]))
		if !strings.Contains(policy, "style-src 'self' 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"';") ||
			!strings.Contains(policy, " https://b.example;") || strings.Contains(policy, "a.example") != (path == "") {
			t.Errorf("%s: policy %s", path, policy)
		}
		if !strings.Contains(body, `lang="en"`) || !strings.Contains(body, `<img class="logo" src="https://b.example/l.svg?x=%27y"`) ||
			(path == "") != strings.Contains(body, "Go &lt;now&gt;") {
			t.Errorf("%s\n%s", path, body)
		}
	}
	if body := ask(t, h, "/w/"+list+"?lang=de", nil).Body.String(); !strings.Contains(body, `lang="de"`) {
		t.Error("the owner's language wins over the one that was asked for")
	}
	for _, look := range []string{"{}", `{"accent":"red;}*{display:none"}`, `{"logo_url":"https://b;sandbox/l.svg"}`} {
		w := ask(t, pages(t, "http://127.0.0.1:1", backend{form: form(look)}), "/w/"+list, nil)
		policy := w.Header().Get("Content-Security-Policy")
		if strings.Contains(w.Body.String(), "<style>") || strings.Contains(policy, "sha256") || strings.Contains(policy, "sandbox") {
			t.Errorf("%s: %s\n%s", look, policy, w.Body)
		}
	}
}

// upstream is an API that answers as f says and keeps what it was asked.
func upstream(t *testing.T, f func(path string) (status int, header map[string]string, body string)) (base string, asked *[]string) {
	t.Helper()
	asked = new([]string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Method+" "+r.URL.Path)
		status, header, body := f(r.URL.Path)
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

const open = `{"waitlist_id":"` + list + `","name":"Kites","status":"open","name_field":"optional"}`

// TestOtherSites: a form on another site reaches nothing, so that it cannot make a browser
// remember a stranger's link.
func TestOtherSites(t *testing.T) {
	base, asked := upstream(t, func(string) (int, map[string]string, string) { return http.StatusOK, nil, `{"email":"a@example.com"}` })
	h := pages(t, base, backend{form: open})
	for site, want := range map[string]int{"cross-site": http.StatusForbidden, "same-origin": http.StatusOK, "": http.StatusOK} {
		*asked = nil
		form := url.Values{"email": {"a@example.com"}, "token": {strings.Repeat("0f", 16)}}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/w/"+list+"/status", strings.NewReader(form.Encode()))
		r.Header.Set("Sec-Fetch-Site", site)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || strings.Contains(w.Body.String(), "data-remember") != (want == http.StatusOK) ||
			(len(*asked) == 0) != (want == http.StatusForbidden) {
			t.Errorf("%q: %d, asked %v\n%s", site, w.Code, *asked, w.Body)
		}
	}
}

// TestWhatCannotBeSent: a body that is too long and text in broken UTF-8 are refused with a page, before the API is asked.
func TestWhatCannotBeSent(t *testing.T) {
	base, asked := upstream(t, func(string) (int, map[string]string, string) { return http.StatusCreated, nil, `{}` })
	h := pages(t, base, backend{form: open})
	for name, tc := range map[string]struct {
		form url.Values
		says string
	}{
		"long":   {url.Values{"email": {strings.Repeat("a", maxForm)}}, "Diese Angaben sind zu lang."},
		"broken": {url.Values{"email": {"a@example.com"}, "first_name": {"\xff\xfe"}}, "Dieser Text ist nicht lesbar"},
	} {
		w := ask(t, h, "/w/"+list, tc.form)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), tc.says) ||
			!strings.Contains(w.Body.String(), "Anfrage "+w.Header().Get("X-Request-Id")) || len(*asked) > 0 {
			t.Errorf("%s: %d, asked %v\n%s", name, w.Code, *asked, w.Body)
		}
	}
}

// TestLogOut: a login's session ends although the page cannot be shown, and although the first try to end it is put off.
func TestLogOut(t *testing.T) {
	busy := map[string]string{"Retry-After": "1"}
	const tooMany = `{"error":"Too many requests. Please try again later.","error_code":"RATE_LIMITED","request_id":"r"}`
	ends := 0
	base, _ := upstream(t, func(path string) (int, map[string]string, string) {
		switch path {
		case "/v1/auth/login":
			return http.StatusOK, nil, `{"id_token":"i","refresh_token":"r"}`
		case "/v1/auth/logout":
			if ends++; ends == 2 {
				return http.StatusNoContent, nil, ""
			}
		}
		return http.StatusTooManyRequests, busy, tooMany
	})
	w := ask(t, pages(t, base, backend{}), "/login", url.Values{"email": {"a@example.com"}, "password": {"secret"}})
	if ends != 2 || w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), `action="/login"`) {
		t.Errorf("the session was ended %d times; %d\n%s", ends, w.Code, w.Body)
	}
}

// TestLinksOnceMore: where a mail's link may work later, its button is still there; a link without a token is none.
func TestLinksOnceMore(t *testing.T) {
	base, _ := upstream(t, func(path string) (int, map[string]string, string) {
		if strings.HasSuffix(path, "/verify") {
			return http.StatusTooManyRequests, map[string]string{"Retry-After": "847"},
				`{"error":"Too many failed logins. Please try again later.","error_code":"RATE_LIMITED","request_id":"r"}`
		}
		return http.StatusServiceUnavailable, nil, "a gateway"
	})
	h := pages(t, base, backend{})
	form := url.Values{"waitlist": {list}, "email": {"a@example.com"}, "token": {"t0"}}
	for path, want := range map[string]struct {
		status int
		says   []string
	}{
		"/verify": {http.StatusTooManyRequests, []string{
			"Zu viele Anmeldeversuche.", "in 15 Minuten", `data-seconds="847"`, `data-text="Noch %s"`,
		}},
		"/unsubscribe":    {http.StatusBadGateway, nil},
		"/delete-my-data": {http.StatusBadGateway, nil},
	} {
		w := ask(t, h, path, form)
		for _, s := range append(want.says, `action="`+path+`"`, `name="token" value="t0"`) {
			if w.Code != want.status || !strings.Contains(w.Body.String(), s) {
				t.Errorf("%s: %d without %q\n%s", path, w.Code, s, w.Body)
			}
		}
		if w := ask(t, h, path, url.Values{"email": {"a@example.com"}}); w.Code != http.StatusNotFound {
			t.Errorf("%s without a token: %d", path, w.Code)
		}
	}
}

// TestPlace: the page names what page.js keeps current, and moves nobody on without being asked.
func TestPlace(t *testing.T) {
	base, _ := upstream(t, func(string) (int, map[string]string, string) {
		return http.StatusCreated, nil, `{"email":"a@example.com","position":1204,"total_signups":2000,"referral_count":3,` +
			`"referral_token":"` + strings.Repeat("0f", 16) + `","redirect_url":"https://example.com/next"}`
	})
	w := ask(t, pages(t, base, backend{form: open}), "/w/"+list, url.Values{"email": {"a@example.com"}})
	for _, s := range []string{
		`data-value="position">1.204<`, `data-value="total_signups" data-text="von %d">von 2.000<`,
		`data-value="referral_count" data-text="Anmeldungen über Ihren Link: %d">Anmeldungen über Ihren Link: 3<`,
		`href="https://example.com/next" data-redirect`,
	} {
		if !strings.Contains(w.Body.String(), s) {
			t.Errorf("the page lacks %s\n%s", s, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), "http-equiv") {
		t.Error("the page reloads by itself")
	}
}

// TestAssets: versions of the widget are kept, and other versions' files get the present ones.
func TestAssets(t *testing.T) {
	h := pages(t, "http://127.0.0.1:1", backend{})
	named, served, err := loadAssets()
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for address, a := range served {
		sum := sha256.Sum256(a.body)
		if !strings.Contains(address, fmt.Sprintf("-%x.", sum[:6])) {
			t.Errorf("%s has other content than its name says", address)
		}
		if _, err := assetFiles.ReadFile("assets/widgets" + strings.TrimPrefix(address, "/assets")); err == nil {
			kept++
		}
		w := ask(t, h, address, nil)
		if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != forGood || w.Body.String() != string(a.body) {
			t.Errorf("%s: %d %v", address, w.Code, w.Header())
		}
	}
	if _, err := assetFiles.ReadFile("assets/widgets" + strings.TrimPrefix(named["widget.js"].url, "/assets")); err != nil || kept == 0 {
		t.Errorf("today's widget is not kept; run go generate: %v", err)
	}
	w := ask(t, h, "/assets/page-0123456789ab.css", nil)
	if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "no-store" || w.Body.String() != string(named["page.css"].body) {
		t.Errorf("another version's style: %d %v", w.Code, w.Header())
	}
	for _, path := range []string{"/assets/none-0123456789ab.css", "/assets/page.css", "/assets/widgets", "/assets/"} {
		if w := ask(t, h, path, nil); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "<h1>") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for accepted, want := range map[string]bool{
		"": false, "gzip": true, "br, GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0, br": false, "x-gzip": false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/widget.js", http.NoBody)
		r.Header.Set("Accept-Encoding", accepted)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if packed := w.Header().Get("Content-Encoding") == "gzip"; packed != want || (w.Body.Len() < len(named["widget.js"].body)) != want {
			t.Errorf("%q: %v, %d bytes", accepted, w.Header(), w.Body.Len())
		}
	}
}
