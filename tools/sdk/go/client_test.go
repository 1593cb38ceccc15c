package waitlist_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	waitlist "waitlist.internal/tools/sdk/go"
)

// faulty answers each request with the next of its answers: a status, or 0 to close the connection without an answer.
type faulty struct {
	answers []int
	after   string // Retry-After
	seen    []*http.Request
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.seen = append(f.seen, r)
	status := f.answers[min(len(f.seen), len(f.answers))-1]
	switch {
	case status == 0:
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
		return
	case status >= 400:
		w.Header().Set("Retry-After", f.after)
		w.Header().Set("X-Request-Id", "r1")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"error": "No.", "error_code": "` + map[int]string{
			429: "RATE_LIMITED", 404: "NOT_FOUND", 400: "VALIDATION_ERROR",
		}[status] + `", "request_id": "r1", "errors": [{"field": "email", "message": "Bad."}]}`))
		return
	}
	w.WriteHeader(status)
	if status != http.StatusNoContent {
		_, _ = w.Write([]byte(`{}`))
	}
}

// TestAttempts: what may be sent again is, what must not be is not, and the error is the last answer.
func TestAttempts(t *testing.T) {
	create := func(ctx context.Context, c *waitlist.Client) error {
		_, err := c.CreateWaitlist(ctx, "x", nil)
		return err
	}
	template := func(ctx context.Context, c *waitlist.Client) error {
		_, err := c.CreateTemplate(ctx, waitlist.NewTemplate{})
		return err
	}
	form := func(ctx context.Context, c *waitlist.Client) error { _, err := c.Form(ctx, "id"); return err }
	remove := func(ctx context.Context, c *waitlist.Client) error { return c.RemoveSignup(ctx, "id", "a@example.com") }
	for _, tt := range []struct {
		name    string
		do      func(context.Context, *waitlist.Client) error
		answers []int
		after   string
		want    int // requests
		status  int // of the error; 0: success
	}{
		{"a success", form, []int{200}, "", 1, 0},
		{"a read after a lost connection", form, []int{0, 200}, "", 2, 0},
		{"a read after 503", form, []int{503, 500, 200}, "", 3, 0},
		{"no end of 503", form, []int{503}, "", 4, 503},
		{"a mistake", form, []int{400}, "", 1, 400},
		{"a creation with a key", create, []int{502, 201}, "", 2, 0},
		{"a creation without", template, []int{502, 201}, "", 1, 502},
		{"a creation without, refused by the limit", template, []int{429, 201}, "", 2, 0},
		{"a longer wait than allowed", form, []int{429, 200}, "60", 1, 429},
		{"nobody to remove", remove, []int{404}, "", 1, 404},
		{"a removal whose answer was lost", remove, []int{500, 404}, "", 2, 0},
		{"nobody to remove, refused by the limit before", remove, []int{429, 404}, "", 2, 404},
		{"a removal whose answer was lost, refused by the limit then", remove, []int{0, 429, 404}, "", 3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &faulty{answers: tt.answers, after: tt.after}
			srv := httptest.NewServer(f)
			defer srv.Close()
			// Without kept connections, net/http sends nothing again by itself.
			plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			c, err := waitlist.New(srv.URL+"/v1/", waitlist.APIKey("k"), waitlist.HTTPClient(plain), waitlist.MaxWait(10*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			err = tt.do(t.Context(), c)
			var refused *waitlist.Error
			switch {
			case tt.status == 0 && err != nil, tt.status != 0 && (!errors.As(err, &refused) || refused.Status != tt.status):
				t.Errorf("error %v", err)
			}
			if len(f.seen) != tt.want {
				t.Errorf("%d requests", len(f.seen))
			}
			var keys []string
			for _, r := range f.seen {
				if r.Header.Get("X-Api-Key") != "k" {
					t.Errorf("a request without the key: %v", r.Header)
				}
				keys = append(keys, r.Header.Get("Idempotency-Key"))
			}
			if keyed := keys[0] != ""; keyed != (tt.name == "a creation with a key") || len(slices.Compact(keys)) != 1 {
				t.Errorf("idempotency keys %q", keys)
			}
		})
	}
}

// TestLostAnswers: every method that changes something is sent again after a lost answer if
// the contract says that a second request changes nothing more, and otherwise not.
func TestLostAnswers(t *testing.T) {
	type client = waitlist.Client
	second := func(_ any, err error) error { return err }
	for name, tt := range map[string]struct {
		do   func(context.Context, *client) error
		want int
	}{
		"AddDomain":      {func(ctx context.Context, c *client) error { return second(c.AddDomain(ctx, "example.com")) }, 2},
		"ChangeTemplate": {func(ctx context.Context, c *client) error { return c.ChangeTemplate(ctx, "t", waitlist.NewTemplate{}) }, 2},
		"ChangeWaitlist": {func(ctx context.Context, c *client) error { return second(c.ChangeWaitlist(ctx, "w", "x", nil)) }, 2},
		"CreateTemplate": {func(ctx context.Context, c *client) error {
			return second(c.CreateTemplate(ctx, waitlist.NewTemplate{}))
		}, 1},
		"CreateWaitlist": {func(ctx context.Context, c *client) error { return second(c.CreateWaitlist(ctx, "x", nil)) }, 2},
		"CreditSignup":   {func(ctx context.Context, c *client) error { return c.CreditSignup(ctx, "w", "a@example.com") }, 2},
		"DeleteMyData":   {func(ctx context.Context, c *client) error { return c.DeleteMyData(ctx, "w", "a@example.com", "t") }, 1},
		"DeleteTemplate": {func(ctx context.Context, c *client) error { return c.DeleteTemplate(ctx, "t") }, 2},
		"DeleteWaitlist": {func(ctx context.Context, c *client) error { return c.DeleteWaitlist(ctx, "w") }, 2},
		"Import":         {func(ctx context.Context, c *client) error { return second(c.Import(ctx, "w", nil)) }, 2},
		"Invite":         {func(ctx context.Context, c *client) error { return second(c.Invite(ctx, "a@example.com", "viewer")) }, 1},
		"MailLink":       {func(ctx context.Context, c *client) error { return c.MailLink(ctx, "w", "a@example.com") }, 2},
		"MoveSignup":     {func(ctx context.Context, c *client) error { return second(c.MoveSignup(ctx, "w", "a@example.com", 1)) }, 2},
		"RemoveDomain":   {func(ctx context.Context, c *client) error { return c.RemoveDomain(ctx, "example.com") }, 2},
		"RemoveMember":   {func(ctx context.Context, c *client) error { return c.RemoveMember(ctx, "a@example.com") }, 2},
		"RemoveSignup":   {func(ctx context.Context, c *client) error { return c.RemoveSignup(ctx, "w", "a@example.com") }, 2},
		"SendBlast":      {func(ctx context.Context, c *client) error { return second(c.SendBlast(ctx, "w", waitlist.NewBlast{})) }, 2},
		"SignUp":         {func(ctx context.Context, c *client) error { return second(c.SignUp(ctx, "w", waitlist.NewSignup{})) }, 2},
		"Unsubscribe": {func(ctx context.Context, c *client) error {
			return second(c.Unsubscribe(ctx, "w", "a@example.com", "t"))
		}, 2},
		"Verify": {func(ctx context.Context, c *client) error { return c.Verify(ctx, "w", "a@example.com", "t") }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lost := range []int{0, 502} {
				f := &faulty{answers: []int{lost, 200}}
				srv := httptest.NewServer(f)
				plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				c, err := waitlist.New(srv.URL, waitlist.HTTPClient(plain), waitlist.MaxWait(10*time.Millisecond))
				if err != nil {
					t.Fatal(err)
				}
				err = tt.do(t.Context(), c)
				srv.Close()
				if len(f.seen) != tt.want || (err == nil) != (tt.want == 2) {
					t.Errorf("after %d: %d requests, %v", lost, len(f.seen), err)
				}
			}
		})
	}
}

