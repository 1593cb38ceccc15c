package join

import (
	_ "embed"
	"slices"
	"strings"
)

// zonesText has one name per line, sorted bytewise: those of the IANA time zone database that Go ships, old names included.
// TestZones says when there is a newer list and writes it.
//
//go:embed zones.txt
var zonesText string

var zones = strings.Fields(zonesText)

// knownZone reports whether name is an IANA time zone in its exact spelling. It asks no zone database, since those are folders,
// in which one zone has any number of names, such as Europe//Berlin.
func knownZone(name string) bool {
	_, known := slices.BinarySearch(zones, name)
	return known
}
