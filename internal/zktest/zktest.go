// Package zktest runs real ZooKeeper servers for tests, from the jars of the system's package
// (Debian: zookeeper and a headless JRE), on loopback, and does to them what networks and machines
// do. It is for tests only and imports no client of ZooKeeper.
package zktest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/servertest"
)

// Options say what kind of server to start. The zero value is a plain one.
type Options struct {
	Tick   time.Duration // ZooKeeper's tickTime, 500 ms if 0: sessions of 1 to 10 s
	NoSync bool          // do not wait for the disk: faster, and a crash of the machine loses data
	Config []string      // further lines of the configuration
	Java   []string      // further flags of the JVM, for example -Dzookeeper.skipACL=yes
	TLS    *Cert         // the clients' port speaks TLS with it; nil: plain
	// Cuttable has each member of an ensemble reach the others through proxies: see
	// [Ensemble.Isolate].
	Cuttable bool
}

// Ensemble is several servers that are one store.
type Ensemble struct {
	tb      testing.TB
	Members []*Server
	between map[[2]int][]*proxy.Proxy // from a member to another
}

// jar returns a jar of the system, without which the tests cannot run.
func jar(tb testing.TB, name string) string {
	tb.Helper()
	path := filepath.Join("/usr/share/java", name)
	_, err := os.Stat(path)
	if err == nil {
		_, err = exec.LookPath("java")
	}
	if err != nil {
		missing(tb, fmt.Sprintf("zktest: no ZooKeeper on this machine (apt-get install zookeeper default-jre-headless): %v", err))
	}
	return path
}

// missing fails a test that cannot run where all must, and skips it elsewhere.
func missing(tb testing.TB, text string) {
	tb.Helper()
	if os.Getenv("CI") != "" {
		tb.Fatal(text)
	}
	fmt.Fprintln(os.Stderr, "SKIPPED: "+text)
	tb.Skip(text)
}

// Start runs one server until the test ends, and returns when it serves.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	return StartEnsemble(tb, 1, o).Members[0]
}

// StartEnsemble runs n servers that are one store, and returns when all of them serve.
func StartEnsemble(tb testing.TB, n int, o Options) *Ensemble {
	tb.Helper()
	if o.Tick == 0 {
		o.Tick = 500 * time.Millisecond
	}
	var last error
	for range 3 {
		// Between choosing a port and using it, another process may take it: hence another try.
		e := plan(tb, n, o)
		if last = e.up(); last == nil {
			tb.Cleanup(e.down)
			return e
		}
		e.down()
	}
	tb.Fatalf("zktest: %v", last)
	return nil
}

// plan chooses ports and writes the configurations.
func plan(tb testing.TB, n int, o Options) *Ensemble {
	tb.Helper()
	e := &Ensemble{tb: tb, between: map[[2]int][]*proxy.Proxy{}}
	for i := range n {
		e.Members = append(e.Members, &Server{
			tb: tb, id: i + 1, dir: tb.TempDir(), options: o,
			client: loopback(tb), quorum: loopback(tb), election: loopback(tb), plain: loopback(tb),
		})
	}
	for i, s := range e.Members {
		lines := s.config()
		for j, other := range e.Members {
			if n == 1 {
				break
			}
			quorum, election := other.quorum, other.election
			if o.Cuttable && i != j {
				quorum, election = e.through(tb, i, j, quorum), e.through(tb, i, j, election)
			}
			_, port, _ := net.SplitHostPort(election)
			lines = append(lines, fmt.Sprintf("server.%d=%s:%s", other.id, quorum, port))
		}
		for name, text := range map[string]string{"zoo.cfg": strings.Join(lines, "\n") + "\n", "data/myid": strconv.Itoa(s.id)} {
			path := filepath.Join(s.dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				tb.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return e
}

// through puts a proxy on the way from member i to an address of member j.
func (e *Ensemble) through(tb testing.TB, i, j int, addr string) string {
	tb.Helper()
	p, err := proxy.Listen(addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	e.between[[2]int{i, j}] = append(e.between[[2]int{i, j}], p)
	return p.Addr()
}

// Isolate cuts member i off from all others, silently, or heals it: its clients still reach it. It
// needs [Options.Cuttable].
func (e *Ensemble) Isolate(i int, cut bool) {
	for pair, proxies := range e.between {
		if pair[0] != i && pair[1] != i {
			continue
		}
		for _, p := range proxies {
			if cut {
				p.Hold()
			} else {
				p.Heal()
			}
		}
	}
}

// Leader returns the index of the member that leads, or -1.
func (e *Ensemble) Leader() int {
	for i, s := range e.Members {
		if text, err := s.Ask("srvr"); err == nil && strings.Contains(text, "Mode: leader") {
			return i
		}
	}
	return -1
}

// Addrs returns the client addresses of all members, host:port.
func (e *Ensemble) Addrs() []string {
	var all []string
	for _, s := range e.Members {
		all = append(all, s.Addr())
	}
	return all
}

func (e *Ensemble) up() error {
	for _, s := range e.Members {
		if err := s.start(); err != nil {
			return err
		}
	}
	for _, s := range e.Members {
		if err := s.Ready(60 * time.Second); err != nil {
			return err
		}
	}
	return nil
}

// down kills all members, and shows their logs if the test failed.
func (e *Ensemble) down() {
	for _, s := range e.Members {
		s.Kill()
		if e.tb.Failed() {
			e.tb.Logf("the end of the log of ZooKeeper server %d:\n%s", s.id, s.LogTail())
		}
	}
}

// loopback returns an address that no other test uses.
func loopback(tb testing.TB) string {
	tb.Helper()
	return net.JoinHostPort("127.0.0.1", servertest.FreePort(tb))
}
