package stripesim

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// What a fault does to an answer.
const (
	// Throttle answers 429 with Retry-After.
	Throttle = "throttle"
	// Broken answers 500.
	Broken = "broken"
	// Hang answers nothing until the caller gives up or the simulator ends.
	Hang = "hang"
	// Reset cuts the connection.
	Reset = "reset"
	// Decline answers 402: a card is refused.
	Decline = "decline"
)

// Fault has calls of the API fail.
type Fault struct {
	// Method and Path tell the calls: all methods and paths that start with Path
	// where they are empty.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Skip lets the first matching calls pass; Times is how many fail then.
	Skip  int `json:"skip,omitempty"`
	Times int `json:"times"`
	// Kind is throttle, broken, hang, reset or decline.
	Kind string `json:"kind"`
	// After has the call take effect all the same: the answer gets lost.
	After bool `json:"after,omitempty"`
	// Sticky has the idempotency key remember the failure, as the provider does
	// with some of its 500s: the same call with the same key fails for 24 h.
	Sticky bool `json:"sticky,omitempty"`
	// RetryAfter is the header of throttle, in seconds; 0: 1.
	RetryAfter int `json:"retry_after,omitempty"`
}

// Inject has calls fail from now on. Of several faults that match a call the
// first counts.
func (s *Server) Inject(f Fault) error {
	if !slices.Contains([]string{Throttle, Broken, Hang, Reset, Decline}, f.Kind) {
		return fmt.Errorf("a fault is throttle, broken, hang, reset or decline, not %q", f.Kind)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
	return nil
}

// ClearFaults ends all faults; what hangs goes on hanging.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// fault returns the fault that a call meets.
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

// fail is the answer of a fault; status 0 is none.
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

// Hanging returns how many calls hang now. Those of a fault after the effect have
// had it.
func (s *Server) Hanging() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hanging
}

// cut ends a connection without an answer.
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
