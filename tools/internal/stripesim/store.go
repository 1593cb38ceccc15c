package stripesim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// state is everything that the simulator stores.
type state struct {
	// Base is the base URL of the hosted pages made last.
	Base string `json:"base"`
	// Offset is how far the simulator's time runs ahead of Config.Now.
	Offset    time.Duration         `json:"offset"`
	Invoices  table[*invoice]       `json:"invoices"`
	Customers table[*customer]      `json:"customers"`
	Products  table[*product]       `json:"products"`
	Prices    table[*price]         `json:"prices"`
	Methods   table[*paymentMethod] `json:"payment_methods"`
	Sessions  table[*session]       `json:"sessions"`
	Subs      table[*subscription]  `json:"subscriptions"`
	Intents   table[*paymentIntent] `json:"payment_intents"`
	Charges   table[*charge]        `json:"charges"`
	Refunds   table[*refund]        `json:"refunds"`
	Portals   table[*portal]        `json:"portals"`
	Clocks    table[*testClock]     `json:"test_clocks"`
	Events    table[*event]         `json:"events"`
	Queue     []*delivery           `json:"queue"`
	Keys      map[string]kept       `json:"keys"`
	History   map[string][]State    `json:"history"` // keyed by subscription id
}

// table holds the objects of one kind in the order of creation.
type table[T object] struct {
	rows []T
	byID map[string]T
}

func (t *table[T]) add(o T) {
	if t.byID == nil {
		t.byID = map[string]T{}
	}
	t.rows = append(t.rows, o)
	t.byID[o.ident()] = o
}

// MarshalJSON implements json.Marshaler.
func (t table[T]) MarshalJSON() ([]byte, error) { return json.Marshal(t.rows) }

// UnmarshalJSON implements json.Unmarshaler.
func (t *table[T]) UnmarshalJSON(b []byte) error {
	var rows []T
	if err := json.Unmarshal(b, &rows); err != nil {
		return err
	}
	for _, o := range rows {
		t.add(o)
	}
	return nil
}

// find returns the object of any kind that has this id.
func (s *Server) find(id string) (object, bool) {
	st := &s.state
	for _, look := range []func(string) (object, bool){
		in(&st.Customers), in(&st.Subs), in(&st.Invoices), in(&st.Intents), in(&st.Charges), in(&st.Methods),
		in(&st.Prices), in(&st.Products), in(&st.Sessions), in(&st.Refunds), in(&st.Clocks),
	} {
		if o, ok := look(id); ok {
			return o, true
		}
	}
	return nil, false
}

func in[T object](t *table[T]) func(string) (object, bool) {
	return func(id string) (object, bool) {
		o, ok := t.byID[id]
		return o, ok
	}
}

// load reads the state from Config.File if the file exists.
func (s *Server) load() error {
	s.state = state{Keys: map[string]kept{}, History: map[string][]State{}}
	if s.cfg.File == "" {
		return nil
	}
	b, err := os.ReadFile(s.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s.state)
	}
	if err != nil {
		return fmt.Errorf("read the simulator's state: %w", err)
	}
	return nil
}

// save writes the state if it changed. It replaces the file atomically, so a crash leaves either the old state or the new
// one. The caller holds the lock.
func (s *Server) save() error {
	if !s.dirty || s.cfg.File == "" {
		s.dirty = false
		return nil
	}
	b, err := json.Marshal(&s.state)
	if err != nil {
		return fmt.Errorf("encode the simulator's state: %w", err)
	}
	if err := replace(s.cfg.File, b); err != nil {
		return fmt.Errorf("save the simulator's state: %w", err)
	}
	s.dirty = false
	return nil
}

