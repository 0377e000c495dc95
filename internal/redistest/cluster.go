package redistest

import (
	"fmt"
	"strings"
	"testing"
)

const slots = 16384

// StartCluster runs a cluster of n masters, which share the slots, with so many replicas in all,
// and returns when all of them know that. The masters come first, replica i is one of master i%n.
func StartCluster(tb testing.TB, n, replicas int, o Options) []*Server {
	tb.Helper()
	o.Cluster = true
	var all []*Server
	for i := range n + replicas {
		s := Start(tb, o)
		if i < n {
			s.Do("CLUSTER", "ADDSLOTSRANGE", slots*i/n, slots*(i+1)/n-1)
			s.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1) // two masters of one epoch would have to sort that out first
		}
		if i > 0 {
			s.Do("CLUSTER", "MEET", "127.0.0.1", all[0].port)
		}
		all = append(all, s)
	}
	whole(all)
	for i, s := range all[n:] {
		s.o.Replica = all[i%n]
		s.Do("CLUSTER", "REPLICATE", s.o.Replica.node())
	}
	for i, s := range all {
		if i >= n {
			s.Synced()
		}
		s.until("the cluster to know its replicas", func() bool {
			return strings.Count(fmt.Sprint(s.Do("CLUSTER", "NODES")), "slave ") == replicas
		})
	}
	if !o.Young {
		Owner(all).Age("primacy")
	}
	return all
}

// whole waits until every server knows all others and who has which slot.
func whole(all []*Server) {
	for _, s := range all {
		s.tb.Helper()
		s.until("the cluster to be whole", func() bool {
			info := fmt.Sprint(s.Do("CLUSTER", "INFO"))
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_slots_assigned:%d", slots)) &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", len(all)))
		})
	}
}

// node returns the server's name in its cluster.
func (s *Server) node() string { return fmt.Sprint(s.Do("CLUSTER", "MYID")) }

// Owner returns the server of a cluster that has the slot of {primacy}, once there is one.
func Owner(all []*Server) (owner *Server) {
	all[0].tb.Helper()
	all[0].until("some server of the cluster to have the slot of {primacy}", func() bool {
		for _, s := range all {
			if s.Exited() {
				continue
			}
			if err := s.try("EXISTS", "{primacy}:server"); err == nil {
				owner = s
				return true
			}
		}
		return false
	})
	return owner
}

// Agree waits until every living server of a cluster knows that owner has the slot of {primacy}.
func Agree(all []*Server, owner *Server) {
	owner.tb.Helper()
	slot, _ := owner.Do("CLUSTER", "KEYSLOT", "{primacy}:server").(int64)
	id := owner.node()
	knows := func(s *Server) bool {
		rows, _ := s.Do("CLUSTER", "SLOTS").([]any)
		for _, row := range rows {
			part, _ := row.([]any) // from, to, master, replicas
			if from, to := part[0].(int64), part[1].(int64); from <= slot && slot <= to {
				return fmt.Sprint(part[2].([]any)[2]) == id
			}
		}
		return false
	}
	for _, s := range all {
		if !s.Exited() {
			s.until("the cluster to agree who has the slot of {primacy}", func() bool { return knows(s) })
		}
	}
}

// Move is the slot of {primacy} on its way from one server of a cluster to another, as CLUSTER
// SETSLOT, MIGRATE and SETSLOT again take it there.
type Move struct {
	all      []*Server
	from, to *Server
	slot     any
}

// BeginMove tells both servers that the slot is on its way.
func BeginMove(all []*Server, from, to *Server) *Move {
	from.tb.Helper()
	m := &Move{all, from, to, from.Do("CLUSTER", "KEYSLOT", "{primacy}:server")}
	to.Do("CLUSTER", "SETSLOT", m.slot, "IMPORTING", from.node())
	from.Do("CLUSTER", "SETSLOT", m.slot, "MIGRATING", to.node())
	return m
}

// To is the server that the slot goes to.
func (m *Move) To() *Server { return m.to }

// Keys moves at most so many of the slot's keys. It reports whether that was all of them.
func (m *Move) Keys(most int) (all bool) {
	m.from.tb.Helper()
	keys, _ := m.from.Do("CLUSTER", "GETKEYSINSLOT", m.slot, most).([]any)
	if len(keys) > 0 {
		m.from.Do(append([]any{"MIGRATE", "127.0.0.1", m.to.port, "", 0, 30000, "KEYS"}, keys...)...)
	}
	return len(keys) < most
}

// Key moves one key of the slot.
func (m *Move) Key(key string) {
	m.from.tb.Helper()
	m.from.Do("MIGRATE", "127.0.0.1", m.to.port, key, 0, 30000)
}

// End gives the slot to its new server: that one is told first, for whoever asks the old one is
// sent to it.
func (m *Move) End() {
	m.from.tb.Helper()
	id := m.to.node()
	m.to.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
	m.from.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
	for _, s := range m.all {
		if s != m.to && s != m.from && s.Role() == "master" {
			s.Do("CLUSTER", "SETSLOT", m.slot, "NODE", id)
		}
	}
}

// Follows says whether the server is a replica of that one and has a link to it.
func (s *Server) Follows(of *Server) bool {
	s.tb.Helper()
	info := fmt.Sprint(s.Do("INFO", "replication"))
	return field(info, "master_port") == of.port && field(info, "master_link_status") == "up"
}
