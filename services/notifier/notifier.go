// Package notifier is the domain of notifications to owners' channels. It has
// no rules yet: its process starts, reports ready and stops.
//
//	app/           wires the service
//	cmd/notifier/  its process
package notifier

// Service is the service's name: in identities, logs and metrics.
const Service = "notifier"
