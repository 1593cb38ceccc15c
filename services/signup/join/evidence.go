package join

import (
	"net/netip"
	"time"

	"waitlist.internal/services/signup/queue"
)

// tooFast is the least time that a person needs for a form.
const tooFast = 2 * time.Second

// network returns the network of a client: a keyed hash of the waitlist and the first 24
// bits of an IPv4 address, or the first 48 of an IPv6 address.
func (s *Service) network(waitlistID, clientIP string) (n queue.Network) {
	addr, err := netip.ParseAddr(clientIP)
	if err != nil {
		return n
	}
	addr = addr.Unmap().WithZone("")
	bits := 48
	if addr.Is4() {
		bits = 24
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return n
	}
	copy(n[:], s.hash(waitlistID + ":" + prefix.String())[0])
	return n
}

// person returns the person of an address: a keyed hash of the waitlist and the address.
func (s *Service) person(waitlistID, email string) (p queue.Person) {
	copy(p[:], s.hash(waitlistID + ":" + queue.Untagged(email))[0])
	return p
}
