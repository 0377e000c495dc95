//go:build linux

package interop

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/programtest"
)

// proc is a program that runs for one turn, in a process group of its own.
type proc struct {
	cmd    *exec.Cmd
	out    io.ReadCloser
	stderr bytes.Buffer
	exited chan struct{} // closed when it has, with err
	err    error
}

// run starts a program. Its standard output is out, to be read to its end before it is waited for.
func (w *world) run(tn *turn, args ...string) (*proc, error) {
	p := &proc{cmd: exec.Command(args[0], args[1:]...), exited: make(chan struct{})}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for i, a := range p.cmd.Args {
		if a == "SELF" {
			p.cmd.Args[i] = self
		}
	}
	p.cmd.Env = append(os.Environ(), helperEnv+"=act", idEnv+"="+tn.id, actsEnv+"="+w.actsPath(),
		socketEnv+"="+w.dir+"/s",
		"PRIMACY_STORE="+w.storeURL(), "PRIMACY_ID="+tn.id)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = &p.stderr
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	onethread.Do(func() { err = p.cmd.Start() })
	return p, err
}

// wait waits for the program once its output has ended.
func (p *proc) wait() {
	p.err = p.cmd.Wait()
	close(p.exited)
}

// kill ends the program and what it started, with SIGKILL.
func (p *proc) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

func (p *proc) term() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }

// stopped says whether the program, told to stop waiting, did. One that is told before it listens
// to signals dies of it.
func (p *proc) stopped(code int) error {
	if st, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() && st.Signal() == syscall.SIGTERM {
		return nil
	}
	return p.end(code)
}

// end returns nil if the program ended with that exit status.
func (p *proc) end(want int) error {
	if p.cmd.ProcessState.ExitCode() == want {
		return nil
	}
	return p.died()
}

// died tells of an end that should not have come.
func (p *proc) died() error {
	return fmt.Errorf("%s ended: %v: %s", p.cmd.Args, p.cmd.ProcessState, strings.TrimSpace(p.stderr.String()))
}

// underCommand is a stander whose program acquires, and starts a command that acts. Token makes the
// judge's number of what the command was told; stopped are the exit statuses of the program when it
// is told to stop waiting.
func (w *world) underCommand(token func(what string) (uint64, error), stopped int, args ...string) stander {
	return func(tn *turn) error {
		p, err := w.run(tn, args...)
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(io.Discard, p.out); p.wait() }()
		defer func() { p.kill(); <-p.exited }()
		for quit := tn.ctx.Done(); ; {
			select {
			case a := <-w.expect(tn.id): // also after it was told to stop: etcdctl ignores that once its command runs
				err := w.attend(tn, p, a, token)
				if err != nil && tn.ctx.Err() != nil && !errors.Is(err, errDied) {
					<-p.exited
					return p.stopped(stopped)
				}
				return err
			case <-quit:
				quit = nil
				p.term()
			case <-tn.dead:
				return errDied
			case <-p.exited:
				if quit == nil {
					return p.stopped(stopped)
				}
				return fmt.Errorf("before its turn: %w", p.died())
			}
		}
	}
}

// attend is with a command from its first word to its end.
func (w *world) attend(tn *turn, p *proc, a arrival, token func(what string) (uint64, error)) error {
	defer a.conn.Close()
	n, err := token(a.what)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.conn, n)
	if line, err := a.in.ReadString('\n'); err != nil {
		return fmt.Errorf("the command did not act: %q, %w", line, err)
	}
	w.trace.note("%s holds under %d (%d)", tn.id, n, n>>16)
	tn.held <- n
	select {
	case <-tn.leave:
		fmt.Fprintln(a.conn, "leave")
		<-p.exited
		return p.end(0)
	case <-tn.dead:
		p.kill()
		<-p.exited
		return errDied
	case <-p.exited:
		return fmt.Errorf("before it was told to leave: %w", p.died())
	}
}

