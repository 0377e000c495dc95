package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// GuardianArg is the first argument of a guardian. This package's initialization does a guardian's
// work; main must call [GuardianMain] and nothing else.
const GuardianArg = "__guardian"

// Errors, for errors.Is. All are of [Supervisor.Start], but for ErrEnding. Start has others too,
// whose text says what is wrong: no such working directory, a negative grace, no guardian.
var (
	ErrNotFound      = errors.New("command not found")      // a shell would exit 127
	ErrNotExecutable = errors.New("command not executable") // a shell would exit 126
	ErrTooLate       = errors.New("too little time before the deadline")

	// ErrEnding: a [Process.Bind] or [Process.Unbind] came too late. The command ends all the same.
	ErrEnding = errors.New("the command has ended or is being ended")

	// ErrIsolate: this machine lets this process make or enter no PID namespace, or gives it no
	// timer.
	ErrIsolate = errors.New("the command cannot be isolated")
)

// NoDeadline is the [Command].Deadline of a command that may run as long as this process does.
// [Process.Bind] gives it a deadline, [Process.Unbind] takes that away again.
const NoDeadline = time.Duration(math.MaxInt64)

// Command is what to run, and until when. Only Args and Deadline are required.
type Command struct {
	Args []string // Args[0] is looked up in this process's PATH
	Env  []string // the whole environment; nothing is added, and nil is an empty one
	Dir  string   // working directory; empty: this process's

	// Stdin, Stdout and Stderr are this process's own where nil. If Stdin is our controlling
	// terminal, and our process group is in its foreground, the command's group takes that place.
	Stdin, Stdout, Stderr *os.File

	// Deadline is on the boot clock (internal/boottime): by then nothing of the command is left. It
	// may be NoDeadline.
	Deadline   time.Duration
	Grace      time.Duration  // from the stop signal to SIGKILL; must fit before Deadline. Default 5 s
	Margin     time.Duration  // from SIGKILL to Deadline. Default: time left / 20, at most 100 ms
	StopSignal syscall.Signal // default SIGTERM

	// DeathSignal is what the kernel sends to the command, and to nothing that it started, when the
	// guardian dies. Default SIGKILL. It matters when supervisor and guardian are killed at one
	// instant, and nobody is left to kill the command's children. PostgreSQL, for one, ends its own
	// processes on SIGQUIT. The kernel forgets the death signal when the command changes its user.
	// It is without effect after [Supervisor.Isolate].
	DeathSignal syscall.Signal

	// KillRemaining is for a command that must leave nothing behind. When it exits, what it has
	// left behind is killed at once, not after the stop signal and Grace.
	KillRemaining bool

	// LastAction is what the guardian does for this process when this process has died; nil:
	// nothing. [Process.SetLastAction] replaces it.
	LastAction *LastAction

	// NoJobControl is for a command that runs beside another one, such as a hook. The package then
	// does not pass SIGTSTP (^Z) and SIGCONT (fg) on to the command, does not suspend this process
	// when the command is suspended, and does not lend the command the terminal.
	NoJobControl bool
}

// Cause says what ended a command.
type Cause string

const (
	CauseExited       Cause = "exited"        // it ended by itself, or by a signal that Process.Signal passed on
	CauseStopped      Cause = "stopped"       // Process.Stop was called, or the supervisor died
	CauseDeadline     Cause = "deadline"      // the deadline was not extended in time
	CauseGuardianLost Cause = "guardian-lost" // the guardian was killed or frozen: the supervisor killed the tree
)

// Status is how a command ended. Everything it started is gone too. With CauseGuardianLost the
// command's exit status may be unknown: then Code is 137 and Killed is true.
type Status struct {
	Code    int           // the exit status as a shell shows it: 128+n for signal n
	Cause   Cause         // the first cause
	Killed  bool          // SIGKILL was needed for the command itself
	Overrun time.Duration // how long after the deadline the last process was still there; must be 0

	// Interrupted is SIGINT or SIGQUIT if the command died of it while it had our terminal, as by
	// ^C. The keyboard's signals go to the group that has the terminal, so nobody else got it:
	// neither this process nor a script that has started it. See [DieOf].
	Interrupted syscall.Signal
}

// DefaultGrace is the time between the stop signal and SIGKILL when Command.Grace is 0.
const DefaultGrace = 5 * time.Second

// maxMargin bounds the default margin: a kill takes a few milliseconds however long the lease is.
const maxMargin = 100 * time.Millisecond

// maxGrace bounds every grace, so that no instant of this package overflows: it is 146 years.
const maxGrace = NoDeadline / 2

// resolve returns c with its defaults filled in and Dir made absolute, and the absolute path of its
// executable. Start calls it before it starts anything.
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
	if c.DeathSignal == 0 {
		c.DeathSignal = syscall.SIGKILL
	}
	if c.Grace < 0 || c.Margin < 0 {
		return c, "", fmt.Errorf("grace %v or margin %v is negative: give a duration ≥ 0", c.Grace, c.Margin)
	}
	c.Grace = min(c.Grace, maxGrace)
	if err := enoughTime(left, c.Grace, c.Margin); err != nil {
		return c, "", err
	}
	path, err := LookPath(c.Args)
	if err != nil {
		return c, "", err
	}
	if c.Dir != "" {
		c.Dir, err = workingDirectory(c.Dir)
	}
	return c, path, err
}

// workingDirectory returns the absolute path of a directory that a command can begin in. (The
// kernel's own error would not say whether the directory or the file is missing or forbidden.)
func workingDirectory(dir string) (string, error) {
	abs, err := filepath.Abs(dir) // an isolated command begins with the root as its directory
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("working directory %s is not a directory", abs)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, abs, unix.X_OK, unix.AT_EACCESS); err != nil {
		return "", fmt.Errorf("working directory %s: %w", abs, err)
	}
	return abs, nil
}

// enoughTime returns [ErrTooLate] if the command would get its stop signal, or be killed, at once.
func enoughTime(left, grace, margin time.Duration) error {
	if left <= grace || left <= margin {
		return fmt.Errorf("%w: %v left, grace %v, margin %v: extend first, or give a shorter grace",
			ErrTooLate, left, grace, margin)
	}
	return nil
}

// LookPath returns the absolute path of the executable that args[0] names, or [ErrNotFound] or
// [ErrNotExecutable] with the name. A caller that must first win an election calls it before that,
// so that a misspelt command fails at once.
func LookPath(args []string) (string, error) {
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

// inPath says whether PATH has a file of that name at all. exec.LookPath says "not found" also of a
// file that is only not executable, and the exit code 127 would send the user looking in the wrong
// place.
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
