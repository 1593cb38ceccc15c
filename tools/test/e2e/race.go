//go:build race

package e2e

// raceDetector reports whether the tests, and so the program under test, run with the race detector.
const raceDetector = true
