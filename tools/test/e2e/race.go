//go:build race

package e2e

// raceDetector is on in the program under test where it is in the tests.
const raceDetector = true
