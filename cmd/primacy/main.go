// Command primacy runs exactly one of something across a fleet, and never two.
package main

import (
	"context"
	"os"

	"github.com/primacy-go/primacy/cmd/internal/supervise"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == supervise.GuardianArg {
		supervise.GuardianMain(executeWill) // does not return
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
