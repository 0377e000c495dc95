package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Unprivileged runs the tests of a package that runs PostgreSQL itself, for its TestMain: as root
// it runs this program again as the user of PostgreSQL, and returns how that ended. Otherwise it
// returns what run does.
func Unprivileged(run func() int) int {
	if os.Getuid() != 0 {
		return run()
	}
	as, err := ordinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: NOT TESTED:", err)
		if os.Getenv("CI") != "" {
			return 1
		}
		return 0
	}
	// By way of /proc the folder of the binary, which is root's own, need not be entered.
	cmd := exec.Command("/proc/self/exe")
	for _, a := range os.Args[1:] {
		// The go command made these files for root.
		if !strings.HasPrefix(a, "-test.testlogfile=") && !strings.HasPrefix(a, "-test.gocoverdir=") {
			cmd.Args = append(cmd.Args, a)
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	as.wear(cmd)
	if err := attach(cmd); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 1
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "pgtest: the tests ended:", err)
	return 1
}

// Bin returns the folder with PostgreSQL's programs.
func Bin(tb testing.TB) string {
	tb.Helper()
	path, err := filepath.EvalSymlinks(program(tb, "postgres"))
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return filepath.Dir(path)
}
