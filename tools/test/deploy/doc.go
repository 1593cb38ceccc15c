// Package deploy tests the suite as an operator deploys it: all seven programs, each with its
// own Postgres role, that talk to each other over the network. Package e2e tests the
// suite in one process.
package deploy
