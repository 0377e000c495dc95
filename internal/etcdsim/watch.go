package etcdsim

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

type watchService struct {
	pb.UnimplementedWatchServer
	m *member
}

// watchStream is one stream with its watches, guarded by the cluster's lock.
type watchStream struct {
	m       *member
	watches map[int64]*pb.WatchCreateRequest
	next    int64
	out     []*pb.WatchResponse
	ready   chan struct{} // something is to be sent
}

// Watch serves one stream.
func (s *watchService) Watch(stream pb.Watch_WatchServer) error {
	m := s.m
	ws := &watchStream{m: m, watches: map[int64]*pb.WatchCreateRequest{}, ready: make(chan struct{}, 1)}
	m.c.mu.Lock()
	m.streams[ws] = true
	m.c.mu.Unlock()
	defer func() {
		m.c.mu.Lock()
		delete(m.streams, ws)
		m.c.mu.Unlock()
	}()
	over := make(chan struct{})
	m.c.work.Go(func() {
		defer close(over)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			ws.take(r)
		}
	})
	noLeader := m.noLeader(stream.Context())
	for {
		select {
		case <-ws.ready:
		case <-over:
			return nil
		case <-noLeader:
			return rpctypes.ErrGRPCNoLeader
		}
		m.c.mu.Lock()
		up, out := m.gate(), ws.out
		ws.out = nil
		m.c.mu.Unlock()
		if !up {
			return rpctypes.ErrGRPCStopped
		}
		for _, r := range out {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
	}
}

func (ws *watchStream) take(r *pb.WatchRequest) {
	m := ws.m
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if !m.gate() {
		return
	}
	switch u := r.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		ws.open(u.CreateRequest)
	case *pb.WatchRequest_CancelRequest:
		if id := u.CancelRequest.WatchId; ws.watches[id] != nil {
			delete(ws.watches, id)
			ws.push(&pb.WatchResponse{WatchId: id, Canceled: true})
		}
	case *pb.WatchRequest_ProgressRequest:
		ws.push(&pb.WatchResponse{WatchId: -1})
	}
}

// open begins a watch, at the present or from a revision on, and tells so.
func (ws *watchStream) open(r *pb.WatchCreateRequest) {
	id := r.WatchId
	if id == 0 {
		for ws.next++; ws.watches[ws.next] != nil; ws.next++ {
		}
		id = ws.next
	}
	if ws.watches[id] != nil {
		ws.push(&pb.WatchResponse{WatchId: -1, Created: true, Canceled: true,
			CancelReason: "mvcc: duplicate watch ID provided on the WatchStream"})
		return
	}
	ws.push(&pb.WatchResponse{WatchId: id, Created: true})
	st := ws.m.st
	if r.StartRevision > 0 && r.StartRevision <= st.compacted {
		ws.push(&pb.WatchResponse{WatchId: id, Canceled: true, CompactRevision: st.compacted,
			CancelReason: rpctypes.ErrCompacted.Error()})
		return
	}
	ws.watches[id] = r
	if r.StartRevision > 0 {
		ws.show(id, r, st.events)
	}
}

// show sends those events that a watch sees.
func (ws *watchStream) show(id int64, r *pb.WatchCreateRequest, events []*mvccpb.Event) {
	var out []*mvccpb.Event
	for _, e := range events {
		hidden := e.Kv.ModRevision < r.StartRevision || !within(string(e.Kv.Key), r.Key, r.RangeEnd)
		for _, f := range r.Filters {
			hidden = hidden || f == pb.WatchCreateRequest_NOPUT && e.Type == eventPut ||
				f == pb.WatchCreateRequest_NODELETE && e.Type == eventDelete
		}
		if !hidden {
			out = append(out, e)
		}
	}
	if len(out) > 0 {
		ws.push(&pb.WatchResponse{WatchId: id, Events: out})
	}
}

// since returns the events from a revision on.
func since(events []*mvccpb.Event, from int64) []*mvccpb.Event {
	i := len(events)
	for i > 0 && events[i-1].Kv.ModRevision >= from {
		i--
	}
	return events[i:]
}

// push hands a message to the sender.
func (ws *watchStream) push(r *pb.WatchResponse) {
	r.Header = ws.m.header()
	ws.out = append(ws.out, r)
	select {
	case ws.ready <- struct{}{}:
	default:
	}
}

// publish tells all watches what the entry just applied has changed.
func (m *member) publish() {
	if len(m.st.fresh) == 0 {
		return
	}
	for ws := range m.streams {
		for id, r := range ws.watches {
			ws.show(id, r, m.st.fresh)
		}
	}
}

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
	republish(m, from)
	m.note()
}

// republish has all watches go on from a revision, in the state that the member has taken over.
func republish(m *member, from int64) {
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
