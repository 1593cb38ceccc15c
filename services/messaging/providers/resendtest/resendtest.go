// Package resendtest simulates Resend's API, as its documentation describes it, for tests: credentials,
// validation, limits, idempotency, domains, and signatures of notifications. It keeps mails in memory.
package resendtest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	stdmail "net/mail"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// The limits of the API.
	maxBatch      = 100
	maxRecipients = 50
	maxKey        = 256
	// Secret is the default secret for signing notifications.
	Secret = "whsec_dGhlIHNlY3JldCB0aGF0IHNpZ25zIG5vdGlmaWNhdGlvbnM="
)

// Email is an accepted mail.
type Email struct {
	ID      string            `json:"-"`
	From    string            `json:"from"`
	To      []string          `json:"to"`
	Subject string            `json:"subject"`
	HTML    string            `json:"html"`
	Text    string            `json:"text"`
	Headers map[string]string `json:"headers"`
	// Key is the idempotency key of the mail's request or batch.
	Key string `json:"-"`
}

// Domain is a sending domain.
type Domain struct {
	ID, Name, Status string
}

// Failure is a simulated error answer.
type Failure struct {
	Status int
	Name   string
	// After lets the request take effect nevertheless, as if its answer were lost.
	After bool
}

// Server is the API. Without an APIKey it refuses every call.
type Server struct {
	APIKey string
	// BodyLimit limits a request, in bytes; 0 means 40 MiB.
	BodyLimit int64
	// Fail is optional and may return a failure for a request.
	Fail func(r *http.Request) *Failure
	// Refuse is optional and reports whether mails to an address are invalid.
	Refuse func(to string) bool

	mu      sync.Mutex
	calls   int
	emails  []Email
	kept    map[string]kept
	running map[string]bool
	domains map[string]*Domain
}

// kept is the stored answer to an idempotency key.
type kept struct {
	content [sha256.Size]byte
	answer  []byte
}

// Emails returns the accepted mails in order.
func (s *Server) Emails() []Email {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.emails)
}

// Count returns the number of accepted mails, without copying them as Emails does.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.emails)
}

// Calls returns the number of requests, including refused ones.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Domains returns the domains by name.
func (s *Server) Domains() map[string]Domain {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]Domain{}
	for d := range maps.Values(s.domains) {
		out[d.Name] = *d
	}
	return out
}

// SetStatus sets the status of a domain: verified, pending or failed.
func (s *Server) SetStatus(name, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range maps.Values(s.domains) {
		if d.Name == name {
			d.Status = status
		}
	}
}

// refusal is an error answer of the API.
type refusal struct {
	status int
	name   string
	detail string
}

func (r *refusal) Error() string { return r.name + ": " + r.detail }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	var lost *Failure
	if s.Fail != nil {
		if f := s.Fail(r); f != nil {
			if !f.After {
				fail(w, &refusal{f.Status, f.Name, "as the test asked"})
				return
			}
			lost = f
		}
	}
	answer, err := s.serve(r)
	if lost != nil {
		fail(w, &refusal{lost.Status, lost.Name, "as the test asked"})
		return
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write(answer) //nolint:gosec // a test's JSON
}

func fail(w http.ResponseWriter, err error) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		r = &refusal{http.StatusInternalServerError, "application_error", err.Error()}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if r.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(r.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"statusCode": r.status, "name": r.name, "message": r.detail})
}

func (s *Server) serve(r *http.Request) ([]byte, error) {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return nil, &refusal{http.StatusUnauthorized, "missing_api_key", "Missing API key in the authorization header."}
	}
	if s.APIKey == "" || key != s.APIKey {
		return nil, &refusal{http.StatusForbidden, "invalid_api_key", "API key is invalid."}
	}
	limit := s.BodyLimit
	if limit == 0 {
		limit = 40 << 20
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, &refusal{http.StatusRequestEntityTooLarge, "payload_too_large", "The request is too large."}
	}
	switch path := strings.Trim(r.URL.Path, "/"); {
	case r.Method == http.MethodPost && path == "emails":
		return s.once(r, body, func() ([]byte, error) { return s.send(r, body) })
	case r.Method == http.MethodPost && path == "emails/batch":
		return s.once(r, body, func() ([]byte, error) { return s.sendBatch(r, body) })
	case path == "domains" || strings.HasPrefix(path, "domains/"):
		return s.domain(r.Method, strings.Split(path, "/")[1:], body)
	}
	return nil, &refusal{http.StatusNotFound, "not_found", "The requested endpoint does not exist."}
}

