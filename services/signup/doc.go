// Package signup names the service; its rooms are the packages below it, each of which may
// import those that stand above it in this list, and depguard holds them to it:
//
//   - waitlist: a waitlist and its settings, how they are read, stored and shown. Pure.
//   - queue: what a batch, an import, a credit or a removal does to the queue. Pure.
//   - index: the ranks in Redis and how they follow the queue.
//   - join: what people do: sign up, look up their place, follow the links in mails; and the
//     transactions that an owner has done to one signup.
//   - owners: what owners do: waitlists, exports, imports, analytics, blasts; and what messaging and
//     the notifier ask.
//   - postgres: the SQL behind the stores that the rooms above name.
//   - http, grpc, kafka: what comes in. app wires all of them.
//
// The tests here run the rooms together on real servers, most of them beside an oracle.
//
// # Places in the queue
//
// A place is exact: 1 + the number of live signups ahead. Each signup has a sparse
// integer key. Only the order of the keys counts, so a move changes one row. The rank
// of a key comes from a Redis sorted set of the same keys (package index), or from
// bucket counts in Postgres if the list is small or the sorted set is behind (the functions
// in postgres/migrations).
//
// # The path of a signup
//
// join/form.go validates a signup against cached settings. join/lanes.go collects the signups
// that wait for the same waitlist into batches. For each batch, package postgres locks
// the waitlist and reads, queue/batch.go decides, and package postgres writes: it inserts
// the signups, moves the referrers, appends one row to the change log, and adds the
// events to the outbox. join/join.go leads through these steps and answers the caller after
// the commit, with the values of that transaction.
package signup

// Name is the service's name in identities, logs and metrics, and the name of its
// schema and consumer group.
const Name = "signup"
