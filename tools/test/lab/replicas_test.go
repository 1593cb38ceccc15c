//go:build k8s

package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// rounds is how often each write is followed by a read from another replica.
const rounds = 50

// testReplicas checks that a change acknowledged by one replica is visible on every other at once.
func (w *world) testReplicas(t *testing.T) {
	s := w.deploy(t, w.chart(), w.images)
	replicas := map[string][2]client{}
	transport := &http.Transport{DisableKeepAlives: true}
	for _, service := range []string{"account", "signup", "messaging"} {
		pods := s.podsOf(t, service)
		if len(pods) != 2 {
			t.Fatalf("%s has %d pods", service, len(pods))
		}
		for i := range 2 {
			pair := replicas[service]
			pair[i] = client{t, "http://" + pods[i].Status.PodIP + ":8080/v1", transport}
			replicas[service] = pair
		}
	}
	for i := range rounds {
		// One replica writes and the other reads, in turns.
		pick := func(service string) (one, other client) {
			pair := replicas[service]
			return pair[i%2], pair[(i+1)%2]
		}
		account, account2 := pick("account")
		signup, signup2 := pick("signup")
		messaging, messaging2 := pick("messaging")

		owner := map[string]any{"email": fmt.Sprintf("owner-%d@example.com", i), "password": "correct horse battery"}
		key := account.do(http.StatusCreated, "", http.MethodPost, "/auth/register", owner)["api_key"].(string)
		session := account2.do(http.StatusOK, "", http.MethodPost, "/auth/login", owner)["id_token"].(string)
		next := account.do(http.StatusOK, session, http.MethodPost, "/auth/regenerate-api-key", nil)["api_key"].(string)
		account2.do(http.StatusUnauthorized, key, http.MethodGet, "/auth/me", nil)
		signup2.do(http.StatusUnauthorized, key, http.MethodGet, "/waitlists", nil)
		key = next
		account2.do(http.StatusOK, key, http.MethodGet, "/auth/me", nil)

		list := signup.do(http.StatusCreated, key, http.MethodPost, "/waitlists", map[string]any{"name": "One"})["waitlist_id"].(string)
		path, public := "/waitlists/"+list, "/public/waitlists/"+list
		signup2.do(http.StatusOK, key, http.MethodGet, path, nil)
		signup.do(http.StatusOK, "", http.MethodGet, public+"/config", nil)
		signup2.do(http.StatusOK, "", http.MethodGet, public+"/config", nil)
		signup.do(http.StatusOK, key, http.MethodPatch, path, map[string]any{"name": "Two"})
		for _, c := range []client{signup, signup2} {
			if got := c.do(http.StatusOK, key, http.MethodGet, path, nil)["name"]; got != "Two" {
				t.Errorf("name %v", got)
			}
		}
		for _, c := range []client{signup, signup2} {
			if got := c.do(http.StatusOK, "", http.MethodGet, public+"/config", nil)["name"]; got != "Two" {
				t.Errorf("public name %v", got)
			}
		}

		// Three people; the second refers the third and moves up.
		referrer := ""
		for n, c := range []client{signup, signup2, signup} {
			body := map[string]any{"email": fmt.Sprintf("p%d@example.com", n)}
			if n == 2 {
				body["referred_by_token"] = referrer
			}
			answer := c.do(http.StatusCreated, "", http.MethodPost, public+"/signups", body)
			referrer, _ = answer["referral_token"].(string)
			if answer["position"] != float64(n+1) {
				t.Errorf("position %v of signup %d", answer["position"], n)
			}
		}
		positions := func(want map[string]float64) {
			t.Helper()
			for _, c := range []client{signup, signup2} {
				for email, position := range want {
					if got := c.do(http.StatusOK, "", http.MethodGet, public+"/signups/"+email, nil)["position"]; got != position {
						t.Errorf("%s is at position %v, want %v", email, got, position)
					}
				}
			}
		}
		positions(map[string]float64{"p0@example.com": 2, "p1@example.com": 1, "p2@example.com": 3})
		signup.do(http.StatusOK, key, http.MethodPatch, path+"/signups/p2@example.com/position", map[string]any{"position": 1})
		positions(map[string]float64{"p0@example.com": 3, "p1@example.com": 2, "p2@example.com": 1})
		signup2.do(http.StatusNoContent, key, http.MethodDelete, path+"/signups/p1@example.com", nil)
		positions(map[string]float64{"p0@example.com": 2, "p2@example.com": 1})
		signup.do(http.StatusNotFound, "", http.MethodGet, public+"/signups/p1@example.com", nil)

		template := messaging.do(http.StatusCreated, key, http.MethodPost, "/templates", map[string]any{
			"template_type": "signup_confirmation", "subject_template": "Hello", "html_body_template": "<p>Hello</p>",
		})["template_id"].(string)
		messaging2.do(http.StatusOK, key, http.MethodGet, "/templates/"+template, nil)
		messaging2.do(http.StatusNoContent, key, http.MethodDelete, "/templates/"+template, nil)
		messaging.do(http.StatusNotFound, key, http.MethodGet, "/templates/"+template, nil)
		signup.do(http.StatusNoContent, key, http.MethodDelete, path, nil)
		signup2.do(http.StatusNotFound, key, http.MethodGet, path, nil)
		signup2.do(http.StatusNotFound, "", http.MethodGet, public+"/config", nil)
		if t.Failed() {
			t.Fatalf("failed in round %d", i)
		}
	}
}

// client talks to one replica or to a gateway.
type client struct {
	t interface {
		Helper()
		Context() context.Context
		Errorf(format string, args ...any)
		Fatal(args ...any)
		Fatalf(format string, args ...any)
	}
	url       string
	transport *http.Transport
}

// do sends a request with an API key, a session or no credential, and returns the answer's JSON object.
func (c client) do(want int, credential, method, path string, body any) map[string]any {
	c.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	if body == nil {
		raw = nil
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, bytes.NewReader(raw))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(credential, "wl_"):
		req.Header.Set("x-api-key", credential)
	case credential != "":
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if res.StatusCode != want {
		c.t.Errorf("%s %s%s: %d, want %d: %.300s", method, c.url, path, res.StatusCode, want, content)
	}
	var answer map[string]any
	_ = json.Unmarshal(content, &answer)
	return answer
}
