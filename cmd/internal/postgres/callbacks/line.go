package callbacks

import (
	"bufio"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// line runs commands, one at a time. A newer one ends the one that runs.
type line struct {
	cfg Config

	mu      sync.Mutex
	next    *command // waits for the end of running; nil: none does
	running *command
	waiting []chan struct{} // of begun
}

func newLine(cfg Config) *line { return &line{cfg: cfg} }

// command is one command of a user's, and its keeper.
type command struct {
	args []string
	log  *slog.Logger

	begun  bool // the keeper was started, or could not be
	keeper *os.Process
	end    bool // a newer one waits for its end
}

// call runs a command, and returns at once.
func (l *line) call(args []string, log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != nil {
		l.next.log.Warn("a callback was not called: a newer one came before the last one had ended")
	}
	l.next = &command{args: args, log: log}
	if l.running == nil {
		l.beginLocked()
		return
	}
	l.running.end = true
	l.running.killLocked()
}

// killLocked has the keeper end the command and all that it has started. A keeper that was not
// started yet is told later.
func (c *command) killLocked() {
	if c.end && c.keeper != nil {
		_ = c.keeper.Signal(syscall.SIGTERM)
	}
}

func (l *line) beginLocked() {
	c := l.next
	l.next, l.running = nil, c
	go func() {
		l.run(c)
		l.mu.Lock()
		defer l.mu.Unlock()
		c.keeper = nil
		l.running = nil
		if l.next != nil {
			l.beginLocked()
		}
		l.tellLocked()
	}()
}

// begun is closed once the last command that was called has begun, or could not be started.
func (l *line) begun() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := make(chan struct{})
	l.waiting = append(l.waiting, told)
	l.tellLocked()
	return told
}

func (l *line) tellLocked() {
	if l.next != nil || l.running != nil && !l.running.begun {
		return
	}
	for _, told := range l.waiting {
		close(told)
	}
	l.waiting = nil
}

// run returns when the command has ended by itself, or when nothing of it is left after it was told
// to end.
func (l *line) run(c *command) {
	// Here, and not in a fork: a file system that hangs keeps only this goroutine.
	path, err := exec.LookPath(c.args[0])
	var reports *os.File
	var cmd *exec.Cmd
	if err == nil {
		args := append([]string{path}, c.args[1:]...)
		cmd, reports, err = startKeeper(args, l.cfg)
	}
	l.mu.Lock()
	c.begun = true
	if err == nil {
		c.keeper = cmd.Process
		c.killLocked()
	}
	l.tellLocked()
	l.mu.Unlock()
	if err != nil {
		c.log.Error("a callback cannot be started", "command", c.args[0], "err", err)
		return
	}
	over := make(chan struct{})
	ended := make(chan bool, 1)
	go func() {
		defer close(over)
		c.hear(reports, ended)
		reports.Close()
		_ = cmd.Wait() // at once: its end has closed the reports
	}()
	killed := <-ended
	l.mu.Lock()
	c.keeper = nil // what it has left running goes on
	l.mu.Unlock()
	if killed {
		<-over
	}
}

// startKeeper starts a keeper, and returns what it reports.
func startKeeper(args []string, cfg Config) (*exec.Cmd, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{KeeperArg}, args...)...)
	cmd.Env, cmd.ExtraFiles, cmd.SysProcAttr = cfg.Env, []*os.File{w}, ownSession()
	if err := cfg.Start(cmd); err != nil {
		r.Close()
		return nil, nil, err
	}
	return cmd, r, nil
}

// Reports of a keeper: a line each, which begins with one of these.
const (
	said   = 's' // what the command has printed
	exited = 'x' // how it has ended by itself; empty: well
	killed = 'k' // it was ended, and what it has started is being ended
	failed = 'f' // why it was not started
)

// mostLines is how many lines of one command are in the log. An agent's log must not be filled by a
// command that prints for ever.
const mostLines = 1000

// hear tells what a keeper reports, until the keeper ends. It says when the command has ended, and
// whether it was ended.
func (c *command) hear(reports io.Reader, ended chan<- bool) {
	known := false
	end := func(killed bool) {
		if !known {
			ended <- killed
		}
		known = true
	}
	defer func() { end(false) }()
	lines := bufio.NewReader(reports)
	for n := 0; ; {
		text, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		kind, text := text[0], text[1:len(text)-1]
		switch {
		case kind == failed:
			c.log.Error("a callback cannot be started", "command", c.args[0], "err", text)
			end(false)
		case kind == killed:
			c.log.Warn("a callback failed", "err", "a newer callback has ended it")
			end(true)
		case kind == exited && text != "":
			c.log.Warn("a callback failed", "err", text)
			end(false)
		case kind == exited:
			c.log.Info("a callback is done")
			end(false)
		case n < mostLines:
			c.log.Info("a callback says", "line", text)
		case n == mostLines:
			c.log.Warn("a callback says more: that is left out")
		}
		if kind == said {
			n++
		}
	}
	if !known {
		c.log.Warn("a callback failed", "err", "its keeper was killed, or told to end before it began")
	}
}
