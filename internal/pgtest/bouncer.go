package pgtest

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// Bouncer runs pgbouncer in transaction mode before the server until the test ends, and returns its
// address: each transaction of a client goes to any of a few connections. It needs Debian's package
// pgbouncer.
func (s *Server) Bouncer() string {
	s.tb.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		missing(s.tb, "pgbouncer is not installed: apt-get install -y pgbouncer")
	}
	port := servertest.FreePort(s.tb)
	ini, users := filepath.Join(s.dir, "pgbouncer.ini"), filepath.Join(s.dir, "users.txt")
	s.write(users, []byte(fmt.Sprintf("%q %q\n", User, s.o.Password)))
	s.write(ini, []byte(fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
logfile = %s
`, s.port, port, users, filepath.Join(s.dir, "pgbouncer.log"))))
	cmd := exec.Command(bin, ini)
	cmd.Dir = s.dir
	s.as.wear(cmd)
	if err := s.attach(cmd); err != nil {
		s.tb.Fatalf("pgtest: pgbouncer: %v", err)
	}
	s.tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	addr := "127.0.0.1:" + port
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr
		}
		if time.Now().After(end) {
			s.tb.Fatalf("pgtest: pgbouncer does not listen on %s", addr)
		}
	}
}
