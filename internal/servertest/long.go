package servertest

import "testing"

// Long leaves a test to make verify: make test, which a person waits for, runs with -short. Part is
// the part of make verify that runs the test without it: race-library, or race-program for the
// modules cmd and test.
func Long(t testing.TB, part string) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make verify VERIFY=" + part)
	}
}