func replace(file string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// render returns an object as callers see it: without the simulator's internal fields, and with the objects named by expand
// in place of their ids.
func (s *Server) render(o any, expand []string) (any, error) {
	switch v := o.(type) {
	case *customer:
		if v.Deleted {
			return deleted{ID: v.ID, Object: v.Object, Deleted: true}, nil
		}
	case *subscription:
		v.Items = list{Object: "list", Data: []subscriptionItem{v.Sim.Item}, URL: "/v1/subscription_items?subscription=" + v.ID}
	case *invoice:
		v.Lines = list{Object: "list", Data: v.Sim.Lines, URL: "/v1/invoices/" + v.ID + "/lines"}
	case *session:
		if slices.ContainsFunc(expand, func(p string) bool { return p == "line_items" || strings.HasPrefix(p, "line_items.") }) {
			shown := *v
			shown.LineItems = s.sessionLines(v)
			o = &shown
		}
	case list:
		return s.renderList(v, expand)
	}
	b, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode an object: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		return nil, fmt.Errorf("encode an object: %w", err)
	}
	delete(m, "sim")
	for _, path := range expand {
		if err := s.expand(m, path, path); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (s *Server) renderList(l list, expand []string) (any, error) {
	inner := make([]string, 0, len(expand))
	for _, path := range expand {
		rest, ok := strings.CutPrefix(path, "data.")
		if !ok {
			return nil, invalid("expand", "This property cannot be expanded (%s). You may want to try expanding 'data.%s'.", path, path)
		}
		inner = append(inner, rest)
	}
	objects, ok := l.Data.([]any)
	if !ok {
		return nil, fmt.Errorf("list: unexpected type %T", l.Data)
	}
	shown := make([]any, 0, len(objects))
	for _, o := range objects {
		v, err := s.render(o, inner)
		if err != nil {
			return nil, err
		}
		shown = append(shown, v)
	}
	l.Data = shown
	return l, nil
}

// expand replaces the id at path with the object.
func (s *Server) expand(m map[string]any, path, whole string) error {
	if strings.Count(whole, ".") > 3 {
		return invalid("expand", "You cannot expand more than 4 levels of a property. Property: %s.", whole)
	}
	name, rest, more := strings.Cut(path, ".")
	v, ok := m[name]
	if !ok {
		return invalid("expand", "This property cannot be expanded (%s).", whole)
	}
	if id, isID := v.(string); isID {
		o, found := s.find(id)
		if !found {
			return invalid("expand", "This property cannot be expanded (%s).", whole)
		}
		shown, err := s.render(o, nil)
		if err != nil {
			return err
		}
		m[name], v = shown, shown
	}
	if !more {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		return s.expand(v, rest, whole)
	case []any:
		for _, e := range v {
			if inner, ok := e.(map[string]any); ok {
				if err := s.expand(inner, rest, whole); err != nil {
					return err
				}
			}
		}
	}
	return nil // null or a deleted object
}

// page answers a list call: newest first, limit from 1 to 100, starting after or ending before an id.
func page[T object](rq *request, t *table[T], keep func(T) bool) (any, error) {
	limit, err := rq.integer("limit", 10)
	if err != nil {
		return nil, err
	}
	if limit < 1 || limit > 100 {
		return nil, invalid("limit", "Limit must be between 1 and 100.")
	}
	all := make([]T, 0, len(t.rows))
	for _, o := range slices.Backward(t.rows) {
		if keep(o) {
			all = append(all, o)
		}
	}
	at := func(param string) (int, error) {
		i := slices.IndexFunc(all, func(o T) bool { return o.ident() == rq.form[param] })
		if i < 0 {
			return 0, noSuch("object", rq.form[param], param)
		}
		return i, nil
	}
	var more bool
	switch {
	case rq.form["starting_after"] != "":
		i, err := at("starting_after")
		if err != nil {
			return nil, err
		}
		all = all[i+1:]
		more = len(all) > int(limit)
		all = all[:min(len(all), int(limit))]
	case rq.form["ending_before"] != "":
		i, err := at("ending_before")
		if err != nil {
			return nil, err
		}
		all = all[:i]
		more = len(all) > int(limit)
		all = all[max(0, len(all)-int(limit)):]
	default:
		more = len(all) > int(limit)
		all = all[:min(len(all), int(limit))]
	}
	data := make([]any, 0, len(all))
	for _, o := range all {
		data = append(data, o)
	}
	return list{Object: "list", Data: data, HasMore: more, URL: rq.path}, nil
}

// pageParams are the parameters that every list call accepts.
const pageParams = "limit starting_after ending_before created"

// created reports whether a time matches the filters created, created[gt], [gte], [lt] and [lte].
func (rq *request) created(t int64) (bool, error) {
	ok := true
	for name, holds := range map[string]func(int64) bool{
		"created":      func(v int64) bool { return t == v },
		"created[gt]":  func(v int64) bool { return t > v },
		"created[gte]": func(v int64) bool { return t >= v },
		"created[lt]":  func(v int64) bool { return t < v },
		"created[lte]": func(v int64) bool { return t <= v },
	} {
		if rq.form[name] == "" {
			continue
		}
		v, err := rq.integer(name, 0)
		if err != nil {
			return false, err
		}
		ok = ok && holds(v)
	}
	return ok, nil
}
