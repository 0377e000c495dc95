package zkstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// link is one ZooKeeper session, over whatever connections. A session that ended never comes back.
type link struct {
	store    *Store
	silence  time.Duration // for how long a server may say nothing before another one is tried
	own      bool          // of calls that belong to no lease
	rotation *rotation
	watches  watches
	zxid     atomic.Int64  // the largest that an answer had, on any connection
	count    atomic.Uint32 // of requests, on all connections

	mu      sync.Mutex
	session session
	gen     uint64        // connections that have had the session
	began   time.Duration // when the last of them asked for the session
	present *conn         // nil: none
	lost    time.Duration // when the last of them was lost
	up      chan struct{} // closed while there is a present connection

	ctx    context.Context // ended once the session is over for us; its cause says why
	cancel context.CancelCauseFunc
}

// newLink begins a session with that timeout, which leaves servers that are silent for so long; own
// if it is for calls that belong to no lease. It does not wait for it. The caller has counted it in
// Store.work.
func newLink(s *Store, timeout, silence time.Duration, own bool) *link {
	l := &link{store: s, silence: silence, own: own,
		up: make(chan struct{}), watches: watches{all: map[string]*watch{}},
		session: session{timeout: (timeout + time.Millisecond - 1).Truncate(time.Millisecond)}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.rotation = newRotation(s.servers.all, l.ctx.Done())
	go l.run()
	return l
}

// run keeps the session connected, until it is over.
func (l *link) run() {
	defer l.store.work.Done()
	for !l.over() {
		addr, again := l.rotation.next()
		if err := l.connect(addr, again); err != nil {
			l.rotation.failed(addr, err)
			l.lapse()
		} else {
			l.rotation.found()
		}
	}
}

// connect keeps the session connected to one server, until that connection is lost. It returns an
// error if there was none, one that was lost at once, or one by which nothing came: the next try
// then comes after a pause. Otherwise a server that gives the session and drops the connection
// would be asked thousands of times a second, and servers that give it but cannot write, as without
// a quorum, would have all their clients move from one to the next in step.
func (l *link) connect(addr string, again bool) error {
	c, err := l.dial(addr, again)
	if err != nil {
		return err
	}
	if again {
		c.silence = 2*l.silence + rand.N(l.silence) // no server has answered: it may be all that they can do
	}
	began := now()
	c.serve()
	l.mu.Lock()
	l.present, l.up, l.lost = nil, make(chan struct{}), now()
	l.mu.Unlock()
	if now()-began < 50*time.Millisecond || c.heard.Load() == 0 {
		return errLost
	}
	return nil
}

// lapse ends the session of calls that belong to no lease when it has had no connection for longer
// than the servers keep it. They may never say that it has ended: those that came back with less
// than it has seen, empty or from an older snapshot, refuse it without an answer, and all calls
// would wait for ever. It holds nothing, so they go on in another one. A lease's session stays:
// what it holds may stand for as long as its servers are away, and it is not renewed meanwhile.
func (l *link) lapse() {
	l.mu.Lock()
	over := l.own && l.gen > 0 && now()-l.lost > l.session.timeout
	l.mu.Unlock()
	if over {
		l.end(errOwnEnded, false)
	}
}

// dial connects to a server, which takes 2 s at most. While each server is tried for the first time
// since the connection was lost, one that is silent is left after [link.silence], for the time that
// the session has is running. Who has tried all of them gives them more: on a busy machine, or with
// TLS, it may be that none answers so soon. And a new session has no time to lose.
func (l *link) dial(addr string, again bool) (*conn, error) {
	limit := handshakes
	if gen, _, _ := l.generation(); gen > 0 && !again {
		limit = min(limit, l.silence)
	}
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	c, err := l.store.servers.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	stop := context.AfterFunc(l.ctx, func() { c.Close() })
	defer stop()
	joined, err := l.join(c)
	if err != nil {
		c.Close()
	}
	return joined, err
}

// join asks for the session on a new connection, and makes that the present one.
func (l *link) join(nc net.Conn) (*conn, error) {
	l.mu.Lock()
	known := l.session
	l.mu.Unlock()
	asked := now()
	got, err := known.ask(nc, l.zxid.Load())
	if err != nil {
		return nil, err
	}
	switch {
	case known.id == 0 && got.id == 0:
		return nil, errNoSession
	case known.id != 0 && got.id != known.id: // nothing of the session lives in another
		l.end(l.gone(), false)
		return nil, l.gone()
	}
	_ = nc.SetDeadline(time.Time{})
	c := newConn(nc, l, got.timeout)
	if user := l.store.config.Username; user != "" { // before any call: that would be refused
		c.send(authOp(user, l.store.config.Password).frame(authNumber))
	}
	// No watch outlives its connection: who watches looks again.
	l.watches.fireAll()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over() {
		return nil, l.reason()
	}
	l.session, l.present, l.began = got, c, asked
	l.gen++
	close(l.up)
	return c, nil
}

// errOwnEnded says that the session of calls that belong to no lease has ended. It is not final: of
// what they ask about, nothing has ended with it.
var errOwnEnded = errors.New("the session in which the store was asked has ended")

// gone is why the link is over when the servers have ended its session.
func (l *link) gone() error {
	if l.own {
		return errOwnEnded
	}
	return driver.ErrGone
}

// over says whether the session is over for us.
func (l *link) over() bool { return l.ctx.Err() != nil }

// wait waits until c is closed, and returns an error if ctx or the link ended before.
func (l *link) wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return l.reason()
	}
}

