// Package redistest runs real Redis servers for tests, starts them on loopback, and does to them
// what machines and operators do: kills, restarts, freezes, replicas that are promoted, clusters,
// sentinels. It is for tests only.
package redistest

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// Main runs the tests of a package, for its TestMain. More of them run beside each other than there
// are processors: nearly all the time they wait.
func Main(m *testing.M) int {
	flag.Parse()
	_ = flag.Set("test.parallel", "10")
	return m.Run()
}

// Options say what kind of server to start. The zero value is a plain one that keeps nothing on
// disk.
type Options struct {
	Persist  string         // "": nothing; "everysec" or "always": an append-only file with that appendfsync
	Password string         // of the default user
	User     string         // with Password: another user than the default one, who may do everything; the default one is switched off
	Rights   string         // of User, in the words of ACL SETUSER; empty: everything
	TLS      *etcdtest.Cert // the server's certificate, instead of plain TCP
	Replica  *Server        // that this one is a replica of
	Cluster  bool           // in cluster mode; see StartCluster for slots
	Young    bool           // a store on it waits a ttl before its first grant, as on every server that was just started; see Age
	Args     []string       // further settings: "--maxmemory", "10mb"
}

// Server is one redis-server process.
type Server struct {
	servertest.Process
	tb   testing.TB
	o    Options
	bin  string
	name string // what it is called: redis-server or redis-sentinel
	dir  string
	port string
	args []string
}

// Start runs one server until the test ends, and returns when it serves. Stores with the default
// prefix take it for one that has run for long, unless it is Young.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	bin := binary(tb)
	var last error
	for range 3 {
		// Between choosing a port and using it, another process may take it: hence another try.
		s := &Server{tb: tb, o: o, bin: bin, name: "redis-server", dir: folder(tb), port: servertest.FreePort(tb)}
		s.args = s.flags()
		if last = s.up(); last == nil {
			tb.Cleanup(s.down)
			if !o.Young && o.Replica == nil && !o.Cluster {
				s.Age("primacy")
			}
			return s
		}
		s.Kill()
	}
	tb.Fatalf("redistest: %v", last)
	return nil
}

// binary returns the server's program.
func binary(tb testing.TB) string {
	tb.Helper()
	// Debian's redis-tools has the server under the second name; it looks at what it is called.
	for _, name := range []string{"redis-server", "redis-check-rdb"} {
		if bin, err := exec.LookPath(name); err == nil {
			return bin
		}
	}
	const get = "redis-server is not installed: apt-get install -y redis-tools"
	if os.Getenv("CI") != "" {
		tb.Fatal(get)
	}
	tb.Skip("NOT TESTED: " + get)
	return ""
}

func folder(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// flags returns the server's settings.
func (s *Server) flags() []string {
	o := s.o
	args := []string{"--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--repl-diskless-sync-delay", "0", "--appendonly", "no"}
	if o.Persist != "" {
		args[len(args)-1] = "yes"
		args = append(args, "--appendfsync", o.Persist)
	}
	if o.TLS != nil {
		cert, key := o.TLS.Files()
		args = append(args, "--port", "0", "--tls-port", s.port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
			"--tls-auth-clients", "no", "--tls-replication", "yes")
	} else {
		args = append(args, "--port", s.port)
	}
	switch {
	case o.User != "":
		rights := "~* &* +@all"
		if o.Rights != "" {
			rights = o.Rights
		}
		acl := filepath.Join(s.dir, "users.acl")
		text := fmt.Sprintf("user default off\nuser %s on >%s %s\nuser tester on >tester ~* &* +@all\n", o.User, o.Password, rights)
		if err := os.WriteFile(acl, []byte(text), 0o600); err != nil {
			s.tb.Fatal(err)
		}
		args = append(args, "--aclfile", acl)
	case o.Password != "":
		args = append(args, "--requirepass", o.Password, "--masterauth", o.Password)
	}
	if o.Replica != nil {
		args = append(args, "--replicaof", "127.0.0.1 "+o.Replica.port, "--repl-timeout", "5")
		if p := o.Replica.o.Password; p != "" {
			args = append(args, "--masterauth", p)
		}
	}
	if o.Cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-node-timeout", "5000", "--cluster-require-full-coverage", "no")
	}
	return append(args, o.Args...)
}

