// Package golden holds what others rely on and no compiler checks: keys, values and fields in each
// store, the SQL schema, state files, JSON on standard output and from the sidecar, exit codes. The
// program is built and run against real servers, so nothing here depends on how the code is
// arranged. A difference is a change that users see: it needs a decision, not -update.
//
//	go test ./test/golden            compares
//	go test ./test/golden -update    writes testdata/*.golden anew
package golden
