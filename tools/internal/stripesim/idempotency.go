package stripesim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// maxKey is the longest Idempotency-Key, and keptFor how long one is remembered,
// in seconds.
const (
	maxKey  = 255
	keptFor = 24 * 60 * 60
)

// kept is what an idempotency key remembers.
type kept struct {
	Request string `json:"request"` // hash of method, path and parameters
	Answer  answer `json:"answer"`
	At      int64  `json:"at"`
}

// begin starts a request with an idempotency key. It returns the first answer of
// a key that was used, refuses one that was used for something else, and one
// whose first use is still under way.
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
				Message: fmt.Sprintf("Keys for idempotent requests can only be used with the same parameters they were first used with. Try using a key other than '%s' if you meant to execute a different request.", rq.key),
			}
		}
		return &k.Answer, nil
	}
	s.running[rq.key] = true
	return nil, nil
}

// end ends what begin started; keep says whether the key remembers this answer
// from now on.
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
		_ = s.save() // a failure that is forgotten is one fault less
	}
}

// keep has the key of a request, if it has one, remember an answer. The lock is
// held.
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

// keyed says whether the request's key counts: the provider ignores those of
// requests that are idempotent by themselves.
func (rq *request) keyed() bool { return rq.key != "" && rq.method == http.MethodPost }

func (rq *request) hash() string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %q", rq.method, rq.path)
	for _, k := range slices.Sorted(maps.Keys(rq.form)) {
		_, _ = fmt.Fprintf(h, " %q=%q", k, rq.form[k])
	}
	return hex.EncodeToString(h.Sum(nil))
}
