// Package servertest runs the process of a server for a test: killed, frozen, started again. The
// packages with servers of one kind embed it.
package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// Process is the process of one server. The zero value has none yet.
type Process struct {
	mu     sync.Mutex
	tb     testing.TB
	log    string // the file with what it says
	cmd    *exec.Cmd
	exited chan struct{}
}

// Run starts cmd with its output behind that of earlier ones in the file log. It dies with the test
// process, however that dies.
func (p *Process) Run(tb testing.TB, cmd *exec.Cmd, log string) error {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	dieWithUs(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	p.mu.Lock()
	p.tb, p.log, p.cmd, p.exited = tb, log, cmd, exited
	p.mu.Unlock()
	return nil
}

// Done is closed when the process that was started last has ended.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// Exited says whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// PID returns the number of the process that was started last, 0 if none was.
func (p *Process) PID() int {
	if proc := p.process(); proc != nil {
		return proc.Pid
	}
	return 0
}

// Kill ends the process with SIGKILL, one that is frozen too, and waits for it.
func (p *Process) Kill() {
	p.mu.Lock()
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		<-exited
	}
}

// Stop freezes the process (SIGSTOP). Its connections stay open and silent.
func (p *Process) Stop() {
	proc := p.process()
	p.tb.Helper()
	if err := freeze(proc); err != nil {
		p.tb.Fatalf("stop %s: %v", p.cmd.Args[0], err)
	}
}

// Cont lets a frozen process go on. On one that runs or has ended it does nothing.
func (p *Process) Cont() {
	if proc := p.process(); proc != nil {
		_ = thaw(proc)
	}
}

func (p *Process) process() *os.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	return p.cmd.Process
}

// LogTail returns the end of what the server has said.
func (p *Process) LogTail() string {
	p.mu.Lock()
	log := p.log
	p.mu.Unlock()
	b, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-3000):])
}
