package etcdwire

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	// CallLimit bounds one attempt at one member. A frozen member costs every caller this much
	// once.
	CallLimit = 2 * time.Second
	// BlameAfter is how long a member must be silent before a call that ends blames it. A caller
	// with a shorter deadline says nothing about the member.
	BlameAfter = 200 * time.Millisecond
	// lastSign is how long a member that all calls have left may give no sign until the calls that
	// are still under way there end too. Without that each would wait for its whole CallLimit, as
	// those do whose member was dialled anew meanwhile: a call there may just be slow.
	lastSign = 300 * time.Millisecond
)

// Members is the cluster's members. Calls go to the current one. When it fails, all go to another:
// with a balancer, one frozen member of three would swallow every third call.
type Members struct {
	client *clientv3.Client
	ctx    context.Context // ends with the Wire
	// Called when calls go to another member from now on, without the lock. Nil: nobody asks.
	moved func()

	mu      sync.Mutex // guards what follows, and the fields of each member
	members []*member
	current *member
	retired map[*grpc.ClientConn]*time.Timer // connections left behind, which end when their timers do
	closed  bool
}

// member is one endpoint with its own connection. Members.mu guards it.
type member struct {
	endpoint string
	conn     *grpc.ClientConn
	life     context.Context // of the calls on conn: end ends them
	end      context.CancelFunc
	failed   time.Time // when it failed last; zero: never
	stale    bool      // it failed since it was dialled: it is dialled anew for the next call
	heard    time.Time // when it answered last
}

// MemberConn is a member to call, with the connection as it stands.
type MemberConn struct {
	member *member // its fields are guarded by Members.mu: the connection may be another one by now
	Conn   *grpc.ClientConn
	life   context.Context // of conn: ends once all calls go elsewhere and the member gives no sign (lastSign)
}

// Host returns the endpoint as people write it.
func (c MemberConn) Host() string { return HostOf(c.member.endpoint) }

// HostOf returns an endpoint as people write it.
func HostOf(endpoint string) string {
	if _, host, ok := strings.Cut(endpoint, "://"); ok {
		return host
	}
	return endpoint
}

// syncLocked takes over the client's endpoints, which may change.
func (ms *Members) syncLocked() {
	eps := ms.client.Endpoints()
	if slices.EqualFunc(ms.members, eps, func(m *member, ep string) bool { return m.endpoint == ep }) || len(eps) == 0 {
		return
	}
	var members []*member
	for _, ep := range eps {
		i := slices.IndexFunc(ms.members, func(m *member) bool { return m.endpoint == ep })
		if i >= 0 {
			members = append(members, ms.members[i])
			continue
		}
		members = append(members, &member{endpoint: ep})
	}
	for _, m := range ms.members {
		if !slices.Contains(members, m) {
			ms.retireLocked(m)
		}
	}
	ms.members = members
	if !slices.Contains(members, ms.current) {
		ms.current = members[0]
	}
}

// retireLocked takes a member's connection away, and closes it once every call on it has had its
// time.
func (ms *Members) retireLocked(m *member) {
	conn, end := m.conn, m.end
	if m.conn = nil; conn == nil {
		return
	}
	if ms.retired == nil {
		ms.retired = map[*grpc.ClientConn]*time.Timer{}
	}
	ms.retired[conn] = time.AfterFunc(2*CallLimit, func() {
		ms.mu.Lock()
		delete(ms.retired, conn)
		ms.mu.Unlock()
		end()
		conn.Close()
	})
}

// Current returns the member to call now. It does not block: gRPC connects in the background. An
// endpoint that cannot even be dialled (a plain one, where the user's credentials ask for TLS) is
// left for another. The error says that none can be dialled.
func (ms *Members) Current() (MemberConn, error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.closed {
		return MemberConn{}, ErrClosed
	}
	ms.syncLocked()
	conn, err := ms.connectLocked(ms.current)
	for range len(ms.members) - 1 {
		if err == nil {
			break
		}
		ms.current = ms.otherLocked(ms.current)
		conn, err = ms.connectLocked(ms.current)
	}
	return conn, err
}

