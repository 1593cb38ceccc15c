// Package adminanalytics is the owners' edge for everything below
// /v1/waitlists: it authenticates a request and lets the service that owns the
// data decide about it.
package adminanalytics

// Service is the service's name, as callee and in telemetry.
const Service = "admin-analytics"
