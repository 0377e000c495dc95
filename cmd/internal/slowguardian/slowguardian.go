// Package slowguardian makes a guardian start late, for tests.
//
// A guardian does its work while package supervise is initialized. This package does not import
// that one, and its path sorts before it, so it is initialized earlier.
package slowguardian

import (
	"os"
	"time"
)

// File is a file in the working folder. It makes the next guardian, and no other, start as late as
// its text says.
const File = "slow-guardian"

func init() {
	if len(os.Args) < 2 || os.Args[1] != "__guardian" {
		return
	}
	b, err := os.ReadFile(File)
	if err != nil {
		return
	}
	_ = os.Remove(File)
	d, err := time.ParseDuration(string(b))
	if err != nil {
		panic(err)
	}
	time.Sleep(d)
}
