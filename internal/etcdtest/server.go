package etcdtest

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// Options say what kind of server to start. The zero value is a plain one of the newest version.
type Options struct {
	Version string   // Newest if empty
	TLS     *Cert    // the server's certificate; nil: plain
	Args    []string // further flags
	// Hosts are the addresses of the members, loopback if empty; Wrap makes the command that
	// starts one, for example in a network namespace. With either, the caller makes sure that the
	// test can reach the members.
	Hosts []string
	Wrap  func(member int, cmd []string) []string
	// ClockRate returns by how many percent a member's clocks run fast; nil: none does.
	ClockRate func(member int) int
	// DataDir returns where a member keeps its data; empty, or without the function: a folder of
	// the test's.
	DataDir func(member int) string
}

// Server is one etcd process.
type Server struct {
	servertest.Process
	tb     testing.TB
	name   string
	bin    string
	dir    string
	client string // host:port
	peer   string
	cert   *Cert
	args   []string
	wrap   func([]string) []string

	mu             sync.Mutex
	user, password string // see Cluster.Login
}

// Cluster is several of them.
type Cluster struct {
	tb      testing.TB
	Members []*Server
}

// Start runs one server until the test ends, and returns when it serves.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	return StartCluster(tb, 1, o).Members[0]
}

// StartCluster runs n servers that are one cluster, and returns when they have a leader.
func StartCluster(tb testing.TB, n int, o Options) *Cluster {
	tb.Helper()
	if o.Version == "" {
		o.Version = Newest
	}
	bin := Binary(tb, o.Version)
	var last error
	for range 3 {
		// Between choosing a port and using it, another process may take it: hence another try.
		c := plan(tb, n, bin, o)
		if last = c.up(); last == nil {
			tb.Cleanup(c.down)
			return c
		}
		c.down()
	}
	tb.Fatalf("etcdtest: %v", last)
	return nil
}

// plan chooses ports and flags.
func plan(tb testing.TB, n int, bin string, o Options) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	var initial []string
	for i := range n {
		host := "127.0.0.1"
		if len(o.Hosts) > 0 {
			host = o.Hosts[i]
		}
		s := &Server{tb: tb, name: "m" + strconv.Itoa(i), bin: bin, dir: tb.TempDir(), cert: o.TLS,
			client: net.JoinHostPort(host, servertest.FreePort(tb)),
			peer:   net.JoinHostPort(host, servertest.FreePort(tb)),
			wrap:   func(cmd []string) []string { return cmd }}
		if o.ClockRate != nil {
			s.bin = BinaryAt(tb, o.Version, o.ClockRate(i))
		}
		if o.Wrap != nil {
			s.wrap = func(cmd []string) []string { return o.Wrap(i, cmd) }
		}
		c.Members = append(c.Members, s)
		initial = append(initial, s.name+"=http://"+s.peer)
	}
	for i, s := range c.Members {
		data := filepath.Join(s.dir, "data")
		if o.DataDir != nil {
			data = cmp.Or(o.DataDir(i), data)
		}
		s.args = append([]string{
			"--name", s.name, "--data-dir", data, "--log-level", "warn",
			"--listen-client-urls", s.Endpoint(), "--advertise-client-urls", s.Endpoint(),
			"--listen-peer-urls", "http://" + s.peer, "--initial-advertise-peer-urls", "http://" + s.peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", c.Members[0].peer,
		}, o.Args...)
		if testing.Testing() && testing.Short() {
			// A killed server loses nothing that it has written; on a busy disk each fsync takes
			// long.
			s.args = append(s.args, "--unsafe-no-fsync")
		}
		if s.cert != nil {
			s.args = append(s.args, "--cert-file", s.cert.certFile, "--key-file", s.cert.keyFile)
		}
	}
	return c
}

// up starts all members and waits until they have a leader.
func (c *Cluster) up() error {
	for _, s := range c.Members {
		if err := s.start(); err != nil {
			return err
		}
	}
	for _, s := range c.Members {
		if err := s.ready(time.Minute); err != nil {
			return err
		}
	}
	return nil
}

// down kills all members, and shows their logs if the test failed.
func (c *Cluster) down() {
	for _, s := range c.Members {
		s.Cont()
		s.Kill()
		if c.tb.Failed() {
			c.tb.Logf("the end of %s's log:\n%s", s.name, s.LogTail())
		}
	}
}

// Endpoints returns the client URLs of all members.
func (c *Cluster) Endpoints() []string {
	var eps []string
	for _, s := range c.Members {
		eps = append(eps, s.Endpoint())
	}
	return eps
}

// Endpoint returns the server's client URL.
func (s *Server) Endpoint() string {
	if s.cert != nil {
		return "https://" + s.client
	}
	return "http://" + s.client
}

// Addr returns the server's client address, host:port.
func (s *Server) Addr() string { return s.client }

// start runs the process.
func (s *Server) start() error {
	line := s.wrap(append([]string{s.bin}, s.args...))
	return s.Run(s.tb, exec.Command(line[0], line[1:]...), filepath.Join(s.dir, "log"))
}

// ready waits until the server knows a leader.
func (s *Server) ready(limit time.Duration) error {
	end := time.After(limit)
	for {
		if st, err := s.status(); err == nil && st.Leader != "" && st.Leader != "0" {
			return nil
		}
		select {
		case <-s.Done():
			return fmt.Errorf("%s exited:\n%s", s.name, s.LogTail())
		case <-end:
			return fmt.Errorf("%s does not serve after %v:\n%s", s.name, limit, s.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Launch starts a server that has ended, with its data and ports, and does not wait until it
// serves.
func (s *Server) Launch() error {
	s.Kill()
	return s.start()
}

// Ready returns nil when the server knows a leader, and an error when it does not within the
// limit or has exited.
func (s *Server) Ready(limit time.Duration) error { return s.ready(limit) }

// Restart starts a killed server again, with its data and ports, and returns when it knows a
// leader.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.tb.Fatalf("etcdtest: %v", err)
	}
	if err := s.ready(time.Minute); err != nil {
		s.tb.Fatalf("etcdtest: %v", err)
	}
}

// clientTLS returns how to talk to the server, nil where it is plain.
func (s *Server) clientTLS() *tls.Config {
	if s.cert == nil {
		return nil
	}
	return &tls.Config{InsecureSkipVerify: true} // the helper's own questions only, over loopback
}
