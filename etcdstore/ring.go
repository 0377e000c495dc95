package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
)

const (
	// callLimit bounds one attempt at one member. A frozen member costs every caller this much once, then the ring
	// has moved on.
	callLimit = 2 * time.Second
	// patience is how long a member must have been silent before a call that ended blames it. A caller with a shorter
	// deadline says nothing about the member.
	patience = 200 * time.Millisecond
)

// ring is the cluster's members, one of which all calls go to. When it fails, everybody moves on: with a balancer, one
// frozen member of three would swallow every third call.
type ring struct {
	client *clientv3.Client

	mu      sync.Mutex
	members []*member
	current *member
	retired map[*grpc.ClientConn]*time.Timer // connections left behind, which end when their timers do
	closed  bool
}

// member is one endpoint with its own connection.
type member struct {
	endpoint string
	conn     *grpc.ClientConn
	failed   time.Time // when it failed last; zero: never
	stale    bool      // it failed since it was dialled
	heard    time.Time // when it answered last
}

// link is a member to call, with the connection as it stands.
type link struct {
	*member
	conn *grpc.ClientConn
}

// name returns the endpoint as people write it.
func (m *member) name() string {
	_, host, ok := strings.Cut(m.endpoint, "://")
	if !ok {
		return m.endpoint
	}
	return host
}

// sync takes over the client's endpoints, which the user may change while we run.
func (r *ring) sync() {
	eps := r.client.Endpoints()
	if slices.EqualFunc(r.members, eps, func(m *member, ep string) bool { return m.endpoint == ep }) || len(eps) == 0 {
		return
	}
	var members []*member
	for _, ep := range eps {
		i := slices.IndexFunc(r.members, func(m *member) bool { return m.endpoint == ep })
		if i >= 0 {
			members = append(members, r.members[i])
			continue
		}
		members = append(members, &member{endpoint: ep})
	}
	for _, m := range r.members {
		if !slices.Contains(members, m) {
			r.retire(m)
		}
	}
	r.members = members
	if !slices.Contains(members, r.current) {
		r.current = members[0]
	}
}

// retire closes a member's connection once every call on it has had its time, or when the ring is closed. The caller holds the lock.
func (r *ring) retire(m *member) {
	conn := m.conn
	if m.conn = nil; conn == nil {
		return
	}
	if r.retired == nil {
		r.retired = map[*grpc.ClientConn]*time.Timer{}
	}
	r.retired[conn] = time.AfterFunc(2*callLimit, func() {
		r.mu.Lock()
		delete(r.retired, conn)
		r.mu.Unlock()
		conn.Close()
	})
}

// use returns the member to call now. It does not block: gRPC connects in the background, the call waits.
func (r *ring) use() (link, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return link{}, errClosed
	}
	r.sync()
	m := r.current
	if m.stale {
		// A new connection, for the old one may hang in gRPC's backoff (up to two minutes) or in a dead TCP flow.
		r.retire(m)
	}
	if m.conn == nil {
		// Dial takes credentials, TLS, token interceptors and dial options from the client.
		conn, err := r.client.Dial(m.endpoint)
		if err != nil {
			return link{}, fmt.Errorf("etcd %s: dial: %w", m.name(), err)
		}
		m.conn, m.stale = conn, false
	}
	return link{m, m.conn}, nil
}

// leave moves everybody on from a member that failed, to the one whose last failure is longest ago.
func (r *ring) leave(l link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.member.conn == l.conn {
		l.stale, l.failed = true, time.Now()
	}
	if r.current != l.member {
		return // somebody else moved on already
	}
	at := slices.Index(r.members, r.current)
	for i := 1; i < len(r.members); i++ {
		m := r.members[(at+i)%len(r.members)]
		if r.current == l.member || m.failed.Before(r.current.failed) {
			r.current = m
		}
	}
}

// beside returns another member than l's, the one whose last failure is longest ago, for a call that must not wait for one member alone. Everybody else
// stays where they are. It reports false if there is none.
func (r *ring) beside(l link) (link, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.Index(r.members, l.member)
	if r.closed || at < 0 {
		return link{}, false
	}
	var best *member
	for i := 1; i < len(r.members); i++ {
		if m := r.members[(at+i)%len(r.members)]; best == nil || m.failed.Before(best.failed) {
			best = m
		}
	}
	if best == nil {
		return link{}, false
	}
	if best.stale {
		r.retire(best)
	}
	if best.conn == nil {
		conn, err := r.client.Dial(best.endpoint)
		if err != nil {
			return link{}, false
		}
		best.conn, best.stale = conn, false
	}
	return link{best, best.conn}, true
}

