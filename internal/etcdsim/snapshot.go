package etcdsim

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// keeps are the numbers of entries that leaders keep for those behind. Etcd keeps 5000, which
// would take long to fall behind.
var keeps = []int{12, 25, 50, 1 << 30}

// catchUp has a follower apply the log as far as its leader knows that a majority holds it. One
// that lacks entries which the leader has dropped gets the state as a whole instead. That leaves
// the term in its answers as it was.
func (m *member) catchUp(commit int) {
	if commit-m.applied <= m.c.o.Keep {
		m.learn(commit)
		return
	}
	from := m.st.rev + 1
	for _, e := range m.c.log[m.applied:commit] {
		// Whoever waits for an entry among these is told nothing.
		_, _ = m.st.apply(e.req)
	}
	m.commit, m.applied, m.shot = commit, commit, true
	m.c.stats.Snapshots++
	m.republish(from)
	m.note()
}

// republish has all watches go on from a revision, in the state that the member has taken over.
func (m *member) republish(from int64) {
	for ws := range m.streams {
		for id, r := range ws.watches {
			if max(from, r.StartRevision) <= m.st.compacted {
				delete(ws.watches, id)
				ws.push(&pb.WatchResponse{WatchId: id, Canceled: true, CompactRevision: m.st.compacted,
					CancelReason: rpctypes.ErrCompacted.Error()})
				continue
			}
			ws.show(id, r, since(m.st.events, from))
		}
	}
}
