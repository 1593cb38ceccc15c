package standalone_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMailsAreShownToThisMachine reads a mail as a newcomer does, and as others try to.
func TestMailsAreShownToThisMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var banner strings.Builder
	s := start(t, dir, &banner)
	if !strings.Contains(banner.String(), s.URL+"/dev/mail") || !strings.Contains(banner.String(), s.URL+"/docs") {
		t.Errorf("the banner does not name the pages:\n%s", banner.String())
	}
	if err := os.WriteFile(filepath.Join(dir, "secret.eml"), []byte("Subject: no"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, body := call(t, http.MethodGet, s.URL+"/dev/mail", "")
	if status != http.StatusOK || !strings.Contains(string(body), "There are no mails yet") {
		t.Errorf("%d %s", status, body)
	}
	status, body = call(t, http.MethodPost, s.URL+"/v1/auth/register", `{"email":"a@example.com","password":"correct horse"}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	entry := regexp.MustCompile(`href="(/dev/mail/[^"]+)">([^<]+)</a><br>to a@example\.com`)
	var found [][]byte
	for end := time.Now().Add(time.Minute); found == nil; {
		if time.Now().After(end) {
			t.Fatalf("no mail is listed:\n%s", body)
		}
		_, body = call(t, http.MethodGet, s.URL+"/dev/mail", "")
		found = entry.FindSubmatch(body)
	}
	path := string(found[1])
	status, body = call(t, http.MethodGet, s.URL+path, "")
	if status != http.StatusOK || !strings.Contains(string(body), `<a href="`+s.URL+"/verify-email?") ||
		!strings.Contains(string(body), "<iframe") {
		t.Errorf("%d %s", status, body)
	}

	for name, c := range map[string]struct {
		path, host, forwarded string
		status                int
		policy                string
	}{
		"the list":       {"/dev/mail", "", "", 200, "default-src 'none'; style-src 'self'"},
		"by name":        {"/dev/mail", "localhost:1", "", 200, "default-src 'none'"},
		"HTML":           {path + "/html", "", "", 200, "sandbox allow-top"},
		"style":          {"/dev/mail/style.css", "", "", 200, ""},
		"another name":   {"/dev/mail", "evil.example.com", "", 403, ""},
		"another's mail": {path, "evil.example.com:8080", "", 403, ""},
		"a proxy":        {"/dev/mail", "", "203.0.113.9", 403, ""},
		"none":           {"/dev/mail/none", "", "", 404, ""},
		"above":          {"/dev/mail/..%2fsecret", "", "", 404, ""},
		"absolute":       {"/dev/mail/%2fetc%2fpasswd", "", "", 404, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if req.Host = c.host; c.forwarded != "" {
			req.Header.Set("X-Forwarded-For", c.forwarded)
		}
		transport := &http.Transport{DisableKeepAlives: true}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != c.status || !strings.HasPrefix(res.Header.Get("Content-Security-Policy"), c.policy) {
			t.Errorf("%s: %d %v %s", name, res.StatusCode, res.Header, answer)
		}
	}
	if status, _ := call(t, http.MethodPost, s.URL+"/dev/mail", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
}

// TestMailsAreNotShownToANetwork listens where others reach it.
func TestMailsAreNotShownToANetwork(t *testing.T) {
	t.Parallel()
	var banner strings.Builder
	s := start(t, t.TempDir(), &banner, "HTTP_ADDR=0.0.0.0:0")
	if status, body := call(t, http.MethodGet, s.URL+"/dev/mail", ""); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
	if strings.Contains(banner.String(), "/dev/mail") {
		t.Error("the banner names the mails")
	}
}
