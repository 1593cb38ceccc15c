package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// testBodies sends the bodies that every JSON endpoint must reject and those that it must accept. template is a valid body
// with room for more members; want is its status.
func testBodies(t *testing.T, c *Client, r Request, template string, want int) {
	t.Helper()
	testBodiesUpTo(t, c, r, template, want, 1<<20)
}

// testBodiesUpTo is testBodies for another body limit, in bytes.
func testBodiesUpTo(t *testing.T, c *Client, r Request, template string, want, limit int) {
	t.Helper()
	r = r.Invalid()
	good := fmt.Sprintf(template, "")
	for name, body := range map[string]string{
		"empty":             "",
		"blank":             " \n",
		"no JSON":           "email=ada@example.com",
		"cut":               good[:len(good)-1],
		"array":             "[" + good + "]",
		"string":            `"x"`,
		"number":            "5",
		"null":              "null",
		"true":              "true",
		"trailing text":     good + "x",
		"two objects":       good + good,
		"trailing comma":    `{"a":1,}`,
		"comment":           good + "// x",
		"single quotes":     `{'a':1}`,
		"unquoted key":      `{a:1}`,
		"NaN":               `{"a":NaN}`,
		"invalid UTF-8":     fmt.Sprintf(template, ",\"x\":\"\xff\""),
		"invalid UTF-8 key": fmt.Sprintf(template, ",\"\xc3\":1"),
		"control character": fmt.Sprintf(template, ",\"x\":\"a\nb\""),
		"bad escape":        fmt.Sprintf(template, `,"x":"\q"`),
		"binary":            "\x00\x01\x02\xff",
		"deep array":        strings.Repeat("[", 200_000),
		"deep object":       strings.Repeat(`{"a":`, 100_000),
		"gzip":              "\x1f\x8b\x08\x00\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			c.Do(t, r.Raw([]byte(body))).WantError(http.StatusBadRequest, "INVALID_BODY")
		})
	}
	pad := func(n int) []byte {
		const member = `,"padding":""`
		return fmt.Appendf(nil, template, `,"padding":"`+strings.Repeat("x", n-len(good)-len(member))+`"`)
	}
	t.Run("at the limit", func(t *testing.T) { c.Do(t, r.Raw(pad(limit))).Want(want) })
	t.Run("at the limit in chunks", func(t *testing.T) { c.Do(t, r.Raw(pad(limit)).Chunked()).Want(want) })
	t.Run("a byte over the limit", func(t *testing.T) {
		c.Do(t, r.Raw(pad(limit+1))).WantError(http.StatusBadRequest, "INVALID_BODY")
	})
	t.Run("a byte over the limit in chunks", func(t *testing.T) {
		c.Do(t, r.Raw(pad(limit+1)).Chunked()).WantError(http.StatusBadRequest, "INVALID_BODY")
	})
	t.Run("7 MiB over the limit", func(t *testing.T) {
		c.Do(t, r.Raw(pad(limit+7<<20))).WantError(http.StatusBadRequest, "INVALID_BODY")
	})
	for name, body := range map[string]string{
		"blanks around":       " \n\t" + good + "\r\n ",
		"unknown members":     fmt.Sprintf(template, `,"unknown":{"a":[1,2,{"b":null}]}`),
		"duplicate members":   `{"unknown":1,` + good[1:],
		"unknown lone halves": fmt.Sprintf(template, `,"unknown":"\ud800"`),
		"huge numbers":        fmt.Sprintf(template, `,"unknown":1e999`),
	} {
		t.Run(name, func(t *testing.T) { c.Do(t, r.Raw([]byte(body))).Want(want) })
	}
	for _, contentType := range []string{
		"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "multipart/form-data", "nonsense",
	} {
		t.Run("content type "+contentType, func(t *testing.T) {
			c.Do(t, r.Raw([]byte(good)).With("Content-Type", contentType)).Want(want)
		})
	}
}

