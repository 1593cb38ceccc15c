// Package pages tests the pages as people meet them: a program of its own, mails, and a
// browser.
//
//	http_test.go     without a browser: links, forms, headers, sizes
//	browser_test.go  headless Chromium walks, with and without JavaScript; axe looks for
//	                 what people with disabilities would stumble over
//
// It needs Chromium (Debian: chromium) and npm, which fetches axe.
package pages_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/tools/test/e2e"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds waits on a busy machine.
const patience = time.Minute

const password = "correct horse battery"

// site is a running suite.
type site struct {
	*testing.T
	server *e2e.Server
}

type object = map[string]any

// start starts a suite. env overrides the defaults.
func start(t *testing.T, env map[string]string) *site {
	t.Helper()
	all := map[string]string{"POSTGRES_URL": testenv.Postgres(t)}
	maps.Copy(all, env)
	return startIn(t, e2e.DataDir(t), all)
}

// startIn starts a suite in a folder; env has POSTGRES_URL. A second start in the same folder
// finds what the first one left.
func startIn(t *testing.T, dir string, env map[string]string) *site {
	t.Helper()
	all := map[string]string{
		"RATE_LIMIT_RPS": "100000", "RATE_LIMIT_BURST": "100000", "TRUSTED_PROXIES": "127.0.0.1/32",
	}
	maps.Copy(all, env)
	return &site{t, e2e.Run(t, e2e.Options{Dir: dir, Binary: e2e.Build(t), Env: all})}
}

// answer is an answer with its body read.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a request; key is an API key, an ID token or "".
func (s *site) send(method, path, key, kind string, body io.Reader) answer {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if !strings.HasPrefix(path, "http") {
		path = s.server.URL + path
	}
	req, err := http.NewRequestWithContext(ctx, method, path, body)
	if err != nil {
		s.Fatal(err)
	}
	switch {
	case strings.HasPrefix(key, "wl_"):
		req.Header.Set("X-Api-Key", key)
	case key != "":
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("User-Agent", "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Mobile/15E148")
	req.Header.Set("X-Forwarded-For", "203.0.113.7")
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(raw)}
}

// api calls the REST interface, which must not refuse.
func (s *site) api(method, path, key string, body any) object {
	s.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		s.Fatal(err)
	}
	a := s.send(method, "/v1"+path, key, "application/json", bytes.NewReader(raw))
	if a.status > 299 {
		s.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	out := object{}
	if a.body != "" {
		if err := json.Unmarshal([]byte(a.body), &out); err != nil {
			s.Fatal(err)
		}
	}
	return out
}

// get opens a page.
func (s *site) get(path string) (int, string) {
	s.Helper()
	a := s.send(http.MethodGet, path, "", "", http.NoBody)
	return a.status, a.body
}

// awaits opens a page until it has a status and a text: forms are asked for once a second.
func (s *site) awaits(path string, want int, text string) {
	s.Helper()
	e2e.Await(s, patience, text, func() bool {
		status, page := s.get(path)
		return status == want && strings.Contains(page, text)
	})
}

// post sends a form.
func (s *site) post(path string, form url.Values) (int, string) {
	s.Helper()
	a := s.send(http.MethodPost, path, "", "application/x-www-form-urlencoded", strings.NewReader(form.Encode()))
	return a.status, a.body
}

// owner registers owner@example.com and returns its key.
func (s *site) owner() string {
	s.Helper()
	return s.api(http.MethodPost, "/auth/register", "", object{"email": "owner@example.com", "password": password})["api_key"].(string)
}

// waitlist creates a waitlist and returns its id.
func (s *site) waitlist(key string, settings object) string {
	s.Helper()
	return s.api(http.MethodPost, "/waitlists", key, object{"name": "Kites", "settings": settings})["waitlist_id"].(string)
}

// mailed waits for n mails to somebody, and returns the link of one of them that leads to a path.
func (s *site) mailed(to string, n int, path string) string {
	s.Helper()
	for _, m := range s.server.AwaitMails(s, to, n) {
		for _, link := range m.Links() {
			if link.Path == path {
				return link.String()
			}
		}
	}
	s.Fatalf("no mail leads to %s", path)
	return ""
}

// signup returns what owners see of a signup; nil: there is none.
func (s *site) signup(key, id, email string) object {
	s.Helper()
	for _, row := range s.api(http.MethodGet, "/waitlists/"+id+"/signups", key, nil)["signups"].([]any) {
		if row := row.(object); row["email"] == email {
			return row
		}
	}
	return nil
}

// wants fails unless a page has a status and texts.
func (s *site) wants(status int, page string, want int, texts ...string) {
	s.Helper()
	if status != want {
		s.Errorf("status %d, want %d\n%s", status, want, page)
	}
	for _, text := range texts {
		if !strings.Contains(page, text) {
			s.Errorf("the page lacks %q\n%s", text, page)
		}
	}
}

func ref(id, token any) string { return fmt.Sprintf("/w/%s?ref=%s", id, token) }
