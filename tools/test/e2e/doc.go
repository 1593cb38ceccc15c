// Package e2e holds what end-to-end tests need, and the tests themselves:
//
//	contract.go  judges every exchange by the OpenAPI document
//	client.go    requests and answers, as tests write them
//	server.go    the standalone program as a child process
//	mail.go      the mails it wrote
//	coverage.go  which of the contract's outcomes have been seen
//
// The suite (TestSuite) is written from the contract alone. Whatever the
// contract does not list as an answer of an operation fails the test, and so
// does an answer that it lists and no test has produced. Who may call what is
// derived from the document and tried in every combination (matrix_test.go).
package e2e
