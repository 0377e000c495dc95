//go:build unix

package supervise

import (
	"syscall"
	"time"
)

// order is what the supervisor tells the guardian: one JSON object a line, one field set in each.
// JSON, because a start order carries a whole environment, and the rest is a line every few seconds.
type order struct {
	Start    *startOrder    `json:"start,omitempty"`
	Deadline time.Duration  `json:"deadline,omitempty"` // nanoseconds on the boot clock
	Signal   syscall.Signal `json:"signal,omitempty"`   // to the command's process group
	Stop     *time.Duration `json:"stop,omitempty"`     // the grace
}

// startOrder is a Command, resolved. It goes through the socket and not through argv, which everybody may read.
type startOrder struct {
	Path       string           `json:"path"`
	Args       []string         `json:"args"`
	Env        []string         `json:"env"`
	Dir        string           `json:"dir"`
	Deadline   time.Duration    `json:"deadline"`
	Grace      time.Duration    `json:"grace"`
	Margin     time.Duration    `json:"margin"`
	StopSignal syscall.Signal   `json:"stop_signal"`
	Ignored    []syscall.Signal `json:"ignored"`    // signals the command must find ignored, as under nohup
	Foreground bool             `json:"foreground"` // give the command the terminal on its standard input
	Group      int              `json:"group"`      // whose the terminal was before
	Will       *Will            `json:"will"`
	Supervisor int              `json:"supervisor"` // its process ID, to tell whether it is still the guardian's parent
}

// report is what the guardian tells the supervisor.
type report struct {
	Started int         `json:"started,omitempty"` // the command's pid
	Failed  *failReport `json:"failed,omitempty"`
	Paused  bool        `json:"paused,omitempty"` // stopped by SIGTSTP or the like: job control
	Gone    *goneReport `json:"gone,omitempty"`   // the command ended, nothing of it is left
}

// failReport says why the command was not started.
type failReport struct {
	Errno   syscall.Errno `json:"errno"`
	TooLate bool          `json:"too_late"`
	Text    string        `json:"text"`
}

// goneReport is a Status before it is one.
type goneReport struct {
	Wait    syscall.WaitStatus `json:"wait"`
	By      By                 `json:"by"`
	Killed  bool               `json:"killed"`
	Overrun time.Duration      `json:"overrun"`
}

// shellCode is the status as a shell tells it.
func shellCode(w syscall.WaitStatus) int {
	if w.Signaled() {
		return 128 + int(w.Signal())
	}
	return w.ExitStatus()
}
