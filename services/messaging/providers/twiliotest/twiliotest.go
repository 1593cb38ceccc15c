// Package twiliotest simulates the one call of Twilio's API that messaging uses, as its documentation
// describes it, for tests. It keeps messages in memory.
package twiliotest

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Message is one text message.
type Message struct {
	To, From, Service, Body string
}

// Failure is a simulated error answer.
type Failure struct {
	Status, Code int
	// After lets the request take effect nevertheless, as if its answer were lost.
	After bool
}

// Server is the API.
type Server struct {
	AccountSID, AuthToken string
	// Fail is optional and may return a failure for a request.
	Fail func() *Failure

	mu       sync.Mutex
	messages []Message
}

// Messages returns the accepted messages in order.
func (s *Server) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, body map[string]any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	fail := func(status, code int, message string) {
		answer(status, map[string]any{"code": code, "message": message, "more_info": "https://www.twilio.com/docs/errors", "status": status})
	}
	var lost *Failure
	if s.Fail != nil {
		if f := s.Fail(); f != nil {
			if !f.After {
				fail(f.Status, f.Code, "The 'To' number "+r.FormValue("To")+" failed.")
				return
			}
			lost = f
		}
	}
	if user, password, ok := r.BasicAuth(); !ok || user != s.AccountSID || password != s.AuthToken {
		fail(http.StatusUnauthorized, 20003, "Authenticate")
		return
	}
	if r.URL.Path != "/2010-04-01/Accounts/"+s.AccountSID+"/Messages.json" || r.Method != http.MethodPost {
		fail(http.StatusNotFound, 20404, "The requested resource was not found")
		return
	}
	m := Message{
		To: r.PostFormValue("To"), From: r.PostFormValue("From"),
		Service: r.PostFormValue("MessagingServiceSid"), Body: r.PostFormValue("Body"),
	}
	switch {
	case !regexp.MustCompile(`^\+[1-9][0-9]{1,14}$`).MatchString(m.To):
		fail(http.StatusBadRequest, 21211, "The 'To' number "+m.To+" is not a valid phone number.")
	case m.From == "" && m.Service == "":
		fail(http.StatusBadRequest, 21603, "A 'From' phone number is required.")
	case m.Body == "":
		fail(http.StatusBadRequest, 21602, "Message body is required.")
	case len([]rune(m.Body)) > 1600:
		fail(http.StatusBadRequest, 21617, "The message body exceeds the 1600 character limit.")
	case strings.HasSuffix(m.To, "0000"):
		fail(http.StatusBadRequest, 21610, "Attempt to send to unsubscribed recipient "+m.To)
	default:
		s.mu.Lock()
		s.messages = append(s.messages, m)
		s.mu.Unlock()
		if lost != nil {
			fail(lost.Status, lost.Code, "lost")
			return
		}
		answer(http.StatusCreated, map[string]any{
			"sid": "SM0123456789abcdef0123456789abcdef", "status": "queued", "to": m.To, "from": m.From, "body": m.Body,
		})
	}
}