func testHTTP(t *testing.T, d *deployment) {
	o := d.owner(t)
	id := o.waitlist(t, nil)
	ada := address("ada")
	o.join(t, id, ada)

	t.Run("unknown paths", func(t *testing.T) {
		for _, path := range []string{
			"", "/", "/nope", "/auth", "/auth/", "/auth/nope", "/auth/me/", "/auth/me/x", "/AUTH/me", "/authentication", "/auth/jwks", "/auth//me",
			"/public", "/public/", "/public/waitlists", "/public/waitlists/", "/public/waitlists/" + id, "/public/waitlists/" + id + "/",
			"/public/waitlists/" + id + "/nope", "/public/waitlists/" + id + "/config/", "/public/waitlists/" + id + "/signups/",
			"/public/waitlists/" + id + "/signups/" + ada + "/", "/public/waitlists/" + id + "/signups/" + ada + "/nope",
			"/public/waitlists/" + id + "/signups/" + ada + "/status/", "/public/waitlists/" + id + "/signups/" + ada + "/status/x",
			"/waitlists/", "/waitlists/" + id + "/", "/waitlists/" + id + "/nope", "/waitlists/" + id + "/signups/" + ada + "/nope/x", "/waitlistsx",
			"/billing", "/billing/nope", "/templates/", "/templates/a/b", "/domains/", "/domains/a/b/c", "/team/", "/team/a/b",
			"/favicon.ico", "/%2e%2e/auth/me",
		} {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
				o.Do(t, NewRequest(method, path, nil)).WantError(http.StatusNotFound, "NOT_FOUND")
			}
			o.Do(t, NewRequest(http.MethodHead, path, nil)).Want(http.StatusNotFound)
		}
	})
	t.Run("unknown methods", func(t *testing.T) {
		known := map[string]bool{}
		for _, op := range d.contract.Operations() {
			known[op.Method+" "+op.Path] = true
		}
		for _, op := range d.contract.Operations() {
			if op.Planned {
				continue
			}
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "PROPFIND"} {
				if known[method+" "+op.Path] {
					continue
				}
				t.Run(method+" "+op.Path, func(t *testing.T) {
					r := NewRequest(method, fill(op.Path, id, ada), nil)
					o.Do(t, r).WantError(http.StatusNotFound, "NOT_FOUND")
					o.Do(t, r.As(o.token)).WantError(http.StatusNotFound, "NOT_FOUND")
				})
			}
		}
	})
	t.Run("HEAD", func(t *testing.T) {
		for path, want := range map[string]int{
			"/auth/jwks.json":                                  http.StatusOK,
			"/auth/me":                                         http.StatusOK,
			"/waitlists":                                       http.StatusOK,
			"/waitlists/" + id:                                 http.StatusOK,
			"/waitlists/" + unknownID:                          http.StatusNotFound,
			"/public/waitlists/" + id + "/config":              http.StatusOK,
			"/public/waitlists/" + id + "/count":               http.StatusOK,
			"/public/waitlists/" + id + "/leaderboard":         http.StatusOK,
			"/public/waitlists/" + unknownID + "/config":       http.StatusNotFound,
			statusPath(id, ada):                                http.StatusOK,
			statusPath(id, ada) + "/status":                    http.StatusOK,
			statusPath(id, ada) + "/verify?token=x":            http.StatusBadRequest,
			"/public/waitlists/" + id + "/signups":             http.StatusNotFound,
			"/public/waitlists/" + id + "/unsubscribe":         http.StatusNotFound,
			"/auth/login":                                      http.StatusNotFound,
			"/public/waitlists/" + id + "/leaderboard?limit=0": http.StatusBadRequest,
		} {
			head := o.Do(t, NewRequest(http.MethodHead, path, nil).As(o.token).Invalid()).Want(want)
			get := o.Do(t, Get(path).As(o.token).Invalid()).Want(want)
			if h, g := head.Header.Get("Content-Type"), get.Header.Get("Content-Type"); h != g {
				t.Errorf("HEAD %s: content type %q, GET %q", path, h, g)
			}
		}
		o.Do(t, NewRequest(http.MethodHead, "/auth/me", nil)).Want(http.StatusUnauthorized)
	})
	t.Run("OPTIONS", func(t *testing.T) {
		for _, op := range d.contract.Operations() {
			r := o.Do(t, NewRequest(http.MethodOptions, fill(op.Path, id, ada), nil).With("Origin", "https://app.example.com").
				With("Access-Control-Request-Method", op.Method).With("Access-Control-Request-Headers", "content-type")).Want(http.StatusNoContent)
			if got := r.Header.Get("Access-Control-Allow-Origin"); got != "*" {
				t.Errorf("%s: Access-Control-Allow-Origin %q", r.Request, got)
			}
			if got := r.Header.Get("Access-Control-Allow-Methods"); !strings.Contains(got, op.Method) {
				t.Errorf("%s: Access-Control-Allow-Methods is %q, without %s", r.Request, got, op.Method)
			}
			wantList(t, r, "Access-Control-Allow-Headers", "Authorization", "X-API-Key", "Content-Type", "Idempotency-Key",
				"X-Account-Email", "X-Request-Id")
		}
		o.Do(t, NewRequest(http.MethodOptions, "/auth/me", nil)).Want(http.StatusNoContent)
	})
	t.Run("exposed headers", func(t *testing.T) {
		for _, r := range []Request{
			Get("/public/waitlists/" + id + "/config"), Get("/public/waitlists/" + unknownID + "/config"), Get("/auth/me"), Get("/nope"),
		} {
			res := o.Do(t, r.With("Origin", "https://app.example.com"))
			wantList(t, res, "Access-Control-Expose-Headers", "X-Request-Id", "Retry-After", "Idempotent-Replayed")
		}
		if got := o.Do(t, Get("/auth/me").With("Origin", "https://app.example.com")).Header.Get("Access-Control-Allow-Origin"); got != "*" {
			t.Errorf("Access-Control-Allow-Origin %q by default", got)
		}
	})
	t.Run("request ids", func(t *testing.T) {
		seen := map[string]bool{}
		for _, tc := range []struct {
			id   string
			kept bool
		}{
			{"a", true},
			{"A-z_0.9", true},
			{strings.Repeat("x", 128), true},
			{"", false},
			{strings.Repeat("x", 129), false},
			{"a b", false},
			{"a/b", false},
			{"ä", false},
			{"a\"b", false},
			{"{}", false},
		} {
			for _, r := range []Request{Get("/nope"), Get("/auth/me"), Get("/public/waitlists/" + id + "/config"), Get("/auth/jwks.json")} {
				got := o.Do(t, r.With("X-Request-Id", tc.id)).Header.Get("X-Request-Id")
				if tc.kept != (got == tc.id) {
					t.Errorf("%q → %q, want it kept: %v", tc.id, got, tc.kept)
				}
				if !tc.kept {
					if seen[got] {
						t.Errorf("request id %q was used twice", got)
					}
					seen[got] = true
				}
			}
		}
	})
	t.Run("query parameters", func(t *testing.T) {
		path := "/public/waitlists/" + id + "/leaderboard?limit="
		for _, good := range []string{"", "1", "50", "10"} {
			o.Do(t, Get(path+good).Invalid()).Want(http.StatusOK)
		}
		for _, bad := range []string{"0", "51", "-1", "x", "1.5", "1e1", "0x10", "99999999999999999999", "%20", "1%00", "10%3B", "%F0%9F%9A%80"} {
			o.Do(t, Get(path+bad).Invalid()).Invalid("limit")
		}
	})
	t.Run("health", func(t *testing.T) {
		if status, err := d.server.ready(t.Context()); err != nil || status != http.StatusOK {
			t.Errorf("/readyz: %d, %v", status, err)
		}
	})
	t.Run("a client that goes away", func(t *testing.T) {
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = o.Send(ctx, signup(id, address("gone")))
			cancel()
		}
		// Send half a request, pause, and disconnect.
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", d.server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "POST /v1/public/waitlists/"+id+"/signups HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"email\":")
		_ = conn.Close()
		o.join(t, id, address("there"))
	})
}

