package pgtest

import (
	"flag"
	"sync"
	"testing"
)

// Main runs the tests of a package, for its TestMain, and ends the servers of Shared and Exclusive
// after them. More tests run beside each other than there are processors: most of the time they
// wait.
func Main(m *testing.M) int {
	flag.Parse()
	_ = flag.Set("test.parallel", "16")
	defer shared.end()
	return m.Run()
}

// shared are the servers of a package, by their names.
var shared servers

type servers struct {
	mu   sync.Mutex
	all  map[string]*process
	ends []func()
}

// Shared returns the server of that name for a test that does not harm it, beside others that do
// not. The first call starts it, with its settings. A test calls it once: its subtests use the same
// server.
func Shared(tb testing.TB, name string, settings ...string) *Server {
	tb.Helper()
	p := shared.find(tb, name, settings)
	p.users.RLock()
	tb.Cleanup(p.users.RUnlock)
	return p.usedBy(tb)
}

// Exclusive returns the server of that name for a test that stops it, or sets it up otherwise: no
// other test uses it meanwhile.
func Exclusive(tb testing.TB, name string, settings ...string) *Server {
	tb.Helper()
	p := shared.find(tb, name, settings)
	p.users.Lock()
	tb.Cleanup(p.users.Unlock)
	return p.usedBy(tb)
}

func (s *servers) find(tb testing.TB, name string, settings []string) *process {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[name] == nil {
		if s.all == nil {
			s.all = map[string]*process{}
		}
		o := Options{Settings: append([]string{"max_connections=900"}, settings...)}
		s.all[name] = Start(&starter{tb, s}, o).process
	}
	return s.all[name]
}

// usedBy returns a server of the package as a test uses it.
func (p *process) usedBy(tb testing.TB) *Server {
	s := &Server{tb, Database, p}
	tb.Cleanup(s.explain)
	return s
}

func (s *servers) end() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
	}
}

// starter is the test that starts a server of a package: the server does not end with it.
type starter struct {
	testing.TB
	s *servers
}

func (s *starter) Cleanup(f func()) { s.s.ends = append(s.s.ends, f) }

// Failed is asked when the server ends: the test has ended long before.
func (s *starter) Failed() bool { return false }
