//go:build linux

package interop

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/onethread"
)

// lobby is many waiters in one line, in several processes.
type lobby struct {
	*world
	procs []*hallProc
	news  chan news
	who   news // holds the line now
	left  int  // how many stand
}

// hallProc is one of the processes.
type hallProc struct {
	cmd *exec.Cmd
	in  io.Writer
}

// news is a line that a process said.
type news struct {
	proc *hallProc
	verb string
	arg  string
}

// newLobby starts the processes and returns when all of them stand in the line.
func newLobby(t *testing.T, name string, each int) *lobby {
	size := crowdProcs * each
	l := &lobby{world: newWorld(t), news: make(chan news, 2*size)}
	bare := resident(l.serverPID())
	began := time.Now()
	for range crowdProcs {
		l.startProc(name, each)
	}
	for range l.procs {
		l.expect("ready")
	}
	t.Logf("%s: server %d MB; with %d sessions, each on its own connection, %d MB after %v", name, bare/1024, size,
		resident(l.serverPID())/1024, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	for _, p := range l.procs {
		fmt.Fprintln(p.in, "stand")
	}
	l.who = l.expect("held")
	eventually(t, 4*limit, "all of them to stand", func() bool { return l.stands() == size })
	l.left = size
	t.Logf("%s: all stand after %v", name, time.Since(began).Round(time.Millisecond))
	return l
}

func (l *lobby) stands() int {
	resp, err := l.client.Get(soon(l), linePrefix+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		l.Fatal(err)
	}
	return int(resp.Count)
}

func (l *lobby) startProc(name string, each int) {
	self, err := os.Executable()
	if err != nil {
		l.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helperEnv+"=wait", crowdEnv+"="+name, serverEnv+"="+l.server.Addr(),
		fmt.Sprintf("%s=%d", sizeEnv, each))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	onethread.Do(func() { err = cmd.Start() })
	if err != nil || err1 != nil || err2 != nil {
		l.Fatal(err, err1, err2)
	}
	p := &hallProc{cmd, in}
	l.procs = append(l.procs, p)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			verb, arg, _ := strings.Cut(lines.Text(), " ")
			l.news <- news{p, verb, arg}
		}
	}()
	l.Cleanup(func() { _ = cmd.Process.Kill(); <-read; _ = cmd.Wait() })
}

// expect returns the next line of a process, which must be that one.
func (l *lobby) expect(verb string) news {
	l.Helper()
	select {
	case n := <-l.news:
		if n.verb != verb {
			l.Fatalf("a process says %q %q, want %q", n.verb, n.arg, verb)
		}
		return n
	case <-time.After(4 * limit):
		l.Fatalf("no process says %q", verb)
	}
	return news{}
}

// release lets the holder go and returns how long the next one took. The verb is release, or leave.
func (l *lobby) release(verb string) time.Duration {
	l.Helper()
	began := time.Now()
	fmt.Fprintf(l.who.proc.in, "%s %s\n", verb, l.who.arg)
	l.who = l.expect("held")
	l.left--
	return time.Since(began)
}

// sendAway has all who wait in the other processes give up, at once, and returns how long that
// took.
func (l *lobby) sendAway() time.Duration {
	l.Helper()
	began := time.Now()
	others := 0
	for _, p := range l.procs {
		if p != l.who.proc {
			fmt.Fprintln(p.in, "go")
			others++
		}
	}
	for range others {
		l.expect("gone")
	}
	l.left = l.stands()
	return time.Since(began)
}

// weigh shows what server and clients weigh while all stand.
func (l *lobby) weigh() {
	l.Helper()
	server := resident(l.serverPID())
	rss, routines := 0, 0
	for _, p := range l.procs {
		fmt.Fprintln(p.in, "report")
		var kB, n int
		if _, err := fmt.Sscan(l.expect("weighs").arg, &kB, &n); err != nil {
			l.Fatal(err)
		}
		rss, routines = rss+kB, routines+n
	}
	l.Logf("%d wait: server %d MB; %d client processes of %d waiters have %d MB and %d goroutines each", l.left,
		server/1024,
		len(l.procs), l.left/len(l.procs), rss/len(l.procs)/1024, routines/len(l.procs))
}
