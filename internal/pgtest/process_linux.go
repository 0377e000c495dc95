package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// owner is the user a server runs as, nil for our own: PostgreSQL refuses root.
type owner struct{ cred *syscall.Credential }

func notRoot(tb testing.TB) owner {
	tb.Helper()
	if os.Getuid() != 0 {
		return owner{}
	}
	o, err := ordinary()
	if err != nil {
		missing(tb, err.Error())
	}
	return o
}

// ordinary is the user whom root starts PostgreSQL as.
func ordinary() (owner, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return owner{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
		}
	}
	return owner{}, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody")
}

func (o owner) own(path string) error {
	if o.cred == nil {
		return nil
	}
	return os.Chown(path, int(o.cred.Uid), int(o.cred.Gid))
}

func (o owner) wear(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.cred} }

// onOneThread runs f on a thread that lives as long as this process: the death of the thread that
// started a child, not of the process, is what Pdeathsig means.
var onOneThread = sync.OnceValue(func() func(func() error) error {
	type job struct {
		f    func() error
		done chan error
	}
	work := make(chan job)
	go func() {
		runtime.LockOSThread()
		for j := range work {
			j.done <- j.f()
		}
	}()
	return func(f func() error) error {
		j := job{f, make(chan error, 1)}
		work <- j
		return <-j.done
	}
})

// Postmaster returns the command line of the server's first process, and the user whom it must run
// as, nil for our own. It is for a test that starts the server itself, after Kill.
func (s *Server) Postmaster() (args []string, as *syscall.Credential) {
	return append([]string{program(s.tb, "postgres"), "-D", s.data()}, s.settings()...), s.as.cred
}

// Launch starts a server that has ended, or ends it as Kill does and starts it again, with its port
// and data. It does not wait until it serves.
func (s *Server) Launch() error {
	s.Kill()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args, _ := s.Postmaster()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	s.as.wear(cmd)
	// The others of the server end by themselves when their parent is gone.
	if err := s.attach(cmd); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	s.mu.Lock()
	s.cmd, s.exited = cmd, exited
	s.mu.Unlock()
	return nil
}

// Kill ends all processes of the server with SIGKILL and waits until they are gone: what they would
// still have written is lost.
func (s *Server) Kill() {
	s.mu.Lock()
	cmd, exited := s.cmd, s.exited
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	select {
	case <-exited:
	default:
		pid := cmd.Process.Pid
		_ = servertest.Halt(pid) // it starts no others
		for _, p := range children(pid) {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		<-exited
	}
	// The next server refuses to start beside what is left of this one: who was started while the
	// others were counted, who lives on after a crash.
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		left := within(s.data())
		if len(left) == 0 {
			return
		}
		for _, p := range left {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
	}
}

// within returns the processes that work in a folder: all of a server's do in its data, and nobody
// else does. One that is dead and not yet buried does not.
func within(dir string) (all []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		at, err := os.Readlink(link)
		if err != nil || at != dir {
			continue
		}
		if p, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// Stop freezes all processes of the server (SIGSTOP). Its connections stay open and silent.
func (s *Server) Stop() {
	s.tb.Helper()
	pid := s.pid()
	if pid == 0 {
		s.tb.Fatalf("pgtest: the server to freeze does not run")
	}
	if err := servertest.Halt(pid); err != nil { // first, so that it starts no others
		s.tb.Fatalf("pgtest: %v", err)
	}
	for _, p := range children(pid) {
		_ = servertest.Halt(p) // one may end meanwhile
	}
}

// Cont lets a frozen server go on. On one that runs or has ended it does nothing.
func (s *Server) Cont() {
	pid := s.pid()
	if pid == 0 {
		return
	}
	for _, p := range children(pid) {
		_ = syscall.Kill(p, syscall.SIGCONT)
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

// attach starts a process that ends with ours, however that ends.
func (s *Server) attach(cmd *exec.Cmd) error { return attach(cmd) }

func attach(cmd *exec.Cmd) error {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return onOneThread()(cmd.Start)
}

func (s *Server) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	select {
	case <-s.exited:
		return 0
	default:
		return s.cmd.Process.Pid
	}
}

// children returns the processes that pid has started. Each of them has a process group of its own,
// so there is no signal for all.
func children(pid int) (all []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
		fields := strings.Fields(rest) // state, parent, …
		if len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if p, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			all = append(all, p)
		}
	}
	return all
}