// once applies the Idempotency-Key of a request.
func (s *Server) once(r *http.Request, body []byte, do func() ([]byte, error)) ([]byte, error) {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		return do()
	}
	if len(key) > maxKey {
		return nil, &refusal{http.StatusBadRequest, "invalid_idempotency_key", "The key must be between 1-256 chars."}
	}
	id, content := r.URL.Path+" "+key, sha256.Sum256(body)
	s.mu.Lock()
	if k, ok := s.kept[id]; ok {
		s.mu.Unlock()
		if k.content != content {
			return nil, &refusal{
				http.StatusConflict, "invalid_idempotent_request",
				"This idempotency key has been used with a different request payload.",
			}
		}
		return k.answer, nil
	}
	if s.running[id] {
		s.mu.Unlock()
		return nil, &refusal{http.StatusConflict, "concurrent_idempotent_requests", "Another request with this key is in progress."}
	}
	if s.running == nil {
		s.running, s.kept = map[string]bool{}, map[string]kept{}
	}
	s.running[id] = true
	s.mu.Unlock()
	answer, err := do()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, id)
	if err == nil {
		s.kept[id] = kept{content, answer}
	}
	return answer, err
}

func (s *Server) send(r *http.Request, body []byte) ([]byte, error) {
	var e Email
	if err := decode(body, &e); err != nil {
		return nil, err
	}
	if err := s.check(e); err != nil {
		return nil, err
	}
	return json.Marshal(map[string]string{"id": s.take(e, r)})
}

func (s *Server) sendBatch(r *http.Request, body []byte) ([]byte, error) {
	var list []Email
	if err := decode(body, &list); err != nil {
		return nil, err
	}
	if len(list) == 0 || len(list) > maxBatch {
		return nil, &refusal{http.StatusUnprocessableEntity, "validation_error", "A batch has 1 to 100 emails."}
	}
	permissive := r.Header.Get("X-Batch-Validation") == "permissive"
	type id struct {
		ID string `json:"id"`
	}
	type failed struct {
		Index   int    `json:"index"`
		Message string `json:"message"`
	}
	answer := struct {
		Data   []id     `json:"data"`
		Errors []failed `json:"errors,omitempty"`
	}{Data: []id{}}
	var good []Email
	for i, e := range list {
		if err := s.check(e); err != nil {
			if !permissive {
				return nil, err
			}
			answer.Errors = append(answer.Errors, failed{i, err.Error()})
			continue
		}
		good = append(good, e)
	}
	for _, e := range good {
		answer.Data = append(answer.Data, id{s.take(e, r)})
	}
	return json.Marshal(answer)
}

func (s *Server) take(e Email, r *http.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.ID, e.Key = rand.Text(), r.Header.Get("Idempotency-Key")
	s.emails = append(s.emails, e)
	return e.ID
}

// decode decodes a JSON body and refuses unknown fields.
func decode(body []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return &refusal{http.StatusUnprocessableEntity, "validation_error", err.Error()}
	}
	return nil
}

// check validates one mail.
func (s *Server) check(e Email) error {
	invalid := func(format string, args ...any) error {
		return &refusal{http.StatusUnprocessableEntity, "validation_error", fmt.Sprintf(format, args...)}
	}
	if _, err := stdmail.ParseAddress(e.From); err != nil {
		return &refusal{http.StatusUnprocessableEntity, "invalid_from_address", "Invalid `from` field."}
	}
	if len(e.To) == 0 || len(e.To) > maxRecipients {
		return invalid("The `to` field has 1 to 50 addresses.")
	}
	for _, to := range e.To {
		if _, err := stdmail.ParseAddress(to); err != nil || s.Refuse != nil && s.Refuse(to) {
			return invalid("Invalid `to` field: %s.", to)
		}
	}
	if e.Subject == "" || strings.ContainsAny(e.Subject, "\r\n") {
		return invalid("Invalid `subject` field.")
	}
	if e.HTML == "" && e.Text == "" {
		return &refusal{http.StatusUnprocessableEntity, "missing_required_field", "Missing `html` or `text` field."}
	}
	for name, value := range e.Headers {
		if strings.ContainsAny(name+value, "\r\n") {
			return invalid("Invalid `headers` field.")
		}
	}
	return nil
}

