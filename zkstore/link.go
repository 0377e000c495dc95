package zkstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// link is one ZooKeeper session, whatever connections it comes by. A session that ended never
// comes back: go-zookeeper would begin another one on the same value, in which requests that still
// wait would be done, so its dialer is closed first.
type link struct {
	store    *Store
	conn     *zk.Conn
	rotation *rotation
	watches  watches
	zxid     atomic.Int64  // the largest that an answer had, on any connection
	count    atomic.Uint32 // of requests of ours, on all connections

	mu      sync.Mutex
	sid     int64         // 0: no session yet
	timeout time.Duration // as the present connection negotiated it
	gen     uint64        // connections begun
	began   time.Duration // when the present connection asked for the session
	up      chan struct{} // closed while connected
	isUp    bool
	has     bool // it has its session on the present connection
	authed  bool // user and password were taken
	mute    bool // nothing is sent any more
	present *wire

	dead chan struct{} // closed once the session is over for us
	why  error         // why, set before dead is closed
	// What hear has heard: nobody reads it until the end, so that no goroutine wakes for each
	// (go-zookeeper drops what finds no room). It is closed when nothing of the connection runs any
	// more.
	events <-chan zk.Event
}

// newLink opens a session with that timeout. It does not wait for it.
func newLink(s *Store, timeout time.Duration) (*link, error) {
	l := &link{store: s, up: make(chan struct{}), dead: make(chan struct{}), watches: watches{all: map[string]*watch{}}}
	l.rotation = newRotation(s.servers.all, l.dead)
	built := make(chan struct{})
	dial := func(_, addr string, _ time.Duration) (net.Conn, error) {
		<-built
		return l.dial(addr)
	}
	conn, events, err := zk.Connect(s.servers.all, (timeout + time.Millisecond - 1).Truncate(time.Millisecond),
		zk.WithDialer(dial), zk.WithHostProvider(l.rotation), zk.WithLogger(silent{}), zk.WithLogInfo(false),
		zk.WithEventCallback(l.hear), zk.WithMaxConnBufferSize(sendBuffer))
	if err != nil {
		return nil, fmt.Errorf("ZooKeeper at %s: %w", s.servers, err)
	}
	l.conn, l.events = conn, events
	close(built)
	return l, nil
}

// silent is what go-zookeeper logs to.
type silent struct{}

func (silent) Printf(string, ...any) {}

// sendBuffer is how large a request may be, with some room for what is around values; ZooKeeper's
// own limit is 1 MiB.
const sendBuffer = 1 << 20

// dial opens a connection to one server, for go-zookeeper.
func (l *link) dial(addr string) (net.Conn, error) {
	l.mu.Lock()
	l.gen++
	if l.mute || l.over() {
		l.mu.Unlock()
		return nil, errClosed
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), handshakes)
	defer cancel()
	c, err := l.store.servers.connect(ctx, addr)
	if err != nil {
		l.rotation.failed(addr, err)
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute {
		c.Close()
		return nil, errClosed
	}
	l.present = newWire(c, l)
	return l.present, nil
}

// hear is called with all events, in their order, by the goroutine that reads the connection: it
// must not block.
func (l *link) hear(ev zk.Event) {
	switch {
	case ev.Type != zk.EventSession:
		l.watches.event(ev)
	case ev.State == zk.StateHasSession:
		l.connected()
	case ev.State == zk.StateExpired:
		l.end(driver.ErrGone, false)
	case ev.State == zk.StateDisconnected, ev.State == zk.StateConnecting:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.has = false
		if l.isUp {
			l.isUp, l.up = false, make(chan struct{})
		}
	}
}

// connected notes that the connection has its session. Another session than before is not ours:
// nothing of the old one lives in it.
func (l *link) connected() {
	l.mu.Lock()
	sid, timeout := l.present.session()
	if l.sid != 0 && l.sid != sid {
		l.mu.Unlock()
		l.end(driver.ErrGone, false)
		return
	}
	l.mu.Unlock()
	// Who watches looks again. go-zookeeper knows of no watches: it would set them again as of the
	// last answer it had, while another answer may arrive.
	l.watches.fireAll()
	l.mu.Lock()
	l.sid, l.timeout, l.began, l.has = sid, timeout, l.present.asked, true
	switch {
	case l.store.config.Username == "":
		l.raiseLocked()
	case !l.authed:
		go l.login(l.gen)
	}
	l.mu.Unlock()
	l.rotation.found()
}

// raiseLocked lets calls through. The caller holds mu.
func (l *link) raiseLocked() {
	if !l.isUp && !l.mute {
		l.isUp = true
		close(l.up)
	}
}

// loggedIn lets calls through to a connection of ours on which go-zookeeper has logged in again: a
// request of ours that overtook that would be refused.
func (l *link) loggedIn(w *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.present == w && l.has && l.authed {
		l.raiseLocked()
	}
}

