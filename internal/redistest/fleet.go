package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Age makes stores with that prefix take the server for one that has run for long and lost nothing:
// without it they wait a ttl before the first grant on a server that was just started, and the
// largest ttl ever granted after a restart. See package redisstore.
func (s *Server) Age(prefix string) {
	s.tb.Helper()
	server := fmt.Sprint(s.Do("INFO", "server"))
	replication := fmt.Sprint(s.Do("INFO", "replication"))
	s.Do("HSET", "{"+prefix+"}:server", "id", field(replication, "master_replid"), "run", field(server, "run_id"), "since", 0, "calm", 0)
}

// field returns one field of an INFO answer.
func field(info, name string) string {
	m := regexp.MustCompile(`(?m)^` + name + `:(.*?)\r?$`).FindStringSubmatch(info)
	if m == nil {
		return ""
	}
	return m[1]
}

// Role returns "master" or "slave", in Redis's words.
func (s *Server) Role() string { return field(fmt.Sprint(s.Do("INFO", "replication")), "role") }

// Synced waits until a replica has a link to its primary, and until all that was written so far has
// arrived.
func (s *Server) Synced() {
	s.tb.Helper()
	s.until("the replica to be in step", func() bool {
		info := fmt.Sprint(s.Do("INFO", "replication"))
		if field(info, "master_link_status") != "up" || s.o.Replica == nil {
			return false
		}
		there := fmt.Sprint(s.o.Replica.Do("INFO", "replication"))
		return field(info, "slave_repl_offset") == field(there, "master_repl_offset")
	})
}

// Promote makes a replica a primary.
func (s *Server) Promote() {
	s.tb.Helper()
	s.Do("REPLICAOF", "NO", "ONE")
}

// Follow makes the server a replica of another one.
func (s *Server) Follow(of *Server) {
	s.tb.Helper()
	s.o.Replica = of
	s.Do("REPLICAOF", "127.0.0.1", of.port)
}

// until polls, and fails the test if it does not come.
func (s *Server) until(what string, ok func() bool) {
	s.tb.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.tb.Fatalf("redistest: waited a minute for %s", what)
		}
	}
}

// Keep copies what the server has on disk. Rewind kills the server, puts that copy back, and starts
// it again: all that was written since is lost, as when the power fails before it reached the disk.
func (s *Server) Keep() {
	s.tb.Helper()
	s.copy(filepath.Join(s.dir, "appendonlydir"), filepath.Join(s.dir, "kept"))
}

// Rewind brings the last Keep back.
func (s *Server) Rewind() {
	s.tb.Helper()
	s.Kill()
	s.copy(filepath.Join(s.dir, "kept"), filepath.Join(s.dir, "appendonlydir"))
	s.Restart()
}

func (s *Server) copy(from, to string) {
	s.tb.Helper()
	err := os.RemoveAll(to)
	if err == nil {
		err = os.CopyFS(to, os.DirFS(from))
	}
	if err != nil {
		s.tb.Fatalf("redistest: %v", err)
	}
}

// Lag cuts a replica off from its primary: it keeps what it has.
func (s *Server) Lag() {
	s.tb.Helper()
	s.Do("REPLICAOF", "127.0.0.1", "1") // nobody listens there
}
