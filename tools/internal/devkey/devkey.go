// Package devkey guards what only whoever started a development server may use. Requests carry the key as ?key=, and browsers
// then in a cookie.
package devkey

import (
	"crypto/subtle"
	"net/http"
)

const name = "dev_key"

// Guard answers 403 to requests without key; with an empty key to all.
func Guard(key string, next http.Handler) http.Handler {
	holds := func(sent string) bool { return key != "" && subtle.ConstantTimeCompare([]byte(sent), []byte(key)) == 1 }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie(name)
		switch {
		case holds(r.URL.Query().Get("key")):
			http.SetCookie(w, &http.Cookie{Name: name, Value: key, Path: r.URL.Path, HttpOnly: true, SameSite: http.SameSiteStrictMode})
		case err != nil || !holds(cookie.Value):
			w.Header().Set("Cache-Control", "no-store")
			http.Error(w, "Use the address that the server printed when it started: it ends in the key.", http.StatusForbidden)
			return
		}
		w.Header().Set("Referrer-Policy", "no-referrer") // the address may hold the key
		next.ServeHTTP(w, r)
	})
}
