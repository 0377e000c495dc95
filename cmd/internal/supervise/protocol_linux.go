package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// order goes from the supervisor to the guardian: one JSON object a line, one field set in each.
// (JSON, because a start order carries a whole environment; the rest is a line every few seconds.)
// The start order is the first: Start queues it before anything else can queue one.
type order struct {
	Start     *startOrder    `json:"start,omitempty"`
	Deadline  time.Duration  `json:"deadline,omitempty"` // a later deadline, in nanoseconds on the boot clock
	Signal    syscall.Signal `json:"signal,omitempty"`   // sent on to the command's process group
	StopGrace *time.Duration `json:"stop,omitempty"`     // send the stop signal; SIGKILL follows after this grace

	Rebind     *rebindOrder     `json:"rebind,omitempty"`
	LastAction *lastActionOrder `json:"last_action,omitempty"`
}

// rebindOrder is a call of Bind or Unbind: it replaces the deadline, also by an earlier one. The
// guardian answers it.
type rebindOrder struct {
	ID       uint64        `json:"id"`       // the answer bears it too
	Deadline time.Duration `json:"deadline"` // NoDeadline: none any more
}

// lastActionOrder replaces the last action.
type lastActionOrder struct {
	Action *LastAction `json:"action"` // nil: there is none any more
}

// startOrder is a Command with its defaults filled in. It goes through the socket and not through
// argv, which every user of the machine may read.
type startOrder struct {
	Path       rawString      `json:"path"`
	Args       []rawString    `json:"args"`
	Env        []rawString    `json:"env"`
	Dir        rawString      `json:"dir"`
	Deadline   time.Duration  `json:"deadline"`
	Grace      time.Duration  `json:"grace"`
	Margin     time.Duration  `json:"margin"`
	StopSignal syscall.Signal `json:"stop_signal"`
	// DeathSignal is what the kernel sends to the command when the guardian dies.
	DeathSignal   syscall.Signal `json:"death_signal"`
	KillRemaining bool           `json:"kill_remaining"`

	Ignored    []syscall.Signal `json:"ignored"`    // the command must find these ignored, as under nohup
	Foreground bool             `json:"foreground"` // give the command the terminal on its standard input
	Group      int              `json:"group"`      // the supervisor's; 0: no terminal is lent to the command
	LastAction *LastAction      `json:"last_action"`
	Isolate    bool             `json:"isolate"` // run the command in a PID namespace
	// SupervisorPID is the supervisor's process ID. When the guardian has another parent, the
	// supervisor is dead.
	SupervisorPID int `json:"supervisor"`
}

// rawString is a string that arrives byte for byte. JSON would replace what is not UTF-8, such as a
// file name in Latin-1, and the command would get another name.
type rawString string

// MarshalJSON returns the bytes in base64.
func (s rawString) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(s)) }

// UnmarshalJSON reads what MarshalJSON returned.
func (s *rawString) UnmarshalJSON(text []byte) error {
	var b []byte
	err := json.Unmarshal(text, &b)
	*s = rawString(b)
	return err
}

// convert returns the same strings as another type.
func convert[To, From ~string](from []From) []To {
	to := make([]To, len(from))
	for i, s := range from {
		to[i] = To(s)
	}
	return to
}

// report goes from the guardian to the supervisor, one JSON object a line, one field set in each.
type report struct {
	Started   int         `json:"started,omitempty"` // the command's process ID
	Failed    *failReport `json:"failed,omitempty"`
	Suspended bool        `json:"suspended,omitempty"` // by SIGTSTP, SIGSTOP or the like (job control)
	Gone      *goneReport `json:"gone,omitempty"`      // the command has exited and nothing of it is left

	Rebind *rebindAnswer `json:"rebind,omitempty"`
}

// rebindAnswer answers a rebindOrder.
type rebindAnswer struct {
	ID uint64 `json:"id"` // the order's
	// Held: the guardian keeps the new deadline, and its alarms are set for it. If false, the
	// command is ending, and the order has changed nothing.
	Held bool `json:"held"`
}

// failReport says why the command was not started.
type failReport struct {
	Errno   syscall.Errno `json:"errno"`
	TooLate bool          `json:"too_late"`
	Isolate bool          `json:"isolate"` // there is no PID namespace for it
	Text    string        `json:"text"`
}

// goneReport says how the tree ended. The supervisor's watcher makes the [Status] from it.
type goneReport struct {
	WaitStatus    syscall.WaitStatus `json:"wait"`
	Cause         Cause              `json:"by"`
	CommandKilled bool               `json:"killed"`
	At            time.Duration      `json:"at"` // when nothing was left, on the boot clock
}

// shellCode returns the exit status as a shell shows it: 128+n for signal n.
func shellCode(w syscall.WaitStatus) int {
	if w.Signaled() {
		return 128 + int(w.Signal())
	}
	return w.ExitStatus()
}

// lineReader reads lines from one end of the socket, which must be non-blocking. The guardian's
// loop has one, and the supervisor's watcher another. Each reads on its own goroutine, on every
// wake-up. (The guardian looks at the clock before it reads, the watcher after it: see guard
// and watcher.run.) A separate goroutine must not do the reading: while the Go scheduler did not
// run it, the loop would not know of a new deadline and would kill a command too early.
type lineReader struct {
	fd     int
	rest   []byte // the beginning of a line that has not arrived whole
	closed bool   // the other side has closed its end, or the socket is broken
}

// read returns every line that has arrived, without waiting.
func (r *lineReader) read() [][]byte {
	var buf [4096]byte
	for !r.closed {
		n, err := unix.Read(r.fd, buf[:])
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		r.closed = n <= 0 // whatever is wrong with the socket, nothing will come any more
		r.rest = append(r.rest, buf[:max(n, 0)]...)
	}
	var lines [][]byte
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
		if !whole {
			return lines
		}
		lines, r.rest = append(lines, line), rest
	}
}