// keyToken is the number for a command under `etcdctl lock`, which knows its key.
func (w *world) keyToken(key string) (uint64, error) {
	rev, err := w.create(soon(w), key)
	return scale(rev), err
}

var ctlLock = kind{name: "etcdctl-lock", dies: leased, join: func(w *world, _ string) stander {
	return w.underCommand(w.keyToken, 1, etcdtest.Etcdctl(w), "--endpoints", w.server.Addr(), "lock", "--ttl",
		strconv.Itoa(shortTTL),
		linePrefix, "--", "SELF")
}}

// The verbs of our program. What their commands are told is the claim's token, or the lock's.
var (
	ourRun        = ourProgram("primacy-run", 16, "run", "--ttl", ourTTL, lineName)
	ourLock       = ourProgram("primacy-lock", 0, "lock", "--ttl", ourTTL, lineName)
	ourLockShared = ourProgram("reader-primacy-lock-s", 0, "lock", "--ttl", ourTTL, "-s", lineName)
)

var ourTTL = strconv.Itoa(shortTTL) + "s"

// ourProgram is a verb of ours whose command gets a token that must be shifted by so many bits to
// be that of a lock.
func ourProgram(name string, shift int, args ...string) kind {
	return kind{name: name, dies: leased, join: func(w *world, _ string) stander {
		token := func(what string) (uint64, error) {
			n, err := strconv.ParseUint(what, 10, 64)
			return n << shift, err
		}
		return w.underCommand(token, 128+int(syscall.SIGTERM),
			append(append([]string{w.program()}, args...), "--", "SELF")...)
	}}
}

func (w *world) program() string {
	w.Helper()
	bin, err := programtest.Program()
	if err != nil {
		w.Fatal(err)
	}
	return bin
}

var ctlElect = kind{name: "etcdctl-elect", dies: hardly, join: func(w *world, _ string) stander {
	return func(tn *turn) error {
		p, err := w.run(tn, etcdtest.Etcdctl(w), "--endpoints", w.server.Addr(), "elect", linePrefix, tn.id)
		if err != nil {
			return err
		}
		key := make(chan string, 1)
		go func() {
			out := bufio.NewReader(p.out)
			if line, err := out.ReadString('\n'); err == nil {
				key <- strings.TrimSpace(line)
			}
			_, _ = io.Copy(io.Discard, out)
			p.wait()
		}()
		defer func() { p.kill(); <-p.exited }()
		select {
		case k := <-key: // it leads, says so, and runs no command: we act for it
			return w.actFor(tn, p, k)
		case <-tn.ctx.Done():
			p.term()
			<-p.exited
			w.bury(tn)
			if p.end(0) == nil { // it led for a moment, and resigned
				return nil
			}
			return p.stopped(1)
		case <-tn.dead:
			return errDied
		case <-p.exited:
			return fmt.Errorf("before its turn: %w", p.died())
		}
	}
}}

// bury ends the claim that etcdctl elect leaves behind, for the minute that its lease lives, where
// it is told to stop in the moment in which it enters the line.
func (w *world) bury(tn *turn) {
	resp, err := w.client.Get(soon(w), linePrefix+"/", clientv3.WithPrefix())
	if err != nil {
		w.Error(err)
		return
	}
	for _, kv := range resp.Kvs {
		if string(kv.Value) == tn.id {
			w.trace.note("%s has left a ghost: %s", tn.id, kv.Key)
			w.revoke(clientv3.LeaseID(kv.Lease))
		}
	}
}

// actFor acts for a leader that runs no command.
func (w *world) actFor(tn *turn, p *proc, key string) error {
	n, err := w.keyToken(key)
	if err != nil {
		return err
	}
	runs := func() bool {
		select {
		case <-p.exited:
			return false
		default:
			return true
		}
	}
	if err := w.holds(tn, n, runs); err != nil {
		if errors.Is(err, errLost) {
			return errors.Join(err, p.died())
		}
		return err
	}
	p.term()
	<-p.exited
	return p.end(0)
}
