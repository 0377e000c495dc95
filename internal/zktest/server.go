package zktest

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// Server is one ZooKeeper process.
type Server struct {
	servertest.Process
	tb      testing.TB
	id      int
	dir     string
	options Options

	client, quorum, election string // host:port
	plain                    string // of a second port without TLS, for the helper's own questions

}

// Addr returns the clients' address, host:port.
func (s *Server) Addr() string { return s.client }

// URL returns the --store URL.
func (s *Server) URL() string { return s.scheme() + s.client }

func (s *Server) scheme() string {
	if s.options.TLS != nil {
		return "zks://"
	}
	return "zk://"
}

// Dir returns the folder with its configuration, data and log.
func (s *Server) Dir() string { return s.dir }

// config returns the lines that do not depend on other members.
func (s *Server) config() []string {
	host, port, _ := net.SplitHostPort(s.client)
	lines := []string{
		fmt.Sprintf("tickTime=%d", s.options.Tick.Milliseconds()),
		"initLimit=8", "syncLimit=5",
		"dataDir=" + filepath.Join(s.dir, "data"),
		"admin.enableServer=false", "4lw.commands.whitelist=*", "maxClientCnxns=0",
	}
	if cert := s.options.TLS; cert != nil {
		_, plain, _ := net.SplitHostPort(s.plain)
		lines = append(lines, "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
			"secureClientPort="+port, "secureClientPortAddress="+host, "clientPort="+plain, "clientPortAddress="+host,
			"ssl.keyStore.location="+cert.keyStore, "ssl.keyStore.type=PEM", "ssl.trustStore.location="+cert.certFile, "ssl.trustStore.type=PEM",
			"ssl.clientAuth=none")
	} else {
		lines = append(lines, "clientPort="+port, "clientPortAddress="+host)
	}
	return append(lines, s.options.Config...)
}

// command returns how to run it: a small JVM that starts quickly.
func (s *Server) command() *exec.Cmd {
	args := []string{
		"-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto",
		"-Dzookeeper.preAllocSize=1024", "-Dzookeeper.cnxTimeout=500", "-Dzookeeper.jmx.log4j.disable=true", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
	}
	if s.options.NoSync {
		args = append(args, "-Dzookeeper.forceSync=no")
	}
	args = append(args, s.options.Java...)
	jars := []string{jar(s.tb, "zookeeper.jar"), jar(s.tb, "slf4j-simple.jar")}
	if s.options.TLS != nil {
		jars = append(jars, jar(s.tb, "netty-codec.jar"), jar(s.tb, "netty-resolver.jar"))
	}
	args = append(args, "-cp", strings.Join(jars, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(s.dir, "zoo.cfg"))
	return exec.Command("java", args...)
}

// start runs the process.
func (s *Server) start() error {
	return s.Run(s.tb, s.command(), filepath.Join(s.dir, "log"))
}

// Ready returns nil when the server serves clients, and an error when it does not within the limit
// or has exited.
func (s *Server) Ready(limit time.Duration) error {
	exited := s.Done()
	end := time.After(limit)
	for {
		if text, err := s.Ask("srvr"); err == nil && strings.Contains(text, "Mode: ") && s.listens() {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("ZooKeeper server %d exited:\n%s", s.id, s.LogTail())
		case <-end:
			return fmt.Errorf("ZooKeeper server %d does not serve after %v:\n%s", s.id, limit, s.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listens says whether clients can connect: with TLS they have a port of their own, which is opened
// after the one that answers commands.
func (s *Server) listens() bool {
	conn, err := net.DialTimeout("tcp", s.client, time.Second)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// Ask sends one of ZooKeeper's commands of four letters and returns the answer.
func (s *Server) Ask(word string) (string, error) {
	addr := s.client
	if s.options.TLS != nil {
		addr = s.plain
	}
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	return string(text), err
}

// Launch starts a server that has ended, with its data and ports, and does not wait until it
// serves.
func (s *Server) Launch() error {
	s.Kill()
	return s.start()
}

// Restart starts a server again, with its data and ports, and returns when it serves.
func (s *Server) Restart() {
	s.tb.Helper()
	err := s.Launch()
	if err == nil {
		err = s.Ready(60 * time.Second)
	}
	if err != nil {
		s.tb.Fatalf("zktest: %v", err)
	}
}

// Cert is a certificate of a server and what clients check it with.
type Cert struct {
	certFile, keyStore string
	Client             *tls.Config
}
