//go:build !linux

package supervise

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Supervisor exists on Linux only: elsewhere there are no subreapers, and a command could outlive
// its right.
type Supervisor struct{}

// Process is a command that runs under a guardian.
type Process struct{}

var errLinux = errors.New("commands can be supervised on Linux only: use the library or primacy serve here")

// New returns an error.
func New() (*Supervisor, error) { return nil, errLinux }

// Isolate returns an error.
func (s *Supervisor) Isolate() error { return errLinux }

// GuardianMain ends the process.
func GuardianMain(OrphanHandler) { os.Exit(125) }

// Signals returns none.
func Signals() []os.Signal { return nil }

// StartOther starts cmd.
func (s *Supervisor) StartOther(cmd *exec.Cmd) error { return cmd.Start() }

// Reap does nothing.
func (s *Supervisor) Reap(context.Context) {}

// Start returns an error.
func (s *Supervisor) Start(Command) (*Process, error) { return nil, errLinux }

// The methods of Process are never called: there is no Process.
func (p *Process) PID() int                                  { return 0 }
func (p *Process) Extend(time.Duration)                      {}
func (p *Process) Bind(context.Context, time.Duration) error { return errLinux }
func (p *Process) Unbind(context.Context) error              { return errLinux }
func (p *Process) SetLastAction(*LastAction)                 {}
func (p *Process) Signal(syscall.Signal)                     {}
func (p *Process) Stop(time.Duration)                        {}
func (p *Process) Done() <-chan struct{}                     { return nil }
func (p *Process) Wait() Status                              { return Status{} }

// DieOf does nothing.
func DieOf(syscall.Signal) {}
