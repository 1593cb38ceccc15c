package stripesim

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"time"

	"waitlist.internal/tools/internal/devkey"
)

// controls offers the methods of Server as JSON to other processes that send ControlKey as ?key=. Bodies must be application/json,
// which a form on a foreign page cannot send.
//
//	POST   /_sim/faults            a Fault
//	DELETE /_sim/faults
//	POST   /_sim/webhook           {url, secret}
//	POST   /_sim/chaos             a Chaos; max_delay in nanoseconds
//	GET    /_sim/deliveries        the pending deliveries
//	POST   /_sim/deliveries        {event, do: release, drop or send}, or {do: release_all or drain}
//	POST   /_sim/advance           {seconds}
//	POST   /_sim/card              {customer, last4}
//	GET    /_sim/history?customer= every state
//	GET    /_sim/calls             the requests so far
func (s *Server) controls() {
	s.control("POST /_sim/faults", func(_ context.Context, in controlRequest) (any, error) {
		return nil, s.Inject(in.Fault)
	})
	s.control("DELETE /_sim/faults", func(context.Context, controlRequest) (any, error) {
		s.ClearFaults()
		return nil, nil
	})
	s.control("POST /_sim/webhook", func(_ context.Context, in controlRequest) (any, error) {
		s.SetWebhook(in.URL, in.Secret)
		return nil, nil
	})
	s.control("POST /_sim/chaos", func(_ context.Context, in controlRequest) (any, error) {
		s.SetChaos(in.Chaos)
		return nil, nil
	})
	s.control("GET /_sim/deliveries", func(context.Context, controlRequest) (any, error) {
		return s.Pending(), nil
	})
	s.control("POST /_sim/deliveries", s.controlDelivery)
	s.control("POST /_sim/advance", func(_ context.Context, in controlRequest) (any, error) {
		return nil, s.Advance(time.Duration(in.Seconds) * time.Second)
	})
	s.control("POST /_sim/card", func(_ context.Context, in controlRequest) (any, error) {
		return nil, s.SetCard(in.Customer, in.Last4)
	})
	s.control("GET /_sim/history", func(_ context.Context, in controlRequest) (any, error) {
		return s.History(in.Customer), nil
	})
	s.control("GET /_sim/calls", func(context.Context, controlRequest) (any, error) {
		return s.Calls(), nil
	})
}

// controlRequest holds the fields of every control request.
type controlRequest struct {
	Fault
	Chaos
	URL      string `json:"url"`
	Secret   string `json:"secret"`
	Event    string `json:"event"`
	Do       string `json:"do"`
	Seconds  int64  `json:"seconds"`
	Customer string `json:"customer"`
	Last4    string `json:"last4"`
}

func (s *Server) controlDelivery(ctx context.Context, in controlRequest) (any, error) {
	switch in.Do {
	case "release":
		return map[string]bool{"found": s.Release(in.Event)}, nil
	case "drop":
		return map[string]bool{"found": s.Drop(in.Event)}, nil
	case "send":
		status, err := s.Send(ctx, in.Event)
		return map[string]int{"status": status}, err
	case "release_all":
		s.ReleaseAll()
		return nil, nil
	case "drain":
		return nil, s.Drain(ctx)
	}
	return nil, invalid("do", "Set do to release, drop, send, release_all or drain.")
}

func (s *Server) control(pattern string, do func(context.Context, controlRequest) (any, error)) {
	s.mux.Handle(pattern, devkey.Guard(s.cfg.ControlKey, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := controlRequest{Customer: r.URL.Query().Get("customer")}
		if r.Method == http.MethodPost {
			kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
			if kind != "application/json" {
				http.Error(w, "the Content-Type must be application/json", http.StatusUnsupportedMediaType)
				return
			}
			dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&in); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		out, err := do(r.Context(), in)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if out == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	})))
}