// TestRedirect: the API key does not go to another host.
func TestRedirect(t *testing.T) {
	f := &faulty{answers: []int{200}}
	elsewhere := httptest.NewServer(f)
	defer elsewhere.Close()
	srv := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	c, err := waitlist.New(srv.URL, waitlist.APIKey("k"), waitlist.HTTPClient(srv.Client()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateWaitlist(t.Context(), "x", nil)
	var refused *waitlist.Error
	if len(f.seen) != 0 || !errors.As(err, &refused) || refused.Status != http.StatusTemporaryRedirect {
		t.Errorf("%d requests went elsewhere: %v", len(f.seen), err)
	}
}

// TestCredentials: each option is the header that the contract names.
func TestCredentials(t *testing.T) {
	f := &faulty{answers: []int{200}}
	srv := httptest.NewServer(f)
	defer srv.Close()
	for i, tt := range []struct {
		option       waitlist.Option
		header, want string
	}{
		{waitlist.APIKey("k"), "X-Api-Key", "k"},
		{waitlist.Bearer("t"), "Authorization", "Bearer t"},
		{waitlist.Account("a@example.com"), "X-Account-Email", "a@example.com"},
	} {
		c, err := waitlist.New(srv.URL, tt.option)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Profile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.seen[i].Header.Get(tt.header); got != tt.want {
			t.Errorf("%s is %q, want %q", tt.header, got, tt.want)
		}
	}
}

// TestRetryAfter: the client waits as long as it is asked to.
func TestRetryAfter(t *testing.T) {
	f := &faulty{answers: []int{429, 200}, after: "1"}
	srv := httptest.NewServer(f)
	defer srv.Close()
	c, err := waitlist.New(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := c.Form(t.Context(), "id"); err != nil || time.Since(start) < time.Second {
		t.Errorf("answered after %s: %v", time.Since(start), err)
	}
	// A context that ends ends the wait.
	f.seen, f.after = nil, "9"
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start = time.Now()
	if _, err := c.Form(ctx, "id"); !waitlist.Is(err, waitlist.RateLimited) || time.Since(start) > 8*time.Second {
		t.Errorf("answered after %s: %v", time.Since(start), err)
	}
}

// TestError: a refusal has all that the service says, and an answer of somebody else is one, too.
func TestError(t *testing.T) {
	for _, tt := range []struct {
		body string
		want waitlist.Error
	}{
		{
			`{"error": "No.", "error_code": "VALIDATION_ERROR", "request_id": "r1", "errors": [{"field": "email", "message": "Bad."}]}`,
			waitlist.Error{
				Status: 400, Code: waitlist.ValidationError, Message: "No.", RequestID: "r1",
				Fields: []waitlist.FieldError{{Field: "email", Message: "Bad."}},
			},
		},
		{`<h1>Bad gateway</h1>`, waitlist.Error{Status: 400, Message: "Bad Request", RequestID: "edge"}},
		{`{"code": 7}`, waitlist.Error{Status: 400, Message: "Bad Request", RequestID: "edge"}},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Request-Id", "edge")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(tt.body))
		}))
		c, err := waitlist.New(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Profile(t.Context())
		var got *waitlist.Error
		if !errors.As(err, &got) || got.Status != tt.want.Status || got.Code != tt.want.Code || got.Message != tt.want.Message ||
			got.RequestID != tt.want.RequestID || !slices.Equal(got.Fields, tt.want.Fields) {
			t.Errorf("%s: %#v", tt.body, err)
		}
		srv.Close()
	}
}

// TestPages: an iteration asks for each page once, and stops when its reader does.
func TestPages(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.URL.Query().Get("last_key")
		asked = append(asked, key)
		n, _ := strconv.Atoi(key)
		next := strconv.Quote(strconv.Itoa(n + 1))
		if n == 2 {
			next = "null"
		}
		_, _ = fmt.Fprintf(w, `{"signups": [{"position": %d}, {"position": %d}], "last_key": %s}`, 2*n+1, 2*n+2, next)
	}))
	defer srv.Close()
	c, err := waitlist.New(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for s, err := range c.Signups(t.Context(), "id") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s.Position)
	}
	if !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) || !slices.Equal(asked, []string{"", "1", "2"}) {
		t.Errorf("%v by %q", got, asked)
	}
	asked = nil
	for _, err := range c.Signups(t.Context(), "id") {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if len(asked) != 1 {
		t.Errorf("asked for %q", asked)
	}
}

// TestBase: only a URL of a service is one.
func TestBase(t *testing.T) {
	for _, base := range []string{"", "example.com/v1", "ftp://example.com", "https://", ":"} {
		if _, err := waitlist.New(base); err == nil {
			t.Errorf("%q is accepted", base)
		}
	}
}
