//go:build linux

package failover

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/programtest"
)

const machines = 3 // with a node each; one more has the proxy

// service is the whole: machines, etcd, nodes, the proxy, and clients that ask through it.
type service struct {
	*testing.T
	ttl     time.Duration
	network *etcdtest.Network
	etcd    *etcdtest.Cluster
	nodes   []*node
	clients *clients
}

func newService(t *testing.T, ttl time.Duration) *service {
	t.Helper()
	return newServiceWith(t, ttl, examples["haproxy"])
}

func newServiceWith(t *testing.T, ttl time.Duration, by example) *service {
	t.Helper()
	s := &service{T: t, ttl: ttl, network: etcdtest.NewNetwork(t, machines+1)}
	o := s.network.Options(etcdtest.Options{})
	s.etcd = etcdtest.StartCluster(t, machines, o)
	var members []string
	for _, m := range s.etcd.Members {
		members = append(members, m.Addr())
	}
	on := func(i int) func([]string) []string { return func(cmd []string) []string { return o.Wrap(i, cmd) } }
	var at [][2]string
	for i := range machines {
		at = append(at, [2]string{s.network.Host(i) + ":8000", s.network.Host(i) + ":8001"})
		s.nodes = append(s.nodes, newNode(t, fmt.Sprintf("node%d", i), "etcd://"+strings.Join(members, ","), at[i][0],
			at[i][1], ttl, on(i)))
	}
	proxy := s.network.Host(machines) + ":8080"
	by.start(t, at, proxy, on(machines))
	s.clients = hammer(proxy, 4)
	t.Cleanup(func() { s.clients.end() })
	return s
}

// fault is something that happens to the node that leads. It returns what ends it; the next leader
// is waited for before that.
type fault struct {
	name string
	do   func(s *service, i int) (heal func())
}

var faults = []fault{
	{"supervisor killed", func(s *service, i int) func() { return s.kill(i, 0) }},
	{"whole node frozen", func(s *service, i int) func() { return s.freeze(i, 0, 1, 2) }},
	{"cut off from the store, not from the proxy", func(s *service, i int) func() {
		for j := range machines {
			if j != i {
				s.cut(i, j)
			}
		}
		return s.network.Heal
	}},
	{"service killed", func(s *service, i int) func() { return s.kill(i, 2) }},
	{"supervisor frozen", func(s *service, i int) func() { return s.freeze(i, 0) }},
	{"whole node frozen, with its member of etcd", func(s *service, i int) func() {
		s.etcd.Members[i].Stop()
		s.freeze(i, 0, 1, 2)
		return s.etcd.Members[i].Cont
	}},
	{"cut off from all", func(s *service, i int) func() {
		s.network.Cut(i)
		return s.network.Heal
	}},
	{"guardian killed", func(s *service, i int) func() { return s.kill(i, 1) }},
	{"supervisor and guardian killed", func(s *service, i int) func() { return s.kill(i, 0, 1) }},
	{"supervisor and guardian frozen", func(s *service, i int) func() { return s.freeze(i, 0, 1) }},
}

func (s *service) cut(i, j int) {
	for _, pair := range [][2]int{{i, j}, {j, i}} {
		if err := s.network.CutOneWay(pair[0], pair[1]); err != nil {
			s.Errorf("cut: %v", err)
		}
	}
}

// which returns some of a node's supervisor, guardian and service.
func (s *service) which(i int, parts []int) (pids []int) {
	supervisor, guardian, service, ok := s.nodes[i].parts()
	if !ok {
		s.Fatalf("%s leads and does not run; its log ends with:\n%s", s.nodes[i].id, s.nodes[i].logTail())
	}
	for _, p := range parts {
		pids = append(pids, []int{supervisor, guardian, service}[p])
	}
	return pids
}

func (s *service) kill(i int, parts ...int) func() {
	send(syscall.SIGKILL, s.which(i, parts)...)
	return func() {}
}

