package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// poll is how often a server is asked whether it has done something. It tells nobody by itself.
const poll = 2 * time.Millisecond

// quitGrace is how long a server may take to end after SIGQUIT, where nobody says otherwise.
const quitGrace = 500 * time.Millisecond

// ErrRuns says that the server runs already, or somebody else works on its data directory.
var ErrRuns = errors.New("the server runs already")

// Start starts the server as a standby that follows nobody, and whose commits, if somebody promotes
// it, wait for a standby that does not exist. That is on disk before the postmaster starts. A
// server that runs in the data directory already is ended first. Start returns when the postmaster
// was started; [Server.Ready] tells when it takes SQL. Errors: [ErrNoData], [ErrUnfit], [ErrRuns].
func (s *Server) Start(ctx context.Context) error {
	if err := s.Examine(); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	p, err := s.launch(ctx)
	s.entered(p)
	return err
}

// enter makes this process the only one that starts a server in the data directory: PostgreSQL's
// own lock file does not keep two agents apart, because each would end what it finds.
func (s *Server) enter() error {
	_, running := s.Running()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting || running {
		return fmt.Errorf("%w: in %s", ErrRuns, s.cfg.Data)
	}
	if s.lock != nil { // the postmaster has ended by itself
		s.starting = true
		return nil
	}
	f, err := os.Open(s.cfg.Data)
	if err != nil {
		return unfit("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return fmt.Errorf("%w: another primacy works on %s", ErrRuns, s.cfg.Data)
	}
	s.lock, s.starting = f, true
	return nil
}

// entered ends what enter began; p is nil where nothing was started.
func (s *Server) entered(p Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting, s.process = false, p
	if p == nil && s.lock != nil {
		// Closing alone does not unlock while a child between fork and exec has it open too.
		_ = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN)
		s.lock.Close()
		s.lock = nil
	}
}

