// Package pgtest runs real PostgreSQL servers for tests: on loopback, in temporary folders, with
// fsync. A server can be killed, frozen, started again, and have a synchronous standby that is
// promoted. It needs Linux and Debian's package postgresql.
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/internal/servertest"
)

// Options say what kind of server to start. The zero value is a plain one that lets everybody in.
type Options struct {
	Settings []string // "name=value", as in postgresql.conf
	Password string   // the superuser's: then every login needs its password (scram)
	TLS      bool     // TLS is on, and a connection without it is refused
	NoFsync  bool     // faster, and a server that is killed with its machine loses data
}

// User is the superuser of every server, Database the one to use.
const (
	User     = "tester"
	Database = "postgres"
)

// Server is one PostgreSQL server, as one test uses it.
type Server struct {
	tb       testing.TB
	database string
	*process
}

// process is what all users of a server share.
type process struct {
	o    Options
	dir  string
	port string
	as   owner

	users  sync.RWMutex // held by the tests that use a server of Shared or Exclusive
	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start runs a server until the test ends, and returns when it serves.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	s := plan(tb, o)
	args := []string{"-D", s.data(), "-U", User, "-E", "UTF8", "--locale=C", "--no-sync", "-A", "trust"}
	if o.Password != "" {
		file := filepath.Join(s.dir, "password")
		s.write(file, []byte(o.Password))
		args[len(args)-1] = "scram-sha-256"
		args = append(args, "--pwfile", file)
	}
	s.run("initdb", args...)
	if o.TLS {
		s.certify()
	}
	s.up()
	return s
}

// plan chooses a port and makes the server's folder.
func plan(tb testing.TB, o Options) *Server {
	tb.Helper()
	dir, err := os.MkdirTemp("", "pgtest-") // not tb.TempDir: other users cannot reach that, and a socket's path has 107 bytes
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	s := &Server{tb, Database, &process{o: o, dir: dir, port: servertest.FreePort(tb), as: notRoot(tb)}}
	if err := s.as.own(dir); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return s
}

// up starts the server for the first time.
func (s *Server) up() {
	s.tb.Helper()
	s.tb.Cleanup(s.down)
	for range 3 { // between choosing a port and using it another process may take it
		if err := s.Launch(); err != nil {
			s.tb.Fatalf("pgtest: %v", err)
		}
		if s.Ready(30*time.Second) == nil {
			return
		}
		s.Kill()
		s.port = servertest.FreePort(s.tb)
	}
	s.tb.Fatalf("pgtest: the server does not start:\n%s", s.LogTail())
}

func (s *Server) down() {
	s.Kill()
	s.explain()
}

// explain shows the end of the server's log if the test has failed.
func (s *Server) explain() {
	if s.tb.Failed() {
		s.tb.Logf("the end of the log of PostgreSQL at %s:\n%s", s.Addr(), s.LogTail())
	}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Addr returns where the server listens, host:port.
func (s *Server) Addr() string { return "127.0.0.1:" + s.port }

// URL returns the store URL of the superuser.
func (s *Server) URL() string { return s.URLAt(s.Addr()) }

// URLAt is URL for another address, as a proxy's, or several with commas between them.
func (s *Server) URLAt(addr string) string {
	user := url.User(User)
	if s.o.Password != "" {
		user = url.UserPassword(User, s.o.Password)
	}
	query := "sslmode=disable"
	if s.o.TLS {
		query = "sslmode=verify-ca&sslrootcert=" + url.QueryEscape(s.CertFile())
	}
	return "postgres://" + user.String() + "@" + addr + "/" + s.database + "?" + query
}

// CertFile returns the certificate that a client trusts, of a server with TLS.
func (s *Server) CertFile() string { return filepath.Join(s.dir, "cert.pem") }

// Alone runs f when no other test uses the server, which is one of Shared.
func (s *Server) Alone(f func()) {
	s.users.RUnlock()
	defer s.users.RLock()
	s.users.Lock()
	defer s.users.Unlock()
	f()
}

var databases atomic.Int64

// Fresh returns the server with an empty database of its own, in place of the common one.
func (s *Server) Fresh() *Server {
	s.tb.Helper()
	name := fmt.Sprint("fresh", databases.Add(1))
	s.Exec("CREATE DATABASE " + name)
	return &Server{s.tb, name, s.process}
}

// Ready returns nil when the server lets us in, and an error when it does not within the limit or
// has exited.
func (s *Server) Ready(limit time.Duration) error {
	s.mu.Lock()
	exited := s.exited
	s.mu.Unlock()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithDeadline(context.Background(), end)
		c, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			c.Close(ctx)
		}
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("PostgreSQL at %s exited", s.Addr())
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("PostgreSQL at %s does not serve after %v: %w", s.Addr(), limit, err)
		}
	}
}

