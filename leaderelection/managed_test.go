package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	orig "k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/proxy"
)

// manager does with its lock and its contexts what controller-runtime's does. The real one is
// tested in examples/operator.
type manager struct {
	lock     rl.Interface
	base     context.Context
	warm     time.Duration // what its caches take to fill
	others   time.Duration // what takes to stop that is stopped before the work
	stops    time.Duration // what the work takes to stop
	patience time.Duration // it gives up waiting then; 0: never

	began, asked, ended atomic.Int64 // when its work did, since the begin of the bubble's time
}

func (m *manager) start(ctx context.Context) error {
	elected, ran := make(chan struct{}), make(chan struct{})
	le, err := orig.NewLeaderElector(orig.LeaderElectionConfig{Lock: m.lock, LeaseDuration: 15 * time.Second,
		RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true,
		Callbacks: orig.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(elected) },
			OnStoppedLeading: func() {
				select {
				case <-elected:
					if ctx.Err() == nil && m.base.Err() == nil {
						panic("client-go's elector gave the lease up")
					}
				default:
				}
			}}})
	if err != nil {
		return err
	}
	time.Sleep(m.warm)
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{})
	go func() { defer close(over); le.Run(electing) }()
	defer func() { stop(); <-over }()
	select {
	case <-ctx.Done():
		return nil
	case <-elected:
	}
	m.began.Store(time.Now().UnixNano())
	go func() {
		defer close(ran)
		work, end := context.WithCancel(m.base)
		defer end()
		defer context.AfterFunc(ctx, func() { time.Sleep(m.others); end() })()
		<-work.Done()
		m.asked.Store(time.Now().UnixNano())
		time.Sleep(m.stops)
		m.ended.Store(time.Now().UnixNano())
	}()
	<-ctx.Done()
	time.Sleep(m.others)
	if m.patience == 0 {
		<-ran
		return nil
	}
	select {
	case <-ran:
		return nil
	case <-time.After(m.patience):
		return fmt.Errorf("failed waiting for all runnables to end: %w", context.DeadlineExceeded)
	}
}

// process is a Managed with its manager.
type process struct {
	*client
	*Managed
	m      *manager
	cancel context.CancelFunc
	gone   chan struct{} // closed when Run has returned
	err    error
	exited atomic.Int64 // when it would have ended itself
}

// runs starts a process in a bubble.
func runs(w *world, id string, m *manager) *process {
	w.t.Helper()
	p := &process{client: &client{s: w.server, id: id}, m: m, gone: make(chan struct{})}
	p.Managed = newManaged(LeaderElectionConfig{Lock: p.client, LeaseDuration: 15 * time.Second,
		RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true})
	p.exit = func() { p.exited.CompareAndSwap(0, time.Now().UnixNano()) }
	p.makeElector = func(lec LeaderElectionConfig) (*LeaderElector, error) {
		le, err := NewLeaderElector(lec)
		if err == nil {
			le.boot = func() core.Time { return time.Since(w.began) + time.Hour }
		}
		return le, err
	}
	p.m.lock, p.m.base = p.Lock(), p.Context()
	ctx, cancel := context.WithCancel(w.t.Context())
	p.cancel = cancel
	go func() {
		defer close(p.gone)
		p.err = p.Run(ctx, p.m.start)
	}()
	return p
}

func since(from time.Time, at int64) time.Duration {
	if at == 0 {
		return 0
	}
	return time.Unix(0, at).Sub(from)
}

// Who is asked to stop is followed at once when his work has returned, though it takes longer than
// a lease lasts.
func TestManagedHandsOver(t *testing.T) {
	inBubble(t, func(w *world) {
		a := runs(w, "a", &manager{stops: time.Minute})
		time.Sleep(time.Second)
		b := runs(w, "b", &manager{warm: 5 * time.Second})
		time.Sleep(time.Minute)
		if !a.IsLeader() || b.IsLeader() || a.Token() != 1 {
			t.Fatalf("leading: %v, %v, token %d", a.IsLeader(), b.IsLeader(), a.Token())
		}
		a.cancel()
		time.Sleep(30 * time.Second)
		if !a.IsLeader() {
			t.Error("it has given its term up while its work stops")
		}
		<-a.gone
		time.Sleep(5 * time.Second)
		began, ended := time.Unix(0, b.m.began.Load()), time.Unix(0, a.m.ended.Load())
		if took := began.Sub(ended); a.err != nil || took < 0 || took > 5*time.Second || b.Token() <= a.Token() {
			t.Errorf("the next began %v after, token %d after %d, %v", took, b.Token(), a.Token(), a.err)
		}
		b.cancel()
		<-b.gone
	})
}

