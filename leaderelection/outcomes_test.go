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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
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

// A lock that hangs, and does not hear that its time is up, holds up neither OnStoppedLeading nor
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
