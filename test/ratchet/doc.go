// Package ratchet holds what is too large: types with many methods or files, functions with many
// branches, wide lines. Each list in testdata names what is too large today, and may only become
// shorter.
//
//	go test ./test/ratchet -update    takes out what is no longer needed, and lets nothing in but
//	                                  by hand
package ratchet
