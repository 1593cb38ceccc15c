// Package e2e contains the end-to-end tests and what they need:
//
//	contract.go  checks every exchange against the OpenAPI document
//	client.go    requests and answers, as tests write them
//	server.go    the standalone program as a child process
//	mail.go      the mails that the program sent
//	coverage.go  which documented outcomes have occurred
//
// The suite (TestSuite) is written from the contract alone. An answer that the contract does not list for an operation fails
// the test; so does a listed answer that no test has produced. matrix_test.go derives from the document who may call what
// and tries every combination.
package e2e
