package leaderelection

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leases is the client of a LeaseLock. A watch of it tells what the Lease is. One that was once
// dead tells nothing more.
type leases struct {
	coordinationclient.LeaseInterface
	*client
	dead    atomic.Bool
	watches atomic.Int32
	reads   atomic.Int32
}

func (l *leases) Leases(string) coordinationclient.LeaseInterface { return l }

func (l *leases) lease() *coordinationv1.Lease {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.lease == nil {
		return nil
	}
	return &coordinationv1.Lease{Spec: *l.s.lease}
}

func (l *leases) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	l.reads.Add(1)
	if _, _, err := l.client.Get(ctx); err != nil {
		return nil, err
	}
	return l.lease(), nil
}

func (l *leases) Create(
	ctx context.Context, n *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return n, l.client.Create(ctx, *rl.LeaseSpecToLeaderElectionRecord(&n.Spec))
}

func (l *leases) Update(
	ctx context.Context, n *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return n, l.client.Update(ctx, *rl.LeaseSpecToLeaderElectionRecord(&n.Spec))
}

func (l *leases) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	l.watches.Add(1)
	changes := make(watched)
	go func() {
		defer close(changes)
		for version, dead := 0, false; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			l.s.mu.Lock()
			is := l.s.version
			l.s.mu.Unlock()
			if dead = dead || l.dead.Load(); !dead && is != version {
				version = is
				select {
				case changes <- watch.Event{Type: watch.Modified, Object: l.lease()}:
				case <-ctx.Done():
				}
			}
		}
	}()
	return changes, nil
}

type watched chan watch.Event

func (w watched) ResultChan() <-chan watch.Event { return w }
func (w watched) Stop()                          {}

// standsBy starts an elector with a LeaseLock, and ends it with the bubble.
func (w *world) standsBy() (conn *leases, leads chan time.Time, end func()) {
	conn, leads = &leases{client: &client{s: w.server, id: "ours"}}, make(chan time.Time, 1)
	lock := &rl.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "n", Name: "l"}, Client: conn,
		LockConfig: rl.ResourceLockConfig{Identity: "ours"}}
	le := electorOver(w, lock, false, LeaderCallbacks{OnStartedLeading: func(ctx context.Context) {
		leads <- time.Now()
		<-ctx.Done()
	}})
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); le.Run(ctx) }()
	return conn, leads, func() {
		cancel()
		<-done
		time.Sleep(time.Second)
	}
}

// A watch on a dead connection tells nothing, and nothing ends it. Who stands by reads the Lease
// then.
func TestBehindADeadWatchTheLeaseIsRead(t *testing.T) {
	for what, most := range map[string]time.Duration{"a crash": 23 * time.Second, "a release": 5 * time.Second} {
		inBubble(t, func(w *world) {
			first := w.stand("client-go", "first", usual, nil)
			w.leads(first)
			conn, leads, end := w.standsBy()
			defer end()
			time.Sleep(21 * time.Second)
			conn.dead.Store(true)
			time.Sleep(3 * time.Second)
			at := time.Now()
			if what == "a crash" {
				first.set(func() { first.cut = true })
			} else {
				first.cancel()
			}
			select {
			case led := <-leads:
				if d := led.Sub(at); d > most {
					t.Errorf("%s: the next led %v later, want at most %v", what, d, most)
				}
			case <-time.After(time.Hour):
				t.Errorf("%s: nobody led within an hour", what)
			}
		})
	}
}

// A watch that has not told what the Lease is ends, and the next one is trusted again.
func TestADeadWatchIsReplaced(t *testing.T) {
	inBubble(t, func(w *world) {
		w.leads(w.stand("client-go", "first", usual, nil))
		conn, _, end := w.standsBy()
		defer end()
		watches := func(want int32, when string) {
			t.Helper()
			if n := conn.watches.Load(); n != want {
				t.Errorf("%s: %d watches so far, want %d", when, n, want)
			}
		}
		time.Sleep(time.Minute)
		watches(1, "all is well")
		if n := conn.reads.Load(); n > 2 {
			t.Errorf("%d reads in a minute beside a watch that tells each renewal", n)
		}
		conn.dead.Store(true)
		time.Sleep(100 * time.Millisecond)
		conn.dead.Store(false) // this one stays dead
		time.Sleep(time.Minute)
		watches(2, "the first one is dead")
	})
}

// jsonLock keeps the record as its JSON, as client-go's lock on a ConfigMap did.
type jsonLock struct {
	client *client
	fail   bool // the next Update
}

func (l *jsonLock) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	_, raw, err := l.client.Get(ctx)
	if err != nil {
		return nil, nil, err
	}
	r := &rl.LeaderElectionRecord{}
	return r, raw, json.Unmarshal(raw, r)
}

func (l *jsonLock) Create(ctx context.Context, r rl.LeaderElectionRecord) error {
	return l.client.Create(ctx, r)
}

func (l *jsonLock) Update(ctx context.Context, r rl.LeaderElectionRecord) error {
	if l.fail {
		l.fail = false
		return apierrors.NewServiceUnavailable("try again")
	}
	return l.client.Update(ctx, r)
}

func (l *jsonLock) RecordEvent(string) {}
func (l *jsonLock) Identity() string   { return l.client.id }
func (l *jsonLock) Describe() string   { return "n/l" }

// A lock that keeps whole seconds gives back another time than was written. One renewal that fails
// ends no term there.
func TestALockOfWholeSecondsKeepsItsTerm(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &jsonLock{client: &client{s: w.server, id: "a"}}
		terms, tokens := 0, []uint64(nil)
		var le *LeaderElector
		le = electorOver(w, lock, true, LeaderCallbacks{OnStartedLeading: func(ctx context.Context) {
			terms++
			tokens = append(tokens, le.Token())
			<-ctx.Done()
		}})
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		go func() {
			time.Sleep(7 * time.Second)
			lock.fail = true
		}()
		le.Run(ctx)
		if d := time.Since(w.began); d < time.Minute || terms != 1 || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("%d terms with the tokens %v, and Run returned after %v: want one of a minute", terms, tokens, d)
		}
	})
}

// Of two processes under one identity that write within a second only one holds such a lock.
func TestNamesakesOfWholeSeconds(t *testing.T) {
	for range 20 {
		inBubble(t, func(w *world) {
			w.server.put(rl.LeaderElectionRecord{LeaderTransitions: 6})
			var wins [2]bool
			var all [2]*LeaderElector
			var both sync.WaitGroup
			for i := range all {
				lock := &jsonLock{client: &client{s: w.server, id: "a", slow: time.Millisecond}}
				all[i] = electorOver(w, lock, false, LeaderCallbacks{})
				both.Go(func() { wins[i] = all[i].tryAcquireOrRenew(w.t.Context()) })
			}
			both.Wait()
			for i, le := range all {
				if !wins[i] && le.tryAcquireOrRenew(w.t.Context()) {
					t.Error("two hold the lock")
				}
			}
			if wins[0] == wins[1] {
				t.Errorf("they won: %v", wins)
			}
		})
	}
}
