package leaderelection

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/k8stest"
)

// deaf is a lock whose calls do not hear that their context has ended, as those of a client whose
// exec plugin hangs.
type deaf struct {
	*client
	mu   sync.Mutex
	hang chan struct{} // not nil: calls wait for it
}

func (d *deaf) hangOn(hang chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hang = hang
}

func (d *deaf) wait() {
	d.mu.Lock()
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
}

func (d *deaf) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	d.wait()
	return d.client.Get(context.WithoutCancel(ctx))
}

func (d *deaf) Update(ctx context.Context, r rl.LeaderElectionRecord) error {
	d.wait()
	return d.client.Update(context.WithoutCancel(ctx), r)
}

// electorOver returns an elector by the usual times, in a bubble.
func electorOver(w *world, lock rl.Interface, release bool, callbacks LeaderCallbacks) *LeaderElector {
	w.t.Helper()
	if callbacks.OnStartedLeading == nil {
		callbacks.OnStartedLeading = func(ctx context.Context) { <-ctx.Done() }
	}
	if callbacks.OnStoppedLeading == nil {
		callbacks.OnStoppedLeading = func() {}
	}
	le, err := NewLeaderElector(LeaderElectionConfig{Lock: lock, LeaseDuration: usual.lease,
		RenewDeadline: usual.deadline, RetryPeriod: usual.retry, ReleaseOnCancel: release, Callbacks: callbacks})
	if err != nil {
		w.t.Fatal(err)
	}
	le.boot = func() core.Time { return time.Since(w.began) + time.Hour }
	return le
}

// A renewal that is answered when its term is over is no beginning of the next: that one would have
// the same token.
func TestARenewalThatIsAnsweredLateBeginsNoTerm(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &deaf{client: &client{s: w.server, id: "a"}}
		var tokens []uint64
		var le *LeaderElector
		le = electorOver(w, lock, false, LeaderCallbacks{OnStartedLeading: func(ctx context.Context) {
			tokens = append(tokens, le.Token())
			<-ctx.Done()
		}})
		ctx, cancel := context.WithCancel(w.t.Context())
		first := make(chan struct{})
		go func() { defer close(first); le.Run(ctx) }()
		time.Sleep(time.Second)
		hang := make(chan struct{})
		lock.hangOn(hang) // the renewal at 2 s
		time.Sleep(2 * time.Second)
		cancel()
		<-first
		lock.hangOn(nil)
		close(hang)
		synctest.Wait()
		ctx, cancel = context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		le.Run(ctx)
		if !slices.Equal(tokens, []uint64{1, 2}) {
			t.Errorf("the tokens are %v, want 1 and 2", tokens)
		}
	})
}

// Two processes under one identity that try at the same instant write the same record, but for what
// is drawn.
func TestNamesakesAtTheSameInstant(t *testing.T) {
	for range 20 {
		inBubble(t, func(w *world) {
			w.server.put(rl.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 5,
				RenewTime: metav1.NewTime(time.Now())})
			for range 2 {
				c := w.stand("ours", "a", usual, nil)
				c.set(func() { c.slow = 10 * time.Millisecond }) // both have read before one writes
			}
			time.Sleep(time.Minute)
			for _, c := range w.all {
				c.end()
			}
			if o := w.overlap(); o > 0 {
				t.Errorf("two leaders for %v", o)
			}
		})
	}
}

// The same where the one that lost reads at once what the other wrote, as its watch tells it.
func TestANamesakeThatReadsAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		var wins [2]bool
		var all [2]*LeaderElector
		var both sync.WaitGroup
		for i := range all {
			all[i] = electorOver(w, &client{s: w.server, id: "a", slow: time.Millisecond}, false, LeaderCallbacks{})
			both.Go(func() { wins[i] = all[i].tryAcquireOrRenew(w.t.Context()) })
		}
		both.Wait()
		for i, le := range all {
			if !wins[i] && le.tryAcquireOrRenew(w.t.Context()) {
				t.Error("two hold the Lease")
			}
		}
		if wins[0] == wins[1] {
			t.Errorf("they won: %v", wins)
		}
	})
}

// A lock that hangs, and does not hear that its time is up, holds up neither OnStoppedLeading nor
// Run.
func TestAReleaseThatNeverReturnsHoldsUpNoCallback(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &deaf{client: &client{s: w.server, id: "a"}}
		var stopped time.Time
		le := electorOver(w, lock, true, LeaderCallbacks{OnStoppedLeading: func() { stopped = time.Now() }})
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		defer cancel()
		hang := make(chan struct{})
		var returned atomic.Bool
		go func() { le.Run(ctx); returned.Store(true) }()
		time.Sleep(4500 * time.Millisecond) // between two renewals
		lock.hangOn(hang)
		time.Sleep(time.Minute)
		if d := stopped.Sub(w.began); stopped.IsZero() || d > 17500*time.Millisecond {
			t.Errorf("OnStoppedLeading was called after %v, want 17.5s", d)
		}
		if !returned.Load() {
			t.Error("Run has not returned")
		}
		lock.hangOn(nil)
		close(hang)
		synctest.Wait()
	})
}

