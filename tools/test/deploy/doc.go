// Package deploy holds the tests of the suite as it is deployed: six programs,
// each with its own role in Postgres, that talk to each other over the network.
// The suite in one process has tools/test/e2e.
package deploy
