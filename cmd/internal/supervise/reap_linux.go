package supervise

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Reap buries dead children that nobody here has started, until ctx ends: as process 1 of a container this process inherits every orphan of
// it, and a dead one that is not reaped keeps its number for ever. It returns at once and works in the background.
func (s *Supervisor) Reap(ctx context.Context) {
	children := make(chan os.Signal, 1) // one is enough: it says "look", not how often
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		defer signal.Stop(children)
		for {
			s.bury()
			select {
			case <-children:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// bury reaps each dead child but those whose status somebody waits for.
func (s *Supervisor) bury() {
	s.mu.Lock() // a child that StartOther has started is known before we meet it
	defer s.mu.Unlock()
	for _, pid := range newCensus()(os.Getpid()) {
		st, ok := readStat(pid)
		if c, known := s.spared[pid]; !ok || st.state != 'Z' || s.work[pid] || known && c.own && c.start == st.start {
			continue
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
	}
}

// mark notes that a command runs, or is gone.
func (s *Supervisor) mark(pid int, runs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if runs {
		s.work[pid] = true
	} else {
		delete(s.work, pid)
	}
}