// left reports whether the ring has moved on from l.
func (r *ring) left(l link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current != l.member
}

// endpoints names all members, for errors that no single one is to blame for.
func (r *ring) endpoints() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, m := range r.members {
		names = append(names, m.name())
	}
	return strings.Join(names, ", ")
}

// size returns how many members there are.
func (r *ring) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.members)
}

// close ends all connections, also those left behind.
func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, m := range r.members {
		if m.conn != nil {
			m.conn.Close()
		}
	}
	for conn, end := range r.retired {
		end.Stop()
		conn.Close()
	}
	clear(r.retired)
}

// rpc is one call on one connection.
type rpc func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error

// call does fn at the current member, and where that fails, once at each other one while ctx lives: fn must be safe to
// repeat. Doubt says that some attempt may have been executed, or may be executed later, though call failed or a later
// attempt succeeded.
func (s *Store) call(ctx context.Context, verb string, fn rpc) (doubt bool, err error) {
	o := s.rounds(ctx, fn)
	return o.doubt, s.told(ctx, verb, o)
}

// told returns the error of a call in words for people, to the caller whose context ctx is.
func (s *Store) told(ctx context.Context, verb string, o outcome) error {
	switch {
	case o.err == nil:
		return nil
	case o.at.member == nil:
		return fmt.Errorf("etcd: %s: %w", verb, o.err)
	case o.untrusted:
		return fmt.Errorf("etcd %s: %s: %w: %w: %s", s.ring.endpoints(), verb, driver.ErrRefused, errTLS, tlsReason(o.err))
	}
	return wrap(ctx, o.at.name(), verb, o.err)
}

// outcome is how a call ended.
type outcome struct {
	at        link  // the last member asked; none if there was none to ask
	doubt     bool  // see call
	untrusted bool  // no member's certificate was accepted, or none accepted ours
	err       error // of the last attempt, as gRPC has it
}

// rounds is call without words for people.
func (s *Store) rounds(ctx context.Context, fn rpc) (o outcome) {
	var unsure atomic.Bool
	// The client's interceptor repeats calls by itself; this hook sees every single one.
	watch := grpc.OnFinish(func(err error) {
		if err != nil && !definite(err) {
			unsure.Store(true)
		}
	})
	defer func() { o.doubt = unsure.Load() }()
	bad, tries := 0, 0 // attempts that ended in a TLS error, and all
	for left := s.ring.size() + 1; ; left-- {
		tries++
		l, err := s.ring.use()
		if err != nil {
			return outcome{err: err}
		}
		err = s.attempt(ctx, l, fn, watch)
		if err == nil {
			return outcome{at: l}
		}
		if tlsReason(err) != "" {
			bad++
		}
		if ctx.Err() == nil && elsewhere(err) && left > 1 {
			continue
		}
		// Not untrusted after an attempt whose outcome is unknown.
		return outcome{at: l, untrusted: bad == tries && bad >= s.ring.size(), err: err}
	}
}

// attempt does fn at one member under the limit of one attempt, and leaves the member where it is to blame.
func (s *Store) attempt(ctx context.Context, l link, fn rpc, opts ...grpc.CallOption) error {
	start := time.Now() // on the clock that ctx runs on, which stands still while the machine is suspended
	actx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := fn(actx, l.conn, append(opts, bigAnswers)...)
	if err == nil {
		s.ring.alive(l)
	}
	if err != nil && s.blame(ctx, err, time.Since(start)) {
		s.ring.leave(l)
	}
	return err
}

// blame reports whether err, after so much time, is the member's fault.
func (s *Store) blame(ctx context.Context, err error, took time.Duration) bool {
	if s.ctx.Err() != nil || ctx.Err() == context.Canceled {
		return false
	}
	if ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded {
		return took >= patience
	}
	return elsewhere(err)
}

// bigAnswers lifts gRPC's limit of 4 MiB on an answer: a long line with large values has more.
var bigAnswers = grpc.MaxCallRecvMsgSize(1<<31 - 1)