// connectLocked returns a member with its connection, dialled where there is none.
func (ms *Members) connectLocked(m *member) (MemberConn, error) {
	if m.stale {
		// The old connection may hang in gRPC's backoff (up to two minutes) or in a dead TCP flow.
		ms.retireLocked(m)
	}
	if m.conn == nil {
		// Dial takes credentials, TLS, token interceptors and dial options from the client.
		conn, err := ms.client.Dial(m.endpoint)
		if err != nil {
			m.failed = time.Now()
			return MemberConn{}, fmt.Errorf("etcd %s: dial: %w", HostOf(m.endpoint), err)
		}
		m.conn, m.stale = conn, false
		m.life, m.end = context.WithCancel(ms.ctx)
	}
	return MemberConn{m, m.conn, m.life}, nil
}

// FailOver moves all calls from a member that failed to the one whose last failure is longest ago.
func (ms *Members) FailOver(c MemberConn) {
	if ms.leave(c) && ms.moved != nil {
		ms.moved()
	}
}

// leave is FailOver without the call of moved. It reports whether calls go to another member from
// now on.
func (ms *Members) leave(c MemberConn) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if c.member.conn != c.Conn {
		return false // an earlier connection: it says nothing of the present one
	}
	c.member.stale, c.member.failed = true, time.Now()
	if ms.current != c.member {
		return false // somebody else moved on already
	}
	m := ms.otherLocked(c.member)
	if m == nil {
		return false
	}
	ms.current = m
	left, end := c.member.failed, c.member.end
	time.AfterFunc(lastSign, func() {
		ms.mu.Lock()
		defer ms.mu.Unlock()
		if c.member.conn == c.Conn && c.member.heard.Before(left) {
			end()
		}
	})
	return true
}

// otherLocked returns another member than m: the one whose last failure is longest ago. It returns
// nil if there is none.
func (ms *Members) otherLocked(m *member) (best *member) {
	at := slices.Index(ms.members, m)
	for i := 1; i < len(ms.members); i++ {
		if o := ms.members[(at+i)%len(ms.members)]; best == nil || o.failed.Before(best.failed) {
			best = o
		}
	}
	return best
}

// Other returns another member than c's, the one whose last failure is longest ago, for a call
// that must not wait for one member alone. It reports false if there is none.
func (ms *Members) Other(c MemberConn) (MemberConn, bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	best := ms.otherLocked(c.member)
	if ms.closed || best == nil || !slices.Contains(ms.members, c.member) {
		return MemberConn{}, false
	}
	c, err := ms.connectLocked(best)
	return c, err == nil
}

// FailedOver reports whether calls go to another member than c's by now.
func (ms *Members) FailedOver(c MemberConn) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.current != c.member
}

// Endpoints names all members, for errors that no single one is to blame for.
func (ms *Members) Endpoints() string {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	var names []string
	for _, m := range ms.members {
		names = append(names, HostOf(m.endpoint))
	}
	return strings.Join(names, ", ")
}

func (ms *Members) size() int {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.syncLocked()
	return len(ms.members)
}

// alive notes that a member has answered on that connection.
func (ms *Members) alive(c MemberConn) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if c.member.conn == c.Conn {
		c.member.heard = time.Now()
	}
}

// silent returns for how long a member has not answered on that connection.
func (ms *Members) silent(c MemberConn) time.Duration {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if c.member.conn != c.Conn || c.member.heard.IsZero() {
		return time.Duration(1<<63 - 1)
	}
	return time.Since(c.member.heard)
}

// NoteFailure notes that a member failed just now: the next calls of Other prefer other members.
func (ms *Members) NoteFailure(c MemberConn) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	c.member.failed = time.Now()
}

// close ends all connections, also those left behind.
func (ms *Members) close() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.closed = true
	for _, m := range ms.members {
		if m.conn != nil {
			m.conn.Close()
		}
	}
	for conn, end := range ms.retired {
		end.Stop()
		conn.Close()
	}
	clear(ms.retired)
}
