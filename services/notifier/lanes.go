package notifier

import "cmp"

// Limits bound queued and running deliveries. Zero fields mean the defaults.
type Limits struct {
	// Running bounds the deliveries under way in this process; default 512.
	Running int
	// OwnerRunning bounds the deliveries of one owner; default 32.
	OwnerRunning int
	// HostRunning bounds the deliveries to one host; default 64.
	HostRunning int
	// LaneRunning bounds the deliveries to one endpoint that answers in time; default
	// 16. Each timeout halves the endpoint's bound, each answer adds one.
	LaneRunning int
	// Queued bounds the deliveries that wait in this process, OwnerQueued those of one
	// owner, LaneQueued those to one endpoint; defaults 400,000 (140 MB), 40,000 and
	// 20,000. Further ones are dropped.
	Queued, OwnerQueued, LaneQueued int
}

// spared is the queue length up to which only LaneQueued limits an endpoint.
const spared = 10

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		v   *int
		def int
	}{
		{&l.Running, 512},
		{&l.OwnerRunning, 32},
		{&l.HostRunning, 64},
		{&l.LaneRunning, 16},
		{&l.Queued, 400_000},
		{&l.OwnerQueued, 40_000},
		{&l.LaneQueued, 20_000},
	} {
		*f.v = cmp.Or(*f.v, f.def)
	}
	return l
}

// lanes chooses the next delivery: owners take turns, and so do the endpoints of an
// owner. An endpoint is a channel of a waitlist. Each step takes constant time,
// except when a full host becomes free: that costs a step per waiting endpoint. Not
// safe for concurrent use.
type lanes struct {
	limits Limits
	lanes  map[laneKey]*lane
	owners map[string]*owner
	hosts  map[string]*host
	// ready are the owners that may start a delivery, in order of their turns.
	ready           []*owner
	running, queued int
}

type laneKey struct {
	waitlistID string
	channel    Channel
}

// lane is the queue of one endpoint.
type lane struct {
	key   laneKey
	owner *owner
	queue []Delivery
	// returned are deliveries that were put back; they go first, the last one first.
	returned []Delivery
	running  int
	// limit bounds the deliveries under way; at least 1.
	limit int
	// host is the last known host; "" before the first attempt.
	host string
	// listed is set while the lane is in its owner's ready list or waits for its host.
	listed bool
}

func (l *lane) queued() int { return len(l.returned) + len(l.queue) }

// take removes the first delivery of the queue, which has one.
func (l *lane) take() (d Delivery) {
	if last := len(l.returned) - 1; last >= 0 {
		d, l.returned[last], l.returned = l.returned[last], Delivery{}, l.returned[:last]
		return d
	}
	d, l.queue[0], l.queue = l.queue[0], Delivery{}, l.queue[1:]
	return d
}

type owner struct {
	id string
	// ready are the lanes that may start a delivery.
	ready                  []*lane
	lanes, running, queued int
	listed                 bool
}

type host struct {
	running int
	waiting []*lane
}

func newLanes(l Limits) *lanes {
	return &lanes{limits: l.withDefaults(), lanes: map[laneKey]*lane{}, owners: map[string]*owner{}, hosts: map[string]*host{}}
}

// add queues d. It returns false if there is no room.
func (s *lanes) add(d Delivery) bool {
	key := laneKey{d.WaitlistID, d.Channel}
	l := s.lanes[key]
	if l == nil {
		o := s.owners[d.OwnerID]
		if o == nil {
			o = &owner{id: d.OwnerID}
			s.owners[o.id] = o
		}
		l = &lane{key: key, owner: o, limit: s.limits.LaneRunning}
		s.lanes[key] = l
		o.lanes++
	}
	full := l.owner.queued >= s.limits.OwnerQueued || s.queued >= s.limits.Queued
	if n := l.queued(); n >= s.limits.LaneQueued || n >= spared && full {
		return false
	}
	l.queue = append(l.queue, d)
	l.owner.queued++
	s.queued++
	s.list(l)
	return true
}

// next removes the next delivery from its queue. The delivery is under way until
// done. A nil lane means that no delivery may start.
func (s *lanes) next() (*lane, Delivery) {
	for s.running < s.limits.Running && len(s.ready) > 0 {
		o := s.ready[0]
		s.ready[0], s.ready = nil, s.ready[1:]
		o.listed = false
		if len(o.ready) == 0 || o.running >= s.limits.OwnerRunning {
			continue
		}
		l := o.ready[0]
		o.ready[0], o.ready = nil, o.ready[1:]
		l.listed = false
		if l.queued() == 0 || l.running >= l.limit || !s.enter(l, l.host) {
			s.listOwner(o)
			continue
		}
		d := l.take()
		l.running++
		o.running++
		o.queued--
		s.running++
		s.queued--
		s.list(l)
		s.listOwner(o)
		return l, d
	}
	return nil, Delivery{}
}

// enter takes a place at the host for l, or makes l wait for one. The host "" always
// has a place.
func (s *lanes) enter(l *lane, name string) bool {
	if name == "" {
		return true
	}
	h := s.hosts[name]
	if h == nil {
		h = new(host)
		s.hosts[name] = h
	}
	if h.running >= s.limits.HostRunning {
		if !l.listed {
			l.listed = true
			h.waiting = append(h.waiting, l)
		}
		return false
	}
	h.running++
	return true
}

// leave returns a place at the host. Once several places are free, waiting lanes may
// try again.
func (s *lanes) leave(name string) {
	h := s.hosts[name]
	if h == nil {
		return
	}
	h.running--
	if h.running > s.limits.HostRunning*3/4 {
		return
	}
	for _, l := range h.waiting {
		l.listed = false
		s.list(l)
	}
	h.waiting = nil
	if h.running == 0 {
		delete(s.hosts, name)
	}
}

// switchHost frees a delivery's place at from and takes one at to. It returns false
// if to is full; the caller then puts the delivery back.
func (s *lanes) switchHost(l *lane, from, to string) bool {
	if from == to {
		return true
	}
	s.leave(from)
	l.host = to
	return s.enter(l, to)
}

// back puts a delivery at the front of its queue again.
func (s *lanes) back(l *lane, d Delivery) {
	l.returned = append(l.returned, d)
	l.owner.queued++
	s.queued++
}

// done ends a delivery that next returned; name is the host where it has a place.
// slow means that the attempt timed out, quick that it got an answer.
func (s *lanes) done(l *lane, name string, slow, quick bool) {
	switch {
	case slow:
		l.limit = max(1, l.limit/2)
	case quick:
		l.limit = min(l.limit+1, s.limits.LaneRunning)
	}
	l.running--
	l.owner.running--
	s.running--
	if name != "" {
		s.leave(name)
	}
	s.list(l)
	s.listOwner(l.owner)
	if l.running > 0 || l.queued() > 0 {
		return
	}
	delete(s.lanes, l.key)
	if l.owner.lanes--; l.owner.lanes == 0 {
		delete(s.owners, l.owner.id)
	}
}

// list gives l a turn if it can use one.
func (s *lanes) list(l *lane) {
	if l.listed || l.queued() == 0 || l.running >= l.limit {
		return
	}
	l.listed = true
	l.owner.ready = append(l.owner.ready, l)
	s.listOwner(l.owner)
}

func (s *lanes) listOwner(o *owner) {
	if o.listed || len(o.ready) == 0 || o.running >= s.limits.OwnerRunning {
		return
	}
	o.listed = true
	s.ready = append(s.ready, o)
}