// Nobody campaigns whose manager is not ready, and a standby that is asked to stop does.
func TestManagedStandsByWhenTheManagerIsReady(t *testing.T) {
	inBubble(t, func(w *world) {
		a := runs(w, "a", &manager{warm: time.Hour})
		time.Sleep(30 * time.Minute)
		if r := w.server.record(); r.HolderIdentity != "" {
			t.Errorf("%s leads with caches that are not filled", r.HolderIdentity)
		}
		time.Sleep(31 * time.Minute)
		if !a.IsLeader() {
			t.Error("it does not lead")
		}
		b := runs(w, "b", &manager{})
		time.Sleep(time.Minute)
		b.cancel()
		<-b.gone
		if b.err != nil || b.m.began.Load() != 0 {
			t.Errorf("the standby: %v", b.err)
		}
		a.cancel()
		<-a.gone
	})
}

// A process that stands still between winning and working is too late for that term: its manager
// leads in the next one.
func TestManagedStandsAgainAfterATermThatDidNotBegin(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &pauses{client: &client{s: w.server, id: "a"}}
		a := newManaged(LeaderElectionConfig{Lock: lock, LeaseDuration: 15 * time.Second,
			RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true})
		a.makeElector = func(lec LeaderElectionConfig) (*LeaderElector, error) {
			le, err := NewLeaderElector(lec)
			le.boot = func() core.Time { return time.Since(w.began) + time.Hour + time.Duration(lock.ahead.Load()) }
			return le, err
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		err := a.Run(ctx, func(ctx context.Context) error {
			r, _, err := a.Lock().Get(ctx)
			if err != nil || r.HolderIdentity != "a" || a.Token() != 2 {
				t.Errorf("%v leads under token %d, %v", r, a.Token(), err)
			}
			return nil
		})
		time.Sleep(time.Minute) // in the bubble
		if err != nil {
			t.Error(err)
		}
	})
}

// A term that is lost ends the manager's contexts, and the process if the manager does not return.
func TestManagedIsCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		*manager
		exits bool
		err   string
	}{
		"it stops":           {&manager{stops: 2 * time.Second}, false, "leadership of"},
		"it takes too long":  {&manager{stops: 20 * time.Second}, true, "leadership of"},
		"others take longer": {&manager{others: time.Minute}, true, "leadership of"},
		"it is impatient":    {&manager{stops: 500 * time.Millisecond, patience: time.Second}, false, "leadership of"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				a := runs(w, "a", c.manager)
				time.Sleep(time.Second)
				cut := time.Now()
				a.set(func() { a.cut = true })
				<-a.gone
				if a.err == nil || !strings.Contains(a.err.Error(), c.err) {
					t.Errorf("Run returned %v", a.err)
				}
				if at := since(cut, a.m.asked.Load()); at > 10*time.Second || at < 7*time.Second {
					t.Errorf("its work was asked to end after %v", at)
				}
				at := since(cut, a.exited.Load())
				if (at > 0) != c.exits || at > 13500*time.Millisecond {
					t.Errorf("it ended itself after %v", at)
				}
				if a.Context().Err() == nil || a.IsLeader() {
					t.Error("its context is alive")
				}
			})
		})
	}
}

// A manager that waits for its work no longer leaves it running: its contexts end, and the Lease is
// kept.
func TestManagedKeepsTheLeaseOfWorkThatIsNotWaitedFor(t *testing.T) {
	for _, gaveUp := range []error{
		fmt.Errorf("failed waiting for all runnables to end: %w", context.DeadlineExceeded),
		errors.New("leader election lost"),
	} {
		inBubble(t, func(w *world) {
			a := newManaged(LeaderElectionConfig{Lock: &client{s: w.server, id: "a"}, LeaseDuration: 15 * time.Second,
				RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true})
			a.ending, a.exit = make(chan struct{}), func() {}
			a.makeElector = func(lec LeaderElectionConfig) (*LeaderElector, error) {
				le, err := NewLeaderElector(lec)
				le.boot = func() core.Time { return time.Since(w.began) + time.Hour }
				return le, err
			}
			err := a.Run(w.t.Context(), func(ctx context.Context) error {
				if _, _, err := a.Lock().Get(ctx); err != nil {
					return err
				}
				return gaveUp
			})
			over, end := context.WithCancel(w.t.Context())
			end()
			for range 50 {
				if r, _, err := a.Lock().Get(over); err != nil || r.HolderIdentity != "a" {
					t.Errorf("the elector in it hears that %q leads, %v", r.HolderIdentity, err)
					break
				}
			}
			if !errors.Is(err, gaveUp) || a.Context().Err() == nil {
				t.Errorf("the error is %v, that of its context %v", err, a.Context().Err())
			}
			time.Sleep(time.Minute)
			if !a.IsLeader() || w.server.record().HolderIdentity != "a" {
				t.Errorf("the Lease is let go beside what may run: %+v", w.server.record())
			}
			close(a.ending)
			time.Sleep(time.Minute) // in the bubble: the elector ends
		})
	}
}