// up starts the process and waits until it serves.
func (s *Server) up() error {
	if err := s.start(); err != nil {
		return err
	}
	return s.Ready(time.Minute)
}

// down ends the server, and shows its log if the test failed.
func (s *Server) down() {
	s.Cont()
	s.Kill()
	if s.tb.Failed() {
		s.tb.Logf("the end of the log of Redis at %s:\n%s", s.Addr(), s.LogTail())
	}
}

// Addr returns where the server listens, host:port.
func (s *Server) Addr() string { return "127.0.0.1:" + s.port }

// URL returns the server as the program's --store takes it, with user and password.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.Addr()}
	if s.o.TLS != nil {
		u.Scheme = "rediss"
	}
	if s.o.Password != "" {
		u.User = url.UserPassword(s.o.User, s.o.Password)
	}
	return u.String()
}

// Client returns a client with all rights, closed at the end of the test.
func (s *Server) Client() *redis.Client {
	c := s.client()
	s.tb.Cleanup(func() { c.Close() })
	return c
}

func (s *Server) client() *redis.Client {
	o := &redis.Options{Addr: s.Addr(), Password: s.o.Password, MaxRetries: -1, DialTimeout: 2 * time.Second,
		ReadTimeout: time.Minute, WriteTimeout: time.Minute, ContextTimeoutEnabled: true, DisableIdentity: true}
	if s.o.User != "" {
		o.Username, o.Password = "tester", "tester"
	}
	if s.o.TLS != nil {
		o.TLSConfig = s.o.TLS.Client()
	}
	return redis.NewClient(o)
}

// Do sends one command and returns its answer; an error fails the test.
func (s *Server) Do(args ...any) any {
	s.tb.Helper()
	c := s.client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the machine may be busy
	defer cancel()
	got, err := c.Do(ctx, args...).Result()
	if err != nil {
		s.tb.Fatalf("redistest: %v: %v", args, err)
	}
	return got
}

// try is Do with an error in place of an answer, and a short limit.
func (s *Server) try(args ...any) error {
	c := s.client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return c.Do(ctx, args...).Err()
}

// start runs the process.
func (s *Server) start() error {
	cmd := exec.Command(s.bin, s.args...)
	cmd.Args[0] = s.name
	return s.Run(s.tb, cmd, filepath.Join(s.dir, "log"))
}

// Launch starts a server that has ended, on its port and with what it kept, and does not wait until
// it serves.
func (s *Server) Launch() error {
	s.Kill()
	return s.start()
}

// Restart kills the server, starts it again, and returns when it serves.
func (s *Server) Restart() {
	s.tb.Helper()
	err := s.Launch()
	if err == nil {
		err = s.Ready(time.Minute)
	}
	if err != nil {
		s.tb.Fatalf("redistest: %v", err)
	}
}

// Ready returns nil when the server answers and has loaded its data, and an error when it does not
// within the limit or has exited.
func (s *Server) Ready(limit time.Duration) error {
	exited := s.Done()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if s.listens() {
			if err := s.try("PING"); err == nil {
				return nil
			}
		}
		select {
		case <-exited:
			return fmt.Errorf("redis at %s has ended:\n%s", s.Addr(), s.LogTail())
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("redis at %s does not serve after %v:\n%s", s.Addr(), limit, s.LogTail())
		}
	}
}

// listens says whether a connection can be made. The client tries a refused one again by itself,
// and logs that.
func (s *Server) listens() bool {
	c, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}
