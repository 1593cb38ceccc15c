// Package deploy tests the suite as an operator deploys it: six programs, each with its
// own Postgres role, that talk to each other over the network. Package e2e tests the
// suite in one process.
package deploy
