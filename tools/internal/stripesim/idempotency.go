package stripesim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// maxKey is the maximum length of an Idempotency-Key; keptFor is how long a key is remembered, in seconds.
const (
	maxKey  = 255
	keptFor = 24 * 60 * 60
)

// kept is what the simulator remembers of an idempotency key.
type kept struct {
	Request string `json:"request"` // hash of method, path and parameters
	Answer  answer `json:"answer"`
	At      int64  `json:"at"`
}

// begin starts a request that has an idempotency key. For a key that was used before it returns the first answer. It rejects
// a key that was used with other parameters or whose first request is still in progress.
func (s *Server) begin(rq *request) (*answer, error) {
	if !rq.keyed() {
		return nil, nil
	}
	if len(rq.key) > maxKey {
		return nil, invalid("", "Idempotency keys can be at most %d characters.", maxKey)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[rq.key] {
		return nil, &apiError{
			Status: http.StatusConflict, Type: "idempotency_error", Code: "idempotency_key_in_use",
			Message: fmt.Sprintf("There is currently another in-progress request using this Idempotent Key (%s).", rq.key),
		}
	}
	k, ok := s.state.Keys[rq.key]
	if ok && s.cfg.Now().Unix()-k.At < keptFor {
		if k.Request != rq.hash() {
			return nil, &apiError{
				Status: http.StatusBadRequest, Type: "idempotency_error",
				Message: fmt.Sprintf("Keys for idempotent requests can only be used with the same parameters they were first used with. "+
					"Try using a key other than '%s' if you meant to execute a different request.", rq.key),
			}
		}
		return &k.Answer, nil
	}
	s.running[rq.key] = true
	return nil, nil
}

// end ends the request that begin started. keep says whether the key remembers the answer.
func (s *Server) end(rq *request, a answer, keep bool) {
	if !rq.keyed() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, rq.key)
	if keep && a.Status != 0 {
		s.keep(rq, a)
		s.dirty = true
		_ = s.save() // if this fails, the key only forgets an injected fault
	}
}

// keep stores an answer under the request's key, if it has one. The caller holds the lock.
func (s *Server) keep(rq *request, a answer) {
	if !rq.keyed() {
		return
	}
	now := s.cfg.Now().Unix()
	if len(s.state.Keys) > 10_000 {
		maps.DeleteFunc(s.state.Keys, func(_ string, k kept) bool { return now-k.At >= keptFor })
	}
	s.state.Keys[rq.key] = kept{Request: rq.hash(), Answer: a, At: now}
}

// keyed reports whether the request's key counts: the provider ignores keys on requests that are idempotent anyway.
func (rq *request) keyed() bool { return rq.key != "" && rq.method == http.MethodPost }

func (rq *request) hash() string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %q", rq.method, rq.path)
	for _, k := range slices.Sorted(maps.Keys(rq.form)) {
		_, _ = fmt.Fprintf(h, " %q=%q", k, rq.form[k])
	}
	return hex.EncodeToString(h.Sum(nil))
}
