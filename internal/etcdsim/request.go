package etcdsim

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// propose has a request written to the log and returns the answer of this member's state to it.
// Once it was handed in it may be carried out whenever, also when propose returned an error.
func (m *member) propose(ctx context.Context, req any) (any, *pb.ResponseHeader, error) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.gate() {
		return nil, nil, rpctypes.ErrGRPCStopped
	}
	c.lastID++
	p := &proposal{id: c.lastID, req: req}
	answer := make(chan outcome, 1)
	m.waiters[p.id] = answer
	m.submit(p)
	c.mu.Unlock()
	end := time.NewTimer(requestLimit)
	defer end.Stop()
	out := outcome{err: rpctypes.ErrGRPCTimeout}
	select {
	case out = <-answer:
	case <-ctx.Done():
	case <-end.C:
	case <-c.done:
	}
	c.mu.Lock()
	delete(m.waiters, p.id)
	if !m.gate() {
		return nil, nil, rpctypes.ErrGRPCStopped
	}
	h := m.header()
	if out.early {
		h.RaftTerm = out.term
	}
	return out.resp, h, out.err
}

// index returns how much of the log stood at some instant after the call began, as a leader knows
// it that a majority has confirmed since. The caller holds the lock.
func (m *member) index(ctx context.Context, limit time.Duration) (int, bool) {
	at, confirmed := 0, false
	end := time.Now().Add(limit)
	for !confirmed && time.Now().Before(end) && ctx.Err() == nil {
		if m.lead >= 0 {
			lead := m.c.members[m.lead]
			m.c.send(m, lead, "", func() {
				lead.confirm(func(commit int) {
					m.c.send(lead, m, "", func() { at, confirmed = commit, true; m.note() })
				})
			})
		}
		m.until(ctx, min(500*time.Millisecond, max(time.Until(end), 1)), func() bool { return confirmed })
		if !m.gate() {
			return 0, false
		}
	}
	return at, confirmed
}

// confirm tells how much is committed once a majority has answered this leader, which must have
// committed something in its own term.
func (m *member) confirm(tell func(commit int)) {
	if !m.leads || m.commit == 0 || m.c.log[m.commit-1].term != m.term {
		return
	}
	term, commit, answers := m.term, m.commit, 1
	count := func() {
		if 2*answers > len(m.c.members) && m.leads && m.term == term {
			answers = -len(m.c.members) // once
			tell(commit)
		}
	}
	count()
	for _, f := range m.c.members {
		if f == m {
			continue
		}
		m.c.send(m, f, "", func() {
			if f.term == term {
				m.c.send(f, m, "", func() { answers++; count() })
			}
		})
	}
}

// header is what each answer of a member begins with.
func (m *member) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: m.c.id, MemberId: m.id, Revision: m.st.rev, RaftTerm: m.appliedTerm}
}
