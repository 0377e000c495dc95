package agent

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
)

// killAfter is how long a postmaster has from SIGQUIT to SIGKILL of all that is left. SIGQUIT alone
// ends a healthy one within 10 ms.
const killAfter = 200 * time.Millisecond

// runner starts postmasters under a guardian.
type runner struct {
	supervisor *supervise.Supervisor
	ttl        time.Duration

	mu   sync.Mutex
	last *supervise.Process
}

// Start implements [server.Runner].
func (r *runner) Start(m server.Postmaster) (server.Process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	p, err := r.supervisor.Start(supervise.Command{
		Args: m.Args, Env: m.Env, Dir: m.Dir, Stdin: null, Stdout: m.Output, Stderr: m.Output, NoJobControl: true,
		Deadline:      supervise.NoDeadline,
		StopSignal:    syscall.SIGQUIT,
		DeathSignal:   syscall.SIGQUIT,
		Grace:         min(killAfter, r.ttl/10),
		Margin:        min(100*time.Millisecond, r.ttl/20),
		KillRemaining: true,
	})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = p
	return p, nil
}

// StartOther implements [server.Runner].
func (r *runner) StartOther(cmd *exec.Cmd) error { return r.supervisor.StartOther(cmd) }

// left is what the guardian of a server is to do when this process is killed.
type left struct {
	process *supervise.Process
	lease   string
	token   primacy.Token
}

// leaveBehind tells the guardian which lease to give back. A claim that only waits is given back
// too: it would be in the way of a switchover, and be waited for in a survey, until it has run out.
func (a *Agent) leaveBehind() {
	l := left{a.runner.process(), a.lease, 0}
	if a.term != nil {
		l.lease, l.token = a.term.Lease(), a.term.Token()
	}
	if a.cfg.LastAction == nil || l.process == nil || l == a.left {
		return
	}
	a.left = l
	if l.lease == "" {
		l.process.SetLastAction(nil)
		return
	}
	l.process.SetLastAction(a.cfg.LastAction(l.lease, l.token))
}

// process returns the postmaster that was started last.
func (r *runner) process() *supervise.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
