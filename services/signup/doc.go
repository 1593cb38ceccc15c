// Package signup is the domain of waitlists and signups: the settings of a waitlist,
// who may sign up, and the place of each signup in the queue.
//
// # Places in the queue
//
// A place is exact: 1 + the number of live signups ahead. Each signup has a sparse
// integer key. Only the order of the keys counts, so a move changes one row. The rank
// of a key comes from a Redis sorted set of the same keys (package redis), or from
// bucket counts in Postgres if the list is small or the sorted set is behind. See
// index.go and the functions in postgres/migrations.
//
// # The path of a signup
//
// form.go validates a signup against cached settings. lanes.go collects the signups
// that wait for the same waitlist into batches. For each batch, package postgres locks
// the waitlist and reads, batch.go decides, and package postgres writes: it inserts
// the signups, moves the referrers, appends one row to the change log, and adds the
// events to the outbox. join.go leads through these steps and answers the caller after
// the commit, with the values of that transaction.
package signup

// Name is the service's name in identities, logs and metrics, and the name of its
// schema and consumer group.
const Name = "signup"