// reason returns why the link is over, nil if it is not.
func (l *link) reason() error { return context.Cause(l.ctx) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// ready returns the connection, as soon as there is one.
func (l *link) ready(ctx context.Context) (*conn, error) {
	for {
		l.mu.Lock()
		c, up := l.present, l.up
		l.mu.Unlock()
		if c != nil && !l.over() {
			return c, ctx.Err()
		}
		if err := l.wait(ctx, up); err != nil && ctx.Err() != nil {
			return nil, l.rotation.explain(ctx.Err())
		} else if err != nil {
			return nil, err
		}
	}
}

// generation returns the number of the connection, and what is known of it.
func (l *link) generation() (gen uint64, began, timeout time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gen, l.began, l.session.timeout
}

// id returns the session as names of nodes show it.
func (l *link) id() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%016x", uint64(l.session.id))
}

// end makes the link useless at once, for that reason. With closing the servers are asked to end
// the session, if they can be reached; otherwise they end it when they have heard nothing for its
// timeout.
func (l *link) end(why error, closing bool) {
	l.mu.Lock()
	if l.over() {
		l.mu.Unlock()
		return
	}
	l.cancel(why)
	c := l.present
	l.mu.Unlock()
	switch {
	case c != nil && closing:
		go c.endSession()
	case c != nil:
		c.lose()
	}
	l.watches.fireAll()
	l.store.mu.Lock()
	delete(l.store.links, l)
	l.store.mu.Unlock()
}

// maxRequest is ZooKeeper's own limit.
const maxRequest = 1 << 20

// request does a request and returns the body of its answer. One that is given up may still be
// done, as the port allows. What makes claims is never given up (see [entry]).
func (l *link) request(ctx context.Context, o op) ([]byte, error) {
	c, err := l.ready(ctx)
	if err != nil {
		return nil, err
	}
	if len(o.body) > maxRequest {
		return nil, fmt.Errorf("too large for one request: %w", driver.ErrRefused)
	}
	frame, answer := c.begin(o)
	if ctx.Done() == nil {
		c.send(frame)
	} else {
		go c.send(frame) // for it waits where the network takes nothing, which knows no context
	}
	select {
	case r := <-answer:
		if l.over() && errors.Is(r.err, errLost) {
			return nil, l.reason()
		}
		return r.body, l.translate(r.err)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, l.reason()
	}
}

// pause waits a little between two tries of what must be done, and says whether to go on.
func (l *link) pause(try int) bool {
	select {
	case <-time.After(storeutil.Backoff(try, 20*time.Millisecond, time.Second)):
		return true
	case <-l.ctx.Done():
		return false
	}
}

// now is the clock by which calls are timed: it counts suspended time.
func now() time.Duration { return boottime.Now() }