// A runnable that fails ends the manager; then the Lease is released.
func TestManagedReleasesWhenTheManagerFails(t *testing.T) {
	inBubble(t, func(w *world) {
		broken := errors.New("broken")
		a := newManaged(LeaderElectionConfig{Lock: &client{s: w.server, id: "a"}, LeaseDuration: 15 * time.Second,
			RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true})
		var lost bool
		err := a.Run(w.t.Context(), func(ctx context.Context) error {
			lock := a.Lock()
			if _, _, err := lock.Get(ctx); err != nil {
				return err
			}
			lost = w.server.record().HolderIdentity != lock.Identity()
			return broken
		})
		if !errors.Is(err, broken) || lost || w.server.record().HolderIdentity != "" {
			t.Errorf("%v, %+v", err, w.server.record())
		}
		if err := a.Run(w.t.Context(), nil); err == nil {
			t.Error("it runs twice")
		}
	})
}

// What does not use the lock would lead everywhere.
func TestManagedIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newManaged(LeaderElectionConfig{Lock: &client{s: &apiServer{}, id: "a"}, LeaseDuration: 15 * time.Second,
			RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second})
		t.Log(a.Lock().Identity(), "is no question of a manager's")
		limit, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := a.Run(limit, func(ctx context.Context) error { <-ctx.Done(); return nil })
		if err == nil || !strings.Contains(err.Error(), "LeaderElectionResourceLockInterface") ||
			a.Context().Err() == nil {
			t.Error(err)
		}
		a = newManaged(LeaderElectionConfig{})
		if err := a.Run(t.Context(), func(context.Context) error { panic("started") }); err == nil {
			t.Error("no configuration is taken")
		}
	})
}

func TestNewManaged(t *testing.T) {
	a, err := NewManaged(&rest.Config{Host: "https://127.0.0.1:1"}, "team", "job")
	if err != nil || a.Lock().Describe() != "team/job" {
		t.Error(a, err)
	}
	config := rest.Config{Host: "https://127.0.0.1:1", UserAgent: "own", Timeout: time.Minute}
	b, err := NewManaged(&config, "team", "job")
	if config.UserAgent != "own" || config.Timeout != time.Minute || config.NextProtos != nil {
		t.Errorf("the manager's own configuration is changed: %+v", config)
	}
	if err != nil || b.Lock().Identity() == a.Lock().Identity() {
		t.Error("two have one identity")
	}
	if _, err := NewManaged(&rest.Config{Host: "https://127.0.0.1:1"}, "", "job"); err == nil ||
		!strings.Contains(err.Error(), "namespace") {
		t.Error(err)
	}
	if _, err := NewManaged(&rest.Config{Host: "a b"}, "team", "job"); err == nil {
		t.Error("that is no address")
	}
}

// A limit that the manager's calls use up is not the election's.
func TestManagedHasARateOfItsOwn(t *testing.T) {
	t.Parallel()
	srv := k8stest.StartFake(t)
	a, err := NewManaged(&rest.Config{Host: srv.URL, BearerToken: k8stest.UserToken, QPS: 1e-6, Burst: 1,
		RateLimiter:     flowcontrol.NewFakeNeverRateLimiter(),
		TLSClientConfig: rest.TLSClientConfig{CAData: srv.CA},
		ContentConfig:   rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}},
		k8stest.Namespace, "job")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err = a.Run(ctx, func(ctx context.Context) error {
		_, _, err := a.Lock().Get(ctx)
		if !a.IsLeader() {
			t.Error("it does not lead")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// A connection that has died without a word costs no term: the next renewal takes another one.
func TestManagedLeavesADeadConnection(t *testing.T) {
	t.Parallel()
	srv := k8stest.StartFake(t)
	path, err := proxy.Listen(srv.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer path.Close()
	a, err := NewManaged(&rest.Config{Host: "https://" + path.Addr(), BearerToken: k8stest.UserToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: srv.CA},
		ContentConfig:   rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}},
		k8stest.Namespace, "job")
	if err != nil {
		t.Fatal(err)
	}
	a.Config.LeaseDuration, a.Config.RenewDeadline, a.Config.RetryPeriod = 10*time.Second, 8*time.Second, time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err = a.Run(ctx, func(ctx context.Context) error {
		if _, _, err := a.Lock().Get(ctx); err != nil || !a.IsLeader() {
			return fmt.Errorf("it does not lead: %w", err)
		}
		path.Seal()
		select {
		case <-a.Context().Done():
			t.Error("the term is lost")
		case <-time.After(10 * time.Second):
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
