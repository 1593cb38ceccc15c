package stripesim

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Kinds of faults.
const (
	// Throttle answers 429 with a Retry-After header.
	Throttle = "throttle"
	// Broken answers 500.
	Broken = "broken"
	// Hang does not answer until the caller gives up or the simulator ends.
	Hang = "hang"
	// Reset resets the connection.
	Reset = "reset"
	// Decline answers 402, as for a declined card.
	Decline = "decline"
)

// Fault makes API calls fail.
type Fault struct {
	// Method and Path select the calls. An empty Method matches every method; Path matches every path that starts with it.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Skip is the number of matching calls that pass first; Times is how many fail after them.
	Skip  int `json:"skip,omitempty"`
	Times int `json:"times"`
	// Kind is throttle, broken, hang, reset or decline.
	Kind string `json:"kind"`
	// After makes the call take effect before it fails: only the answer is lost.
	After bool `json:"after,omitempty"`
	// Sticky makes the idempotency key remember the failure, as the provider does with some of its 500s: the same call with the
	// same key then fails for 24 h.
	Sticky bool `json:"sticky,omitempty"`
	// RetryAfter is the value of throttle's Retry-After header, in seconds; 0 means 1.
	RetryAfter int `json:"retry_after,omitempty"`
}

// Inject makes calls fail from now on. If several faults match a call, the first applies.
func (s *Server) Inject(f Fault) error {
	if !slices.Contains([]string{Throttle, Broken, Hang, Reset, Decline}, f.Kind) {
		return fmt.Errorf("unknown kind of fault %q: use throttle, broken, hang, reset or decline", f.Kind)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
	return nil
}

// ClearFaults removes all faults. Calls that already hang keep hanging.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// fault returns the fault that applies to a call, or nil.
func (s *Server) fault(rq *request) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Times <= 0 || f.Method != "" && f.Method != rq.method || !strings.HasPrefix(rq.path, f.Path) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		f.Times--
		return f
	}
	return nil
}

// fail returns the answer that a fault causes; status 0 means no answer.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, f *Fault, reqID string) answer {
	switch f.Kind {
	case Throttle:
		w.Header().Set("Retry-After", strconv.Itoa(max(1, f.RetryAfter)))
		return refuse(&apiError{
			Status: http.StatusTooManyRequests, Type: invalidRequest, Code: "rate_limit",
			Message: "Request rate limit exceeded.",
		}, reqID)
	case Hang:
		s.hang(1)
		defer s.hang(-1)
		select {
		case <-r.Context().Done():
		case <-s.quit:
		}
		return answer{}
	case Reset:
		return answer{}
	case Decline:
		return refuse(declined(), reqID)
	}
	return refuse(&apiError{
		Status: http.StatusInternalServerError, Type: "api_error",
		Message: "An unknown error occurred.",
	}, reqID)
}

func (s *Server) hang(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hanging += n
}

// Hanging returns the number of calls that hang now. Those of a fault with After have already taken effect.
func (s *Server) Hanging() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hanging
}

// cut closes a connection without an answer.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset, not an orderly end
	}
	conn.Close()
}