// Restart starts the server again, with its port and data, as after a crash, and returns when it
// serves.
func (s *Server) Restart() {
	s.tb.Helper()
	err := s.Launch()
	if err == nil {
		err = s.Ready(2 * time.Minute)
	}
	if err != nil {
		s.tb.Fatalf("pgtest: %v", err)
	}
}

// Exec runs statements as the superuser.
func (s *Server) Exec(sql string) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, s.URL())
	if err == nil {
		defer c.Close(ctx)
		_, err = c.PgConn().Exec(ctx, sql).ReadAll()
	}
	if err != nil {
		s.tb.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// Query returns the first column of the first row as text, empty where there is none.
func (s *Server) Query(sql string) string {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		s.tb.Fatalf("pgtest: %v", err)
	}
	defer c.Close(ctx)
	all, err := c.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		s.tb.Fatalf("pgtest: %s: %v", sql, err)
	}
	if last := all[len(all)-1].Rows; len(last) > 0 && len(last[0]) > 0 {
		return string(last[0][0])
	}
	return ""
}

// LogTail returns the last lines of the server's log.
func (s *Server) LogTail() string {
	b, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-3000):])
}

// settings are the server's flags.
func (s *Server) settings() []string {
	all := []string{"listen_addresses=127.0.0.1", "port=" + s.port, "unix_socket_directories=" + s.dir, "max_connections=100"}
	if s.o.NoFsync {
		all = append(all, "fsync=off")
	}
	if s.o.TLS {
		all = append(all, "ssl=on", "ssl_cert_file="+s.CertFile(), "ssl_key_file="+filepath.Join(s.dir, "key.pem"))
	}
	var flags []string
	for _, one := range append(all, s.o.Settings...) {
		flags = append(flags, "-c", one)
	}
	return flags
}

// program finds a program of PostgreSQL: in PATH, or where Debian keeps them. Without one the test
// fails in CI, where a skipped test would pass for a proof.
func program(tb testing.TB, name string) string {
	tb.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(all) > 0 {
		return all[len(all)-1]
	}
	missing(tb, "PostgreSQL ("+name+") is not installed: apt-get install -y postgresql")
	return ""
}

// missing ends a test for want of something.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("CI") != "" {
		tb.Fatalf("pgtest: %s", what)
	}
	tb.Skipf("NOT TESTED: %s", what)
}

// run runs a program of PostgreSQL to its end.
func (s *Server) run(name string, args ...string) {
	s.tb.Helper()
	cmd := exec.Command(program(s.tb, name), args...)
	cmd.Dir = s.dir
	s.as.wear(cmd)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+s.o.Password)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("pgtest: %s: %v\n%s", name, err, strings.TrimSpace(string(out)))
	}
}

// write leaves a file that the server can read and others cannot.
func (s *Server) write(path string, b []byte) {
	s.tb.Helper()
	err := os.WriteFile(path, b, 0o600)
	if err == nil {
		err = s.as.own(path)
	}
	if err != nil {
		s.tb.Fatalf("pgtest: %v", err)
	}
}