// log is a log of which nobody reads any more once it is full.
type log struct {
	full atomic.Bool
	read chan struct{}
}

func (l *log) wait() {
	if l.full.Load() {
		<-l.read
	}
}

func (*log) Init(klog.RuntimeInfo)            {}
func (*log) Enabled(int) bool                 { return true }
func (l *log) Info(int, string, ...any)       { l.wait() }
func (l *log) Error(error, string, ...any)    { l.wait() }
func (l *log) WithValues(...any) klog.LogSink { return l }
func (l *log) WithName(string) klog.LogSink   { return l }

// A log that nobody reads (a full pipe) holds up no end.
func TestALogThatBlocksHoldsUpNoEnd(t *testing.T) {
	inBubble(t, func(w *world) {
		logs := &log{read: make(chan struct{})}
		lock := &client{s: w.server, id: "a"}
		ended, stopped := make(chan time.Time, 1), make(chan time.Time, 1)
		le := electorOver(w, lock, true, LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				<-ctx.Done()
				ended <- time.Now()
			},
			OnStoppedLeading: func() { stopped <- time.Now() }})
		go le.Run(klog.NewContext(w.t.Context(), klog.New(logs)))
		time.Sleep(5 * time.Second)
		lock.set(func() { lock.cut = true })
		logs.full.Store(true)
		time.Sleep(time.Minute)
		for what, c := range map[string]struct {
			at   chan time.Time
			want time.Duration
		}{"the context ended": {ended, 15 * time.Second}, "OnStoppedLeading was called": {stopped, 19 * time.Second}} {
			select {
			case at := <-c.at:
				if d := at.Sub(w.began); d > c.want {
					t.Errorf("%s after %v, want at most %v", what, d, c.want)
				}
			default:
				t.Errorf("%s: not within a minute", what)
			}
		}
		close(logs.read)
		lock.set(func() { lock.cut = false })
	})
}

// A standby of client-go's sees one renewal where there were several within a second, and counts
// from the first of them.
func TestAStandbyOfClientGoDoesNotComeEarly(t *testing.T) {
	for _, at := range []times{
		{2 * time.Second, 1900 * time.Millisecond, 200 * time.Millisecond},
		{3 * time.Second, 2400 * time.Millisecond, 300 * time.Millisecond},
		{8 * time.Second, 7500 * time.Millisecond, 300 * time.Millisecond},
	} {
		var worst time.Duration
		for range 100 {
			inBubble(t, func(w *world) {
				a := w.stand("ours", "a", at, nil)
				w.leads(a)
				b := w.stand("client-go", "b", at, nil)
				time.Sleep(10*time.Second + time.Duration(rand.Int64N(int64(2*time.Second))))
				a.set(func() { a.cut = true })
				w.leads(b)
				time.Sleep(5 * time.Second)
				for _, c := range w.all {
					c.set(func() { c.cut = false })
					c.end()
				}
				worst = max(worst, w.overlap())
			})
		}
		if worst > 0 {
			t.Errorf("with a lease of %v two lead for up to %v", at.lease, worst)
		}
	}
}

// An update that changes nothing is not written by the API server: nobody sees that renewal.
func TestEachRenewalChangesTheRecord(t *testing.T) {
	inBubble(t, func(w *world) {
		le := electorOver(w, &client{s: w.server, id: "a"}, false, LeaderCallbacks{})
		le.clock = clocktesting.NewFakeClock(time.Now()) // a clock that stands still
		seen := map[string]bool{}
		for range 3 {
			if !le.tryAcquireOrRenew(w.t.Context()) {
				t.Fatal("it does not hold the Lease")
			}
			seen[w.server.record().RenewTime.UTC().Format(time.RFC3339Nano)] = true
		}
		if len(seen) != 3 {
			t.Errorf("three renewals show %v", seen)
		}
	})
}

// losesAnswers has the answer to the next write lost.
type losesAnswers struct {
	http.RoundTripper
	next atomic.Bool
}

func (l *losesAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.Method != "GET" && l.next.CompareAndSwap(true, false) {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return nil, errors.New("the answer is lost")
	}
	return resp, err
}

// What the watch tells of a write whose answer was lost is no reason to wait until it runs out.
func TestAWatchTellsThatALostWriteWon(t *testing.T) {
	t.Parallel()
	srv := k8stest.StartFake(t)
	lock := lockOn(t, srv, "job", "me")
	loses := &losesAnswers{}
	loses.next.Store(true)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL, BearerToken: k8stest.UserToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: srv.CA},
		ContentConfig:   rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
		WrapTransport: func(rt http.RoundTripper) http.RoundTripper {
			loses.RoundTripper = rt
			return loses
		}})
	if err != nil {
		t.Fatal(err)
	}
	lock.Client = client.CoordinationV1()
	leads := make(chan string, 1)
	stands(t, lock, false, leads)
	select {
	case <-leads:
	case <-time.After(30 * time.Second): // RetryPeriod with its jitter is 22 s, LeaseDuration 60 s
		t.Error("after 30 s nobody leads, though the Lease is ours")
	}
}

