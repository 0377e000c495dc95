//go:build linux

package interop

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/cmd/internal/onethread"
)

const (
	crowdProcs    = 10
	crowdSessions = 100 // in each
)

// sizes is how many wait when a chain of releases is counted, and how many releases that is.
var sizes = []struct{ waiters, releases int }{{1000, 100}, {100, 50}, {10, 9}}

// lobby is a thousand waiters on one lock, in several processes.
type lobby struct {
	*world
	procs []*hallProc
	news  chan news
	who   news // holds the line now
	next  int  // how many have had it
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

// chain is what a chain of releases cost.
type chain struct {
	waiters  int
	idle     count // a second, while nothing is released
	each     count // a release, beyond that
	handover []time.Duration
}

// TestAThousandWaiters: however many wait for a lock, a release costs the same few requests and watch events. The same is counted of
// etcd's Mutex, beside it, and what server and clients weigh.
func TestAThousandWaiters(t *testing.T) {
	for _, name := range []string{"our Election", "etcd's Mutex"} {
		t.Run(name, func(t *testing.T) {
			l := newLobby(t, name)
			var chains []chain
			for i, size := range sizes {
				l.drainTo(size.waiters)
				if i == 0 {
					l.weigh(name)
				}
				chains = append(chains, l.count(size.waiters, size.releases))
			}
			l.table(name, chains)
			for _, c := range chains {
				// The bounds are those of the algorithm, with room for what polls by chance in the same instant.
				if c.each.events > 3.5 || c.each.total() > 12 {
					t.Errorf("%d wait: a release costs %.1f events and %.1f requests, want no more than 3 and 12", c.waiters, c.each.events, c.each.total())
				}
			}
			few, many := chains[len(chains)-1], chains[0]
			if many.each.events > few.each.events+0.5 || many.each.total() > few.each.total()+2.5 {
				t.Errorf("a release costs %.1f events and %.1f requests while %d wait, and %.1f and %.1f while %d do",
					many.each.events, many.each.total(), many.waiters, few.each.events, few.each.total(), few.waiters)
			}
		})
	}
}

// newLobby starts the processes and returns when all of them stand in the line.
func newLobby(t *testing.T, name string) *lobby {
	l := &lobby{world: newWorld(t), news: make(chan news, 2*crowdProcs*crowdSessions)}
	bare := resident(l.serverPID())
	began := time.Now()
	for range crowdProcs {
		l.startProc(name)
	}
	for range l.procs {
		l.expect("ready")
	}
	granted := time.Since(began)
	t.Logf("%s: server %d kB, with %d leases %d kB after %v", name, bare, crowdProcs*crowdSessions, resident(l.serverPID()), granted.Round(time.Millisecond))
	began = time.Now()
	for _, p := range l.procs {
		fmt.Fprintln(p.in, "stand")
	}
	l.who = l.expect("held")
	eventually(t, 2*limit, "all of them to stand", func() bool { return l.stands() == crowdProcs*crowdSessions })
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

func (l *lobby) startProc(name string) {
	self, err := os.Executable()
	if err != nil {
		l.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helperEnv+"=wait", crowdEnv+"="+name, serverEnv+"="+l.server.Addr(), fmt.Sprintf("%s=%d", sizeEnv, crowdSessions))
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
	case <-time.After(2 * limit):
		l.Fatalf("no process says %q", verb)
	}
	return news{}
}

// release lets the holder go and returns how long the next one took.
func (l *lobby) release() time.Duration {
	l.Helper()
	began := time.Now()
	fmt.Fprintf(l.who.proc.in, "release %s\n", l.who.arg)
	l.who = l.expect("held")
	l.next++
	return time.Since(began)
}

// drainTo releases until so many stand, and lets what follows settle.
func (l *lobby) drainTo(n int) {
	l.Helper()
	for crowdProcs*crowdSessions-l.next > n {
		l.release()
	}
	time.Sleep(1500 * time.Millisecond)
	if got := l.stands(); got != n {
		l.Errorf("%d stand, want %d", got, n)
	}
}

// count measures a while without releases, and then a chain of them.
func (l *lobby) count(waiters, releases int) chain {
	l.Helper()
	const idleFor = 4 * time.Second
	c := chain{waiters: waiters}
	before := l.readCount()
	time.Sleep(idleFor)
	begin := l.readCount()
	c.idle = begin.since(before).over(begin.at.Sub(before.at).Seconds())
	for range releases {
		c.handover = append(c.handover, l.release())
	}
	time.Sleep(300 * time.Millisecond) // cancelled watches and the like come behind
	end := l.readCount()
	c.each = end.since(begin).less(c.idle, end.at.Sub(begin.at).Seconds()).over(float64(releases))
	slices.Sort(c.handover)
	return c
}

// weigh shows what server and clients weigh while all stand.
func (l *lobby) weigh(name string) {
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
	l.Logf("%s: %d wait: server %d kB; %d client processes of %d kB and %d goroutines each", name, crowdProcs*crowdSessions,
		server, len(l.procs), rss/len(l.procs), routines/len(l.procs))
}

// table shows what was counted.
func (l *lobby) table(name string, chains []chain) {
	var b strings.Builder
	for _, c := range chains {
		fmt.Fprintf(&b, "%-14s %5d wait: a release: %.1f requests (%s), %.1f events in %.1f watch messages, %.0f + %.0f bytes, server CPU %.2f ms; hand-over p50 %v, max %v; idle, a second: %.1f requests (%s), CPU %.1f ms\n",
			name, c.waiters, c.each.total(), c.each.methods(), c.each.events, c.each.answers, c.each.in, c.each.out, 1000*c.each.cpu,
			c.handover[len(c.handover)/2].Round(10*time.Microsecond), c.handover[len(c.handover)-1].Round(10*time.Microsecond),
			c.idle.total(), c.idle.methods(), 1000*c.idle.cpu)
	}
	l.Log("\n" + b.String())
}
