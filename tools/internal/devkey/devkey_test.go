package devkey_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"waitlist.internal/tools/internal/devkey"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, query, cookie string
		want               int
		sets               bool
	}{
		"no key":              {"secret", "", "", 403, false},
		"another key":         {"secret", "?key=secre", "", 403, false},
		"the key":             {"secret", "?key=secret", "", 200, true},
		"another cookie":      {"secret", "", "dev_key=secrets", 403, false},
		"the cookie":          {"secret", "", "dev_key=secret", 200, false},
		"nothing is no key":   {"", "?key=", "dev_key=", 403, false},
		"a cookie of another": {"secret", "", "key=secret", 403, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodGet, "/x"+c.query, nil)
			r.Header.Set("Cookie", c.cookie)
			w := httptest.NewRecorder()
			devkey.Guard(c.key, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			if w.Code != c.want || (w.Header().Get("Set-Cookie") == "dev_key=secret; Path=/x; HttpOnly; SameSite=Strict") != c.sets {
				t.Errorf("%d %v", w.Code, w.Header())
			}
			// A refusal is not kept, and no link on a page that is shown gives the key away.
			shown := w.Code == http.StatusOK
			if (w.Header().Get("Cache-Control") == "no-store") == shown || (w.Header().Get("Referrer-Policy") == "no-referrer") != shown {
				t.Errorf("%d %v", w.Code, w.Header())
			}
		})
	}
}
