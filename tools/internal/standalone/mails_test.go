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

// TestMailsAreShownWithTheKey reads a mail as a newcomer does, and as others try to.
func TestMailsAreShownWithTheKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var banner strings.Builder
	s := start(t, dir, &banner)
	printed := regexp.MustCompile(regexp.QuoteMeta(s.URL) + `/dev/mail\?key=([A-Z2-7]{26}),`).FindStringSubmatch(banner.String())
	if printed == nil || !strings.Contains(banner.String(), s.URL+"/docs") {
		t.Fatalf("the banner does not name the pages:\n%s", banner.String())
	}
	devKey := printed[1]
	if err := os.WriteFile(filepath.Join(dir, "secret.eml"), []byte("Subject: no"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, body := call(t, http.MethodGet, s.URL+"/dev/mail?key="+devKey, "")
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
		_, body = call(t, http.MethodGet, s.URL+"/dev/mail?key="+devKey, "")
		found = entry.FindSubmatch(body)
	}
	path := string(found[1])
	status, body = call(t, http.MethodGet, s.URL+path+"?key="+devKey, "")
	if status != http.StatusOK || !strings.Contains(string(body), `<a href="`+s.URL+"/verify-email?") ||
		!strings.Contains(string(body), "<iframe") {
		t.Errorf("%d %s", status, body)
	}

	for name, c := range map[string]struct {
		path, key string
		status    int
		policy    string
	}{
		"the list":        {"/dev/mail", devKey, 200, "default-src 'none'; style-src 'self'"},
		"HTML":            {path + "/html", devKey, 200, "sandbox allow-top"},
		"style":           {"/dev/mail/style.css", devKey, 200, ""},
		"without the key": {"/dev/mail", "", 403, ""},
		"a mail without":  {path, "", 403, ""},
		"another key":     {path, "x", 403, ""},
		"none":            {"/dev/mail/none", devKey, 404, ""},
		"above":           {"/dev/mail/..%2fsecret", devKey, 404, ""},
		"absolute":        {"/dev/mail/%2fetc%2fpasswd", devKey, 404, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+c.path+"?key="+c.key, http.NoBody)
		if err != nil {
			t.Fatal(err)
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
	if status, _ := call(t, http.MethodPost, s.URL+"/dev/mail?key="+devKey, ""); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
}

// TestProfilesNeedTheKey: a profile has what is in memory.
func TestProfilesNeedTheKey(t *testing.T) {
	t.Parallel()
	var banner strings.Builder
	start(t, t.TempDir(), &banner, "INTERNAL_ADDR=127.0.0.1:0")
	printed := regexp.MustCompile(`(http://\S+/debug/pprof/)(\?key=\S+)`).FindStringSubmatch(banner.String())
	if printed == nil {
		t.Fatalf("the banner does not name the profiles:\n%s", banner.String())
	}
	for _, profile := range []string{"", "heap", "goroutine"} {
		if status, body := call(t, http.MethodGet, printed[1]+profile, ""); status != http.StatusForbidden {
			t.Errorf("%q without the key: %d %s", profile, status, body)
		}
		if status, body := call(t, http.MethodGet, printed[1]+profile+printed[2], ""); status != http.StatusOK {
			t.Errorf("%q: %d %s", profile, status, body)
		}
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