func (s *Server) launch(ctx context.Context) (Process, error) {
	if err := s.alone(); err != nil {
		return nil, err
	}
	if err := s.clear(ctx); err != nil {
		return nil, err
	}
	// PostgreSQL would refuse to start where another program of ours has got the number in it.
	if err := os.Remove(s.path("postmaster.pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := s.freeSocket(); err != nil {
		return nil, err
	}
	s.drop()
	s.noWait.Store(false)
	c, err := s.Control(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.writeUserConf(s.parameters()); err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	nobody := Sync{}.String()
	// Values by which commits could be lost may stand there too: of ALTER SYSTEM, or of a former
	// manager.
	drop := slices.Collect(maps.Keys(lossy))
	_, err = s.writeAutoConf(drop, setting{conninfo, ""}, setting{slotName, ""}, setting{syncSSN, nobody})
	if err != nil {
		return nil, err
	}
	if err := durable.Replace(s.path("standby.signal"), nil); err != nil {
		return nil, fmt.Errorf("standby.signal: %w", err)
	}
	if err := (wal{s.directory}).dropParts(ctx, c); err != nil {
		return nil, fmt.Errorf("WAL of newer timelines: %w", err)
	}
	return s.runner.Start(Postmaster{Args: s.arguments(c), Env: environment(), Dir: s.cfg.Data, Output: s.cfg.Output})
}

// freeSocket removes the lock of the Unix socket that a former server of this directory has left.
// PostgreSQL goes by the number in it, which may have become that of another program of ours, or of
// a postmaster that is dead and that nobody buries.
func (s *Server) freeSocket() error {
	path := filepath.Join(s.cfg.SocketDir, ".s.PGSQL."+s.port+".lock")
	text, err := os.ReadFile(path)
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) < 2 {
		return nil // PostgreSQL decides
	}
	ours, err := os.Stat(s.cfg.Data)
	if err != nil {
		return err
	}
	if its, err := os.Stat(lines[1]); err != nil || !os.SameFile(its, ours) {
		return nil // somebody else's server
	}
	return os.Remove(path)
}

// alone refuses a directory in which a person repairs something in single-user mode.
func (d *directory) alone() error {
	pid := -d.lockFile()
	if pid > 0 && slices.ContainsFunc(d.processes(), func(p process) bool { return p.pid == pid }) {
		return unfit("postgres --single runs in %s (process %d): end it first", d.data, pid)
	}
	return nil
}

// clear ends every process of a server that works in the data directory, and returns when none is
// left. The number in postmaster.pid is not asked: it may have become that of another program. On
// SIGQUIT a postmaster ends its own; what it does not end, and what a dead one has left, gets
// SIGKILL.
func (d *directory) clear(ctx context.Context) error {
	began, sig := time.Now(), syscall.SIGQUIT
	signalled := map[int]syscall.Signal{}
	for {
		left := d.processes()
		if len(left) == 0 {
			return nil
		}
		if time.Since(began) > quitGrace {
			sig = syscall.SIGKILL
		}
		for _, p := range left {
			within := slices.ContainsFunc(left, func(q process) bool { return q.pid == p.parent })
			switch {
			case within && sig != syscall.SIGKILL: // its postmaster tells it
			case signalled[p.pid] != sig:
				d.signal(p.pid, sig)
				signalled[p.pid] = sig
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d of a server in %s does not end: %w", left[0].pid, d.data, ctx.Err())
		case <-time.After(poll):
		}
	}
}

// handed are the variables of our environment that a postmaster gets, beside those of locale.
var handed = []string{"PATH", "HOME", "LANG", "TZ", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH"}

// environment is the postmaster's: ours may hold secrets, and settings of libpq that would find
// their way into connections.
func environment() (all []string) {
	for _, one := range os.Environ() {
		name, _, _ := strings.Cut(one, "=")
		switch {
		case strings.HasPrefix(name, "LC_"), strings.HasPrefix(name, "PG_OOM_"), strings.HasPrefix(name, "KRB5"),
			slices.Contains(handed, name):
			all = append(all, one)
		}
	}
	return all
}

// Running returns the postmaster that [Server.Start] started, and whether anything of it is left.
func (s *Server) Running() (Process, bool) {
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if p == nil {
		return nil, false
	}
	select {
	case <-p.Done():
		return p, false
	default:
		return p, true
	}
}

// Ready returns nil when the server takes SQL. It returns an error when the server has ended, or
// ctx ends.
func (s *Server) Ready(ctx context.Context) error {
	return s.until(ctx, "takes no SQL", func() error {
		_, err := s.query(ctx, "SELECT 1")
		return err
	})
}

// until calls f until it returns nil. It returns what kept f from that when ctx ends, and at once
// where the server has ended.
func (s *Server) until(ctx context.Context, what string, f func() error) error {
	var last error
	for {
		if _, ok := s.Running(); !ok {
			return fmt.Errorf("%w: it has ended", ErrNotUp)
		}
		err := f()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil && !pgconn.Timeout(err) { // else it is only that ctx has ended
			last = err
		}
		pause := poll
		if errors.Is(err, ErrNotUp) {
			pause = 10 * poll // the server logs each try
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (%w)", what, last, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Mode is how a server is stopped.
type Mode int

const (
	// Fast lets a primary write a checkpoint and send all WAL to the standbys that are connected.
	Fast Mode = iota
	// Quit ends it as a crash does.
	Quit
)

// Stop ends the server and returns nil when no process of it is left. Fast takes as long as it
// takes, up to the end of ctx; the server may then still be shutting down, and Quit ends it. Stop
// of a server that does not run ends what works in the data directory all the same.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	p, ok := s.Running()
	if ok && mode == Fast {
		s.signal(p.PID(), syscall.SIGINT)
		select {
		case <-p.Done():
		case <-ctx.Done():
			return fmt.Errorf("the server is still shutting down: %w", ctx.Err())
		}
	}
	if ok {
		p.Stop(quitGrace)
		select {
		case <-p.Done():
		case <-ctx.Done():
			return fmt.Errorf("the server does not end: %w", ctx.Err())
		}
	}
	s.drop()
	if err := s.clear(ctx); err != nil {
		return err
	}
	s.entered(nil)
	return nil
}

// Reload has the server read its settings again, and pg_hba.conf.
func (s *Server) Reload(ctx context.Context) error { return s.reload(ctx) }

// reload has the postmaster read the settings, and tell all of its processes to.
func (s *Server) reload(ctx context.Context) error {
	return s.until(ctx, "reload", func() error {
		p, ok := s.Running()
		// A postmaster that has just been started would die of SIGHUP. It takes signals by the time
		// it writes its file.
		if !ok || s.lockFile() != p.PID() || !s.signal(p.PID(), syscall.SIGHUP) {
			return errors.New("the postmaster takes no signals yet")
		}
		return nil
	})
}

// lockFile returns the process number in postmaster.pid, 0 where there is none. It is negative
// where a person works in single-user mode.
func (d *directory) lockFile() int {
	text, err := os.ReadFile(d.path("postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first))
	return pid
}
