// Package mutations proves that the tests of this project bite. Each NAME.patch removes one rule
// from the library; with it the test that the patch names must fail. A mutation that no test
// notices means that the rule is not held by anything.
//
// A patch begins with two lines, then a unified diff against the root of the module:
//
//	# What: the deadline counts from after the reply
//	# Run: ./test/sim TestSeeds
//
// The sources stay as they are: the patch is applied to copies, which `go test -overlay` compiles
// in their place. The test that failed is then run without the patch, once for all patches that
// name it, and must pass: one that fails anyway would seem to notice everything. The output says
// how many seeds it took. `make mutations` runs all of them, or some, and looks that all apply.
package mutations