// login sends our user and password on the first connection; go-zookeeper does so on later ones,
// before anything else.
func (l *link) login(gen uint64) {
	c := l.store.config
	if l.conn.AddAuth("digest", []byte(c.Username+":"+c.Password)) != nil {
		return // the connection was lost: the next one begins anew
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.authed = true
	if l.gen == gen && l.has {
		l.raiseLocked()
	}
}

// over says whether the session is over for us.
func (l *link) over() bool { return isClosed(l.dead) }

// wait waits until c is closed, and returns an error if ctx or the link ended before.
func (l *link) wait(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.dead:
		return l.why
	}
}

// reason returns why the link is over, nil if it is not.
func (l *link) reason() error {
	if l.over() {
		return l.why
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// isMute says whether nothing may be sent any more.
func (l *link) isMute() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mute
}

// ready waits until the link has its session and a connection, and its credentials were sent.
func (l *link) ready(ctx context.Context) error {
	for {
		l.mu.Lock()
		up, ok := l.up, l.isUp
		l.mu.Unlock()
		if ok && !l.over() {
			return ctx.Err()
		}
		if err := l.wait(ctx, up); err != nil && ctx.Err() != nil {
			return l.rotation.explain(ctx.Err())
		} else if err != nil {
			return err
		}
	}
}

// generation returns the number of the present connection, and what is known of it.
func (l *link) generation() (gen uint64, began, timeout time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gen, l.began, l.timeout
}

// id returns the session as names of nodes show it.
func (l *link) id() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%016x", uint64(l.sid))
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
	l.why = why
	close(l.dead)
	l.mute = !closing
	present := l.present
	l.mu.Unlock()
	l.watches.fireAll()
	if !closing && present != nil {
		_ = present.Close()
	}
	l.store.mu.Lock()
	delete(l.store.links, l)
	l.store.mu.Unlock()
	go l.cleanUp()
}

// cleanUp ends all that runs for the link.
func (l *link) cleanUp() {
	defer l.store.work.Done()
	l.conn.Close() // waits a second at most for the servers' answer
	l.mu.Lock()
	l.mute = true
	present := l.present
	l.mu.Unlock()
	if present != nil {
		_ = present.Close()
	}
	late := time.After(5 * time.Second)
	for more := true; more; {
		select {
		case _, more = <-l.events:
		case <-late: // go-zookeeper is not to keep us from closing
			more = false
		}
	}
}

// call does one request of go-zookeeper's. These know no context: one that is given up may still
// be done, as the port allows, unless f makes something. The caller makes things only in calls
// that it never gives up (see [entry]).
func call[T any](ctx context.Context, l *link, f func(c *zk.Conn) (T, error)) (T, error) {
	var got T
	if err := l.ready(ctx); err != nil {
		return got, err
	}
	if ctx.Done() == nil { // the end of the link ends it too: go-zookeeper answers all that waits when it is closed
		got, err := f(l.conn)
		if err != nil && l.over() {
			return got, l.why
		}
		return got, l.translate(err)
	}
	done := make(chan struct{})
	var answer T
	var err error
	go func() {
		defer close(done)
		answer, err = f(l.conn)
	}()
	if why := l.wait(ctx, done); why != nil {
		return got, why
	}
	return answer, l.translate(err)
}

// request does a request of ours (see [ownRequests]).
func (l *link) request(ctx context.Context, packet []byte) ([]byte, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	w, ok := l.present, l.isUp
	l.mu.Unlock()
	if !ok {
		return nil, errLost
	}
	answer := w.own.begin(packet)
	if ctx.Done() == nil {
		w.sendOwn(packet)
	} else {
		go w.sendOwn(packet) // for it waits where the network takes nothing, which knows no context
	}
	select {
	case r := <-answer:
		return r.body, l.translate(r.err)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.dead:
		return nil, l.why
	}
}

// translate turns what is final into the port's errors, and leaves the rest: it is unknown.
func (l *link) translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrSessionExpired):
		l.end(driver.ErrGone, false)
		return driver.ErrGone
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("no permission (%w): check user, password and the ACLs below %s: %w",
			err, l.store.root, driver.ErrRefused)
	case errors.Is(err, zk.ErrShortBuffer):
		return fmt.Errorf("too large for one request: %w", driver.ErrRefused)
	}
	return err
}

// pause waits a little between two tries of what must be done, and says whether to go on.
func (l *link) pause(try int) bool {
	select {
	case <-time.After(storeutil.Backoff(try, 20*time.Millisecond, time.Second)):
		return true
	case <-l.dead:
		return false
	}
}

// now is the clock by which calls are timed: it counts suspended time.
func now() time.Duration { return boottime.Now() }
