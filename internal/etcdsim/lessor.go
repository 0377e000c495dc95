package etcdsim

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// promote begins to count all leases down, each with its whole ttl and an election timeout more.
func (m *member) promote() {
	m.primary = true
	clear(m.expiry)
	clear(m.asked)
	for id, l := range m.st.leases {
		m.expiry[id] = m.clock() + time.Duration(l.ttl)*time.Second + electionTick*tick
	}
}

func (m *member) demote() {
	m.primary = false
	clear(m.expiry)
	clear(m.asked)
}

// lease keeps the countdown in step with what was applied.
func (m *member) lease(req any) {
	switch r := req.(type) {
	case *pb.LeaseGrantRequest:
		if l := m.st.leases[r.ID]; l != nil && m.primary {
			m.expiry[r.ID] = m.clock() + time.Duration(l.ttl)*time.Second
		}
	case *pb.LeaseRevokeRequest:
		delete(m.expiry, r.ID)
		delete(m.asked, r.ID)
	}
}

// look hands in the end of every lease whose time is over, again after 3 s. Woken says that the
// member has just woken up as a leader and does not know yet whether it still is one: what it
// hands in waits until it has read its messages.
func (m *member) look(woken bool) {
	if !m.primary {
		return
	}
	now := m.clock()
	for id, at := range m.expiry {
		if last, asked := m.asked[id]; now < at || asked && now < last+3*time.Second {
			continue
		}
		m.asked[id] = now
		m.c.lastID++
		p := &proposal{id: m.c.lastID, req: &pb.LeaseRevokeRequest{ID: id}}
		m.c.stats.Expired++
		if woken {
			p.woken = m.term
			m.queue = append(m.queue, p)
		} else {
			m.submit(p)
		}
	}
}

// deposed reports whether another member leads in a newer term.
func (m *member) deposed() bool {
	for _, o := range m.c.members {
		if o.leads && o.term > m.term {
			return true
		}
	}
	return false
}

// renew starts the countdown of a lease afresh, at the leader, and returns its ttl, 0 if there is
// no such lease. Nobody else is asked. Only a leader whose last tick is long ago makes sure first
// that it is one still.
func (m *member) renew(ctx context.Context, id int64) (int64, error) {
	end := time.Now().Add(requestLimit)
	for ctx.Err() == nil && time.Now().Before(end) {
		if !m.gate() {
			return 0, rpctypes.ErrGRPCStopped
		}
		if m.leads {
			if m.clock()-m.ticked > 3*tick {
				if _, ok := m.index(ctx, requestLimit); !ok || !m.leads {
					return 0, rpctypes.ErrGRPCLeaderChanged
				}
			}
			if ttl, ok := m.refresh(ctx, id); ok {
				return ttl, nil
			}
			continue
		}
		if ttl, ok := m.ask(ctx, id, time.Until(end)); ok {
			return ttl, nil
		}
		m.until(ctx, 50*time.Millisecond, func() bool { return false })
	}
	return 0, rpctypes.ErrGRPCTimeout
}

// refresh is the leader's part of a renewal. A lease whose time is over is not saved: its end is
// waited for. False: m leads no more.
func (m *member) refresh(ctx context.Context, id int64) (int64, bool) {
	l, at := m.st.leases[id], m.expiry[id]
	switch {
	case !m.primary:
		return 0, false
	case l == nil:
		return 0, true
	case m.clock() >= at:
		m.until(ctx, requestLimit, func() bool { return !m.primary || m.st.leases[id] == nil })
		return 0, m.primary && m.st.leases[id] == nil
	}
	if m.deposed() {
		m.c.stats.StaleRenewal++
	}
	m.expiry[id] = m.clock() + time.Duration(l.ttl)*time.Second
	return l.ttl, true
}

// ask forwards a renewal to whom m takes for the leader, which does not make sure that it is.
func (m *member) ask(ctx context.Context, id int64, limit time.Duration) (ttl int64, ok bool) {
	if m.lead < 0 {
		return 0, false
	}
	lead, answered := m.c.members[m.lead], false
	m.c.send(m, lead, "", func() {
		go func() {
			m.c.mu.Lock()
			defer m.c.mu.Unlock()
			if !lead.gate() {
				return
			}
			t, renewed := lead.refresh(ctx, id)
			m.c.send(lead, m, "", func() { ttl, ok, answered = t, renewed, true; m.note() })
		}()
	})
	m.until(ctx, limit, func() bool { return answered })
	return ttl, ok && answered
}
