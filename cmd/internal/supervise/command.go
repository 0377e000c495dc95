package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// GuardianArg is the first argument of a process that must call [GuardianMain] and nothing else.
const GuardianArg = "__guardian"

// What Start can fail with, to be told apart with errors.Is. Any other error is our own failure.
var (
	ErrNotFound      = errors.New("command not found")      // a shell would exit 127
	ErrNotExecutable = errors.New("command not executable") // a shell would exit 126
	ErrTooLate       = errors.New("too little time before the deadline")
)

// Command is what to run, and until when. Only Args and Deadline are required.
type Command struct {
	Args []string // Args[0] is looked up in this process's PATH
	Env  []string // the whole environment; nothing is added, and nil is an empty one
	Dir  string   // working directory; empty: this process's

	Stdin, Stdout, Stderr *os.File // nil: this process's own. A terminal on Stdin is handed to the command

	Deadline   time.Duration  // on the boot clock (internal/boottime): by then nothing of the command is left
	Grace      time.Duration  // between the stop signal and SIGKILL; must fit before Deadline. Default 5 s
	Margin     time.Duration  // SIGKILL goes out this long before Deadline. Default: a twentieth of the time left, ≤ 100 ms
	StopSignal syscall.Signal // default SIGTERM

	Will *Will // nil: there is nothing to do for this process when it died

	// Apart is a command that is no part of the job whose shell may stop it (^Z): one that runs beside another, a hook. Give it no terminal.
	Apart bool
}

// By says what ended a command.
type By string

const (
	Exited       By = "exited"        // it ended by itself, or by a signal that was forwarded
	Stopped      By = "stopped"       // Process.Stop
	Deadline     By = "deadline"      // the deadline was not extended in time
	GuardianLost By = "guardian-lost" // the guardian was killed or hung, and the supervisor killed everything
)

// Status is how a command ended. Everything it started is gone too.
type Status struct {
	Code    int           // as a shell tells it: the exit status, or 128+n for signal n
	By      By            // the first cause
	Killed  bool          // SIGKILL was needed for the command itself
	Overrun time.Duration // how long after the deadline the last of its processes was still there; 0 is what must be
}

// DefaultGrace is the time between the stop signal and SIGKILL when Command.Grace is 0.
const DefaultGrace = 5 * time.Second

// maxMargin bounds the default margin: a kill takes a few milliseconds however long the lease is.
const maxMargin = 100 * time.Millisecond

// resolve returns c with its defaults filled in and the absolute path of its executable. It is called before anything
// is started, so a misspelt command fails at once and not after an election.
func (c Command) resolve(now time.Duration) (Command, string, error) {
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	left := c.Deadline - now
	if c.Margin == 0 {
		c.Margin = max(0, min(maxMargin, left/20))
	}
	if c.StopSignal == 0 {
		c.StopSignal = syscall.SIGTERM
	}
	if c.Grace < 0 || c.Margin < 0 {
		return c, "", fmt.Errorf("grace %v or margin %v is negative: give a duration ≥ 0", c.Grace, c.Margin)
	}
	// Without this the command would be told to stop in the moment it starts.
	if left <= c.Grace || left <= c.Margin {
		return c, "", fmt.Errorf("%w: %v left, grace %v, margin %v: extend first, or give a shorter grace", ErrTooLate, left, c.Grace, c.Margin)
	}
	path, err := lookPath(c.Args)
	if err != nil {
		return c, "", err
	}
	if c.Dir != "" {
		// exec's own ENOENT would not say whether the directory or the file is missing.
		if info, err := os.Stat(c.Dir); err != nil {
			return c, "", fmt.Errorf("working directory: %w", err)
		} else if !info.IsDir() {
			return c, "", fmt.Errorf("working directory %s is not a directory", c.Dir)
		}
	}
	return c, path, nil
}

// LookPath returns the absolute path of the executable that args[0] names, or [ErrNotFound] or [ErrNotExecutable]
// with the name. Start does it too; a caller that stands for election first asks here first.
func LookPath(args []string) (string, error) { return lookPath(args) }

func lookPath(args []string) (string, error) {
	if len(args) == 0 || args[0] == "" {
		return "", fmt.Errorf("%w: no command was given", ErrNotFound)
	}
	name := args[0]
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return filepath.Abs(path)
	case errors.Is(err, exec.ErrDot):
		return "", fmt.Errorf("%w: %s is only in the current directory: write ./%s", ErrNotFound, name, name)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound) && !inPath(name):
		return "", fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	return "", fmt.Errorf("%w: %s", ErrNotExecutable, name)
}

// inPath says whether a file of that name stands in PATH at all: exec.LookPath says "not found" of a file that is only
// not executable, and 127 would then send the user looking in the wrong place.
func inPath(name string) bool {
	if strings.ContainsRune(name, filepath.Separator) {
		return false
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, name)); dir != "" && err == nil && !info.IsDir() {
			return true
		}
	}
	return false
}
