// Package billing is the domain of paid subscriptions. It has no rules yet: its
// process starts, reports ready, answers every request with the contract's 404
// and stops.
//
//	app/          wires the service
//	cmd/billing/  its process
package billing

// Service is the service's name: in routes, identities, logs and metrics.
const Service = "billing"