// freeze suspends them. The kernel wakes supervisor and guardian at their deadline.
func (s *service) freeze(i int, parts ...int) func() {
	send(syscall.SIGSTOP, s.which(i, parts)...)
	return func() {}
}

// TestFailover is the promise as a client behind a proxy sees it.
func TestFailover(t *testing.T) {
	t.Parallel()
	programtest.Needs(t, "haproxy", "ip", "setpriv")
	rounds := 3
	if text := os.Getenv("FAILOVER_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("FAILOVER_ROUNDS=%q: want a number from 1", text)
		}
	}
	ttl := 3 * time.Second
	if text := os.Getenv("FAILOVER_TTL"); text != "" {
		var err error
		if ttl, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	s := newService(t, ttl)
	for round := range rounds {
		s.round(faults[round%len(faults)])
	}
	s.report(s.clients.end(), rounds)
}

// round injects one fault into the leader, and waits for the next one and for what becomes of the
// former.
func (s *service) round(f fault) {
	s.Helper()
	lead, i := s.runningLeader()
	leads := ""
	if s.etcd.Leader() == s.etcd.Members[i] {
		leads = ", where etcd's leader is"
	}
	at := boottime.Now()
	heal := f.do(s, i)
	next := s.leader(lead.Token)
	took := next.got - at
	if strings.Contains(f.name, "frozen") {
		time.Sleep(s.ttl / 3) // the next one works for a while before the former thaws
	}
	heal()
	time.Sleep(s.ttl / 2) // what the former does now is seen
	s.Logf("%s (%s%s): token %d after %d, %v after the fault", f.name, lead.ID, leads, next.Token, lead.Token,
		took.Round(time.Millisecond))
}

// runningLeader returns who leads at any moment between two renewals, and the number of its node. A
// busy machine may end a term just then: that of another is taken.
func (s *service) runningLeader() (lead seen, i int) {
	s.Helper()
	for range 20 {
		lead = s.leader(0)
		i = int(lead.ID[4] - '0')
		time.Sleep(rand.N(s.ttl / 5))
		if _, _, _, ok := s.nodes[i].parts(); ok {
			return lead, i
		}
	}
	return lead, i // which says what is wrong
}

// leader waits for one that answers under a larger token.
func (s *service) leader(after uint64) (l seen) {
	s.Helper()
	if !within(2*time.Minute, func() bool {
		var ok bool
		l, ok = s.clients.leader()
		return ok && l.Token > after
	}) {
		for _, n := range s.nodes {
			s.Logf("the end of %s's log:\n%s", n.id, n.logTail())
		}
		s.Fatalf("no leader after token %d for 2 minutes; failures: %v", after, s.clients.failures())
	}
	return l
}

func (s *service) report(all []seen, rounds int) {
	v := judge(all)
	s.Logf("%d answers in %d rounds; %d of the former leader came after one of the next to requests that were "+
		"under way; without an answer: %v",
		len(all), rounds, v.overtaken, s.clients.failures())
	for _, n := range s.nodes {
		s.Logf("%s ended so often, by status: %v", n.id, n.ended())
	}
	gaps := slices.Sorted(slices.Values(v.gaps))
	if len(gaps) < rounds {
		s.Errorf("%d changes of leader in %d rounds", len(gaps), rounds)
		return
	}
	ms := func(i int) time.Duration { return gaps[i].Round(time.Millisecond) }
	s.Logf("gaps: worst %v, median %v, least %v", ms(len(gaps)-1), ms(len(gaps)/2), ms(0))
	for _, wrong := range v.wrong() {
		s.Errorf("two leaders: %s", wrong)
	}
	// Where etcd's leader is cut off too, etcd elects first (once or twice) and then gives every
	// lease its whole ttl again, on a machine that may be busy.
	if limit := 2*s.ttl + time.Minute; gaps[len(gaps)-1] > limit {
		s.Errorf("a gap of %v: more than %v", gaps[len(gaps)-1], limit)
	}
}
