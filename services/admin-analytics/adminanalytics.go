// Package adminanalytics is the owners' edge for everything below
// /v1/waitlists: it authenticates a request and lets the service that owns the
// data decide about it.
//
// Analytics are its own. They are sums over the events of signups, kept by
// waitlist and UTC day and by origin, so that a question reads a few rows
// however many signups there are:
//
//	signup's outbox ─► Kafka ─► kafka.Handler ─► postgres.Store ◄─ Analytics
//	                                                   ▲
//	             signup's tallies, page views in Kafka ┴─ cmd/rebuild
//
// Only sums and highest numbers are kept, so the order of events does not
// matter; the inbox makes each count once. The sums can be made again from
// signup's rows and from the page views that Kafka still holds.
package adminanalytics

// Service is the service's name, as callee and in telemetry.
const Service = "admin-analytics"
