package pgtest

import "time"

// Standby makes a synchronous standby of the server, which runs until the test ends: from now on a
// commit is acknowledged when it is on both.
func (s *Server) Standby() *Server {
	s.tb.Helper()
	b := plan(s.tb, Options{Settings: s.o.Settings, Password: s.o.Password, NoFsync: s.o.NoFsync})
	b.run("pg_basebackup", "-D", b.data(), "-h", "127.0.0.1", "-p", s.port, "-U", User, "-R", "-X", "stream", "-c", "fast", "--no-sync")
	b.up()
	s.Exec("ALTER SYSTEM SET synchronous_standby_names = '*'")
	s.Exec("SELECT pg_reload_conf()")
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if s.Query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1" {
			return b
		}
		if time.Now().After(end) {
			s.tb.Fatalf("pgtest: the standby does not follow:\n%s", b.LogTail())
		}
	}
}

// Promote makes a standby the primary, and returns when it takes writes. The former primary is not
// told.
func (s *Server) Promote() {
	s.tb.Helper()
	s.Exec("SELECT pg_promote(true, 30)")
}
