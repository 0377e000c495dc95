package server

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Runner starts processes: under a guardian in the agent, by [Exec] where nobody need be ended in
// time.
type Runner interface {
	Start(Postmaster) (Process, error)
	// StartOther starts a program that only reads. The caller waits for its end.
	StartOther(*exec.Cmd) error
}

// Postmaster is what a [Runner] starts.
type Postmaster struct {
	Args   []string // Args[0] is the path
	Env    []string // the whole environment
	Dir    string
	Output *os.File // for standard output and error
}

// Process is a postmaster that was started, and all that it started.
type Process interface {
	PID() int
	// Stop sends SIGQUIT to the postmaster now, and SIGKILL to all of the server after the grace.
	Stop(grace time.Duration)
	// Done is closed when nothing of the server is left.
	Done() <-chan struct{}
}

// Exec is a [Runner] that starts the postmaster as a child of this process.
type Exec struct{}

type child struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// StartOther starts a program.
func (Exec) StartOther(cmd *exec.Cmd) error { return cmd.Start() }

// Start starts a postmaster.
func (Exec) Start(m Postmaster) (Process, error) {
	cmd := exec.Command(m.Args[0], m.Args[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = m.Env, m.Dir, m.Output, m.Output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

func (c *child) PID() int              { return c.cmd.Process.Pid }
func (c *child) Done() <-chan struct{} { return c.done }

func (c *child) Stop(grace time.Duration) {
	_ = c.cmd.Process.Signal(syscall.SIGQUIT)
	go func() {
		select {
		case <-c.done:
		case <-time.After(grace):
			_ = c.cmd.Process.Kill()
		}
	}()
}