// record is a DNS record that a domain needs.
type record struct {
	Record   string      `json:"record"`
	Name     string      `json:"name"`
	Type     string      `json:"type"`
	TTL      string      `json:"ttl"`
	Status   string      `json:"status"`
	Value    string      `json:"value"`
	Priority json.Number `json:"priority,omitempty"`
}

func (s *Server) domain(method string, path []string, body []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	show := func(d *Domain) map[string]any {
		return map[string]any{
			"object": "domain", "id": d.ID, "name": d.Name, "status": d.Status, "region": "us-east-1",
			"records": []record{
				{
					Record: "SPF", Name: "send", Type: "MX", TTL: "Auto", Status: d.Status,
					Value: "feedback-smtp.us-east-1.amazonses.com", Priority: "10",
				},
				{Record: "SPF", Name: "send", Type: "TXT", TTL: "Auto", Status: d.Status, Value: "v=spf1 include:amazonses.com ~all"},
				{Record: "DKIM", Name: "resend._domainkey", Type: "TXT", TTL: "Auto", Status: d.Status, Value: "p=" + d.ID},
			},
		}
	}
	if len(path) == 0 {
		switch method {
		case http.MethodGet:
			list := []map[string]any{}
			for d := range maps.Values(s.domains) {
				list = append(list, map[string]any{"id": d.ID, "name": d.Name, "status": d.Status})
			}
			return json.Marshal(map[string]any{"object": "list", "has_more": false, "data": list})
		case http.MethodPost:
			var in struct {
				Name string `json:"name"`
			}
			if err := decode(body, &in); err != nil {
				return nil, err
			}
			for d := range maps.Values(s.domains) {
				if d.Name == in.Name {
					return nil, &refusal{http.StatusForbidden, "validation_error", "The " + in.Name + " domain has been registered already."}
				}
			}
			d := &Domain{ID: rand.Text(), Name: in.Name, Status: "not_started"}
			if s.domains == nil {
				s.domains = map[string]*Domain{}
			}
			s.domains[d.ID] = d
			return json.Marshal(show(d))
		}
	}
	if len(path) > 0 {
		d, ok := s.domains[path[0]]
		switch {
		case !ok:
			return nil, &refusal{http.StatusNotFound, "not_found", "Domain not found"}
		case method == http.MethodGet && len(path) == 1:
			return json.Marshal(show(d))
		case method == http.MethodPost && len(path) == 2 && path[1] == "verify":
			if d.Status == "not_started" {
				d.Status = "pending"
			}
			return json.Marshal(map[string]any{"object": "domain", "id": d.ID})
		case method == http.MethodDelete && len(path) == 1:
			delete(s.domains, d.ID)
			return json.Marshal(map[string]any{"object": "domain", "id": d.ID, "deleted": true})
		}
	}
	return nil, &refusal{http.StatusMethodNotAllowed, "method_not_allowed", "This endpoint does not support the specified method."}
}

// Notification returns a signed notification request for an event such as email.bounced or
// email.complained.
func Notification(url, secret, id, event, bounceType string, at time.Time, to ...string) (*http.Request, error) {
	data := map[string]any{"email_id": rand.Text(), "to": to, "from": "Waitlist <no-reply@example.com>", "subject": "s"}
	if bounceType != "" {
		data["bounce"] = map[string]string{"type": bounceType, "subType": "General", "message": "No such mailbox."}
	}
	body, err := json.Marshal(map[string]any{"type": event, "created_at": at.UTC().Format(time.RFC3339Nano), "data": data})
	if err != nil {
		return nil, fmt.Errorf("marshal the notification: %w", err)
	}
	//nolint:noctx // its sender gives it one
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return nil, fmt.Errorf("notification: %w", err)
	}
	stamp := strconv.FormatInt(at.Unix(), 10)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Svix-Id", id)
	r.Header.Set("Svix-Timestamp", stamp)
	r.Header.Set("Svix-Signature", Sign(secret, id, stamp, body))
	return r, nil
}

// Sign returns the signature of a notification.
func Sign(secret, id, timestamp string, body []byte) string {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return ""
	}
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
