package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"
)

const (
	poll      = 50 * time.Millisecond // how often a joiner tries for the lock, and a host looks after its directory
	openLimit = 15 * time.Second      // how long Open waits for a host that does not answer
	stopLimit = 5 * time.Second       // how long Close waits for etcd
	retryWait = time.Second           // between attempts to take over that failed cleanly

	brokenLimit = 500 * time.Millisecond // how long for an etcd that broke, which seldom ends
)

// Options of [Open]. The zero value works.
type Options struct {
	Logger *slog.Logger // gets take-overs and failures; nil: nobody does

	quota int64 // of the data, in bytes; 0: maxData. For tests.
}

// Node is this process's share in the store of a directory: its host, or one of those that would
// take over. It is safe for concurrent use.
type Node struct {
	dir    *dir
	lock   *lock
	log    *slog.Logger
	quota  int64
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned, and etcd has stopped
	gone   chan struct{} // of Done
	leave  func()        // closes it

	mu      sync.Mutex
	hosting bool
	failed  error // why the node ended by itself
	stuck   error // etcd did not stop
}

// Open joins the store in directory path, or starts it there, and returns once it answers. The
// directory and its parents are made if they do not exist. When ctx ends, or after 15 s without an
// answer, Open gives up and leaves nothing running. Its errors are one line that says what is wrong
// with the directory and what to do; nothing in it is changed then.
func Open(ctx context.Context, path string, o Options) (*Node, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.quota == 0 {
		o.quota = maxData
	}
	d, err := openDir(path)
	if err != nil {
		return nil, err
	}
	l, err := openLock(d.path(lockName))
	if err != nil {
		d.close()
		return nil, d.unusable(err)
	}
	life, cancel := context.WithCancel(context.Background())
	n := &Node{dir: d, lock: l, log: o.Logger.With("store", "embedded:"+d.name), quota: o.quota, cancel: cancel,
		ended: make(chan struct{}), gone: make(chan struct{})}
	n.leave = sync.OnceFunc(func() { close(n.gone) })
	h, err := n.join(ctx)
	if err != nil {
		cancel()
		l.close() // with an etcd that did not stop, its own file locks still keep others out
		d.close()
		return nil, err
	}
	n.set(func() { n.hosting = h != nil })
	go n.run(life, h)
	return n, nil
}

// join returns when the store answers: with the host if this process became it, or nil if another
// one hosts.
func (n *Node) join(ctx context.Context) (*host, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openLimit, errSilent)
	defer cancel()
	answered := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	probing, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() {
		if awaitAnswer(probing, n.Endpoint()) {
			close(answered)
		}
	})
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		// The lock first: whoever holds it need not ask anybody, and a socket without a host never
		// answers.
		if ok, err := n.lock.try(); err != nil {
			return nil, n.dir.unusable(err)
		} else if ok {
			stop()
			return n.host(ctx)
		}
		select {
		case <-answered:
			return nil, nil
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errSilent) {
				return nil, fmt.Errorf("embedded store %s: process %s hosts it but has not answered for %v: "+
					"continue it if it is stopped (kill -CONT), else end it", n.dir.name, n.lock.holder(), openLimit)
			}
			return nil, fmt.Errorf("embedded store %s: waiting for process %s, which hosts it: %w",
				n.dir.name, n.lock.holder(), context.Cause(ctx))
		}
	}
}

// errSilent tells our own limit from the caller's.
var errSilent = errors.New("no answer")

// host starts etcd under the lock, which it gives back on failure.
func (n *Node) host(ctx context.Context) (*host, error) {
	err := n.dir.claim()
	if err == nil {
		err = n.lock.sign()
	}
	if err != nil {
		n.lock.release()
		return nil, n.dir.unusable(err)
	}
	h, err := startHost(ctx, n.dir, n.quota)
	if err != nil {
		n.lock.release()
		return nil, err
	}
	return h, nil
}

// run is the node's goroutine until Close: it hosts the store, or tries to take it over.
func (n *Node) run(ctx context.Context, h *host) {
	defer close(n.ended)
	if h == nil {
		if h = n.takeOver(ctx); h == nil {
			return
		}
	}
	if err := n.watch(ctx, h); err != nil {
		n.fail(err) // before stop, which may take long
	}
	if err := h.stop(); err != nil {
		// etcd still has its files open. Keep the lock, so that nobody waits for them in vain.
		n.set(func() { n.hosting, n.stuck = false, fmt.Errorf("embedded store %s: %w", n.dir.name, err) })
		return
	}
	n.lock.release()
	n.set(func() { n.hosting = false })
}

// takeOver tries for the lock until it hosts. It returns nil when ctx ends or the node failed.
func (n *Node) takeOver(ctx context.Context) *host {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var warned string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		ok, err := n.lock.try()
		if err != nil {
			n.fail(n.dir.unusable(err))
			return nil
		}
		if !ok {
			continue
		}
		began := time.Now() // for people; decides nothing
		h, err := n.host(ctx)
		switch {
		case ctx.Err() != nil && err != nil:
			return nil
		case err == nil:
			n.set(func() { n.hosting = true })
			n.log.Info("took over as host of the embedded store", "took", time.Since(began).Round(time.Millisecond))
			return h
		case !errors.Is(err, errDirty):
			// Nothing was left open: a full disk or a lack of descriptors may pass, and another
			// process may be luckier.
			if err.Error() != warned {
				warned = err.Error()
				n.log.Warn("cannot take over the embedded store, trying on", "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryWait):
			}
		default:
			n.fail(err)
			return nil
		}
	}
}

// watch returns nil when ctx ends, or why the host cannot go on.
func (n *Node) watch(ctx context.Context, h *host) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-h.failed:
			return fmt.Errorf("embedded store %s: etcd stopped: %w; see %s", n.dir.name, err, n.dir.path(logName))
		case <-tick.C:
			// Somebody may have removed the directory, and others started an empty store in its
			// place. Two stores are two leaders.
			if err := n.lock.check(); err != nil {
				return n.dir.unusable(err)
			}
		}
	}
}

// fail ends the node's part in the store. Where etcd broke it may never stop, and keeps its files
// until this process ends: see Done.
func (n *Node) fail(err error) {
	n.set(func() { n.hosting, n.failed = false, err })
	n.log.Error("the embedded store is gone for this process", "err", err)
	n.leave()
}

// Done is closed when the store is gone for this process for good, or the node was closed. Then the
// process has to end: it takes over from nobody any more, and if it hosted the store, nobody else
// can until it ends.
func (n *Node) Done() <-chan struct{} { return n.gone }

// Err says why Done is closed, nil if the node was only closed.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failed
}

// set changes the node's state.
func (n *Node) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// Endpoint is where the store answers, for an etcd client: a URL of a unix socket. It stays the
// same from host to host. It is good for this process only, while the node is open.
func (n *Node) Endpoint() string { return n.dir.endpoint() }

// Socket is the path at which the store answers, for other processes of this user. It may be too
// long for a socket.
func (n *Node) Socket() string { return filepath.Join(n.dir.name, socketName) }

// Close leaves the store. If this process hosts it, etcd is stopped, and another process takes over
// at once; clients of this process must be closed before. It returns within 5 s or so, with an
// error if etcd did not stop: the data is then free for others only when this process ends. Closing
// twice is no error.
func (n *Node) Close() error {
	n.cancel()
	<-n.ended
	n.leave()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stuck == nil {
		n.lock.close()
	}
	n.dir.close()
	return n.stuck
}