// wantList requires a header to list names, in any case and order.
func wantList(t *testing.T, r *Response, header string, names ...string) {
	t.Helper()
	got := map[string]bool{}
	for part := range strings.SplitSeq(strings.Join(r.Header.Values(header), ","), ",") {
		got[strings.ToLower(strings.TrimSpace(part))] = true
	}
	for _, n := range names {
		if !got[strings.ToLower(n)] {
			t.Errorf("%s: %s is %q, without %s", r.Request, header, r.Header.Values(header), n)
		}
	}
}

// testConfiguredOrigin tests a configured origin instead of the default.
func (s *suite) testConfiguredOrigin(t *testing.T) {
	const origin = "https://app.example.com"
	d := s.deploy(t, map[string]string{"CORS_ALLOWED_ORIGIN": origin, "TRUSTED_PROXIES": ""})
	o := d.owner(t)
	t.Run("no proxy is trusted to name the client", func(t *testing.T) {
		for i := range 10 {
			r := Post("/auth/login", Obj{"email": o.email, "password": "wrong"}).With("X-Forwarded-For", "10.0.0."+strconv.Itoa(i+1))
			o.Do(t, r).WantError(http.StatusUnauthorized, "AUTHENTICATION_REQUIRED")
		}
		r := Post("/auth/login", Obj{"email": o.email, "password": o.password}).With("X-Forwarded-For", "10.0.0.99").
			With("X-Real-Ip", "10.0.0.99")
		o.Do(t, r).WantError(http.StatusTooManyRequests, "RATE_LIMITED")
	})
	id := o.waitlist(t, nil)
	for _, r := range []Request{
		Get("/auth/me").As(o.token), Get("/auth/me"), Get("/waitlists").As(o.token), Get("/waitlists/" + unknownID).As(o.token), Get("/nope"),
		NewRequest(http.MethodOptions, "/waitlists", nil).With("Access-Control-Request-Method", http.MethodPost),
		NewRequest(http.MethodOptions, "/auth/me", nil).With("Access-Control-Request-Method", http.MethodGet),
	} {
		own := o.Do(t, r.With("Origin", origin))
		if got := own.Header.Get("Access-Control-Allow-Origin"); got != origin {
			t.Errorf("%s: Access-Control-Allow-Origin %q, want %q", r, got, origin)
		}
		wantList(t, own, "Vary", "Origin")
		if got := o.Do(t, r.With("Origin", "https://evil.example.com")).Header.Get("Access-Control-Allow-Origin"); got != "" && got != origin {
			t.Errorf("%s: Access-Control-Allow-Origin %q to another origin", r, got)
		}
	}
	for _, r := range []Request{
		Get("/public/waitlists/" + id + "/config"), Get("/public/waitlists/" + unknownID + "/config"), Get("/public/nope"),
		NewRequest(http.MethodOptions, "/public/waitlists/"+id+"/signups", nil),
	} {
		if got := o.Do(t, r.With("Origin", "https://evil.example.com")).Header.Get("Access-Control-Allow-Origin"); got != "*" {
			t.Errorf("%s: Access-Control-Allow-Origin %q, want *", r, got)
		}
	}
}
