// Package deploy tests the suite as an operator deploys it: all seven programs, which talk to
// each other over the network. Each but pages has its own Postgres role. Package e2e tests
// the suite in one process.
package deploy
