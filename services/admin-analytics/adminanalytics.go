// Package adminanalytics is the owners' edge for everything below /v1/waitlists: it
// authenticates a request and forwards it to the service that owns the data.
//
// It owns the analytics: sums over the events of signups, kept per waitlist by UTC
// day and by origin. A query reads a few rows, however many signups there are:
//
//	signup's outbox ─► Kafka ─► kafka.Handler ─► postgres.Store ◄─ Analytics
//	                                                   ▲
//	             signup's tallies, page views in Kafka ┴─ cmd/rebuild
//
// It keeps only sums and highest numbers, so the order of events does not matter.
// The inbox makes sure that each event counts once. cmd/rebuild rebuilds the sums
// from the signup service's rows and from the page views that Kafka still holds.
package adminanalytics

// Name is the service's name in identities, logs and metrics, and the name of its
// consumer group.
const Name = "admin-analytics"