// A watch may tell what is no longer so, as one on an API server that lags behind does: here the
// write of ours, whose answer was lost, after another has taken the Lease over.
func TestAWatchThatLagsMakesNoLeader(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &client{s: w.server, id: "a"}
		le := electorOver(w, lock, false, LeaderCallbacks{})
		w.server.put(rl.LeaderElectionRecord{LeaseDurationSeconds: 1, LeaderTransitions: 4})
		lock.loseNext = true
		if came := le.try(context.Background(), false); came != failed {
			t.Fatalf("a write whose answer is lost: %v", came)
		}
		old := *w.server.lease
		time.Sleep(20 * time.Second)
		now := metav1.NewTime(time.Now())
		w.server.put(rl.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 15, LeaderTransitions: 6,
			AcquireTime: now, RenewTime: now})
		if came := le.try(context.Background(), false); came != busy {
			t.Fatalf("b holds the Lease, and a's try says %v", came)
		}
		changes := &watcher{changes: make(chan *coordinationv1.Lease, 1)}
		changes.alive.Store(true)
		changes.changes <- &coordinationv1.Lease{Spec: old}
		le.await(context.Background(), changes, true)
		if came := le.try(context.Background(), false); came != busy || w.server.record().HolderIdentity != "b" {
			t.Errorf("after a late event a's try says %v, and the Lease is %+v", came, w.server.record())
		}
	})
}

// A process that stood still between winning and working does not begin to work in a term that is
// over.
func TestWorkDoesNotBeginInATermThatIsOver(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &pauses{client: &client{s: w.server, id: "a"}}
		var works atomic.Bool
		le := electorOver(w, lock, false, LeaderCallbacks{
			OnStartedLeading: func(context.Context) { works.Store(true) }})
		le.boot = func() core.Time { return time.Since(w.began) + time.Hour + time.Duration(lock.ahead.Load()) }
		le.Run(w.t.Context())
		synctest.Wait()
		if works.Load() {
			t.Error("work began in a term that was over")
		}
	})
}

// pauses is a lock beside which the process stands still for a minute when it has won.
type pauses struct {
	*client
	ahead atomic.Int64
}

func (p *pauses) RecordEvent(string) { p.ahead.CompareAndSwap(0, int64(time.Minute)) }

// A write that may be under way when an elector gives up must find another version, or the Lease is
// held by nobody for as long as LeaseDuration.
func TestAWriteUnderWayHoldsNoReleasedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		w.server.put(rl.LeaderElectionRecord{LeaderTransitions: 6})
		lock := &straggles{client: &client{s: w.server, id: "a"}}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		electorOver(w, lock, true, LeaderCallbacks{}).Run(ctx)
		if lock.late == nil {
			t.Fatal("there was no write")
		}
		if err := lock.late(); err == nil || w.server.record().HolderIdentity != "" {
			t.Errorf("the write that was held up: %v; the Lease is held by %q", err, w.server.record().HolderIdentity)
		}
	})
}

// straggles holds up its first update until late is called.
type straggles struct {
	*client
	late func() error
}

func (s *straggles) Update(ctx context.Context, r rl.LeaderElectionRecord) error {
	if s.late != nil {
		return s.client.Update(ctx, r)
	}
	held := &client{s: s.s, id: s.id, version: s.version}
	s.late = func() error { return held.Update(context.Background(), r) }
	<-ctx.Done()
	return ctx.Err()
}

// A write may be carried out when the next one is on its way. It is ours too.
func TestAWriteThatLandsBehindTheNextIsOurs(t *testing.T) {
	inBubble(t, func(w *world) {
		w.server.put(rl.LeaderElectionRecord{LeaderTransitions: 6})
		lock := &overtakes{straggles: straggles{client: &client{s: w.server, id: "a"}}}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		var began time.Duration
		electorOver(w, lock, true, LeaderCallbacks{OnStartedLeading: func(ctx context.Context) {
			began = time.Since(w.began)
			<-ctx.Done()
		}}).Run(ctx)
		if began == 0 || began > usual.lease {
			t.Errorf("the work began after %v, want less than the %v of the lease", began, usual.lease)
		}
	})
}

// overtakes is a lock whose first update is carried out when the second has been sent.
type overtakes struct {
	straggles
	second bool
}

func (o *overtakes) Update(ctx context.Context, r rl.LeaderElectionRecord) error {
	if o.late != nil && !o.second {
		o.second = true
		if err := o.late(); err != nil {
			return err
		}
	}
	return o.straggles.Update(ctx, r)
}
