package leaderelection

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	orig "k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/primacy-go/primacy/internal/core"
)

// apiServer keeps one Lease, as a LeaseSpec.
type apiServer struct {
	mu      sync.Mutex
	lease   *coordinationv1.LeaseSpec // nil: there is none
	version int
}

func (s *apiServer) record() rl.LeaderElectionRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return rl.LeaderElectionRecord{}
	}
	return *rl.LeaseSpecToLeaderElectionRecord(s.lease)
}

// put writes as somebody who asks nobody.
func (s *apiServer) put(r rl.LeaderElectionRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec := rl.LeaderElectionRecordToLeaseSpec(&r)
	s.lease = &spec
	s.version++
}

// client is the lock of one candidate.
type client struct {
	s       *apiServer
	id      string
	version int

	mu       sync.Mutex
	cut      bool          // no call gets through
	loseNext bool          // the next write gets through, and its answer does not
	cutNext  bool          // nothing gets through after the next write
	slow     time.Duration // before each write
}

func (c *client) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// pass waits while the client is cut off.
func (c *client) pass(ctx context.Context) error {
	for {
		c.mu.Lock()
		cut := c.cut
		c.mu.Unlock()
		if !cut {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c *client) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	if err := c.pass(ctx); err != nil {
		return nil, nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.lease == nil {
		return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "l")
	}
	c.version = c.s.version
	r := rl.LeaseSpecToLeaderElectionRecord(c.s.lease)
	raw, err := json.Marshal(*r)
	return r, raw, err
}

func (c *client) write(ctx context.Context, r rl.LeaderElectionRecord, fits func() error) error {
	if err := c.pass(ctx); err != nil {
		return err
	}
	time.Sleep(c.slow)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err := fits(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	spec := rl.LeaderElectionRecordToLeaseSpec(&r)
	c.s.lease = &spec
	c.s.version++
	c.cut = c.cut || c.cutNext
	if c.loseNext {
		c.loseNext = false
		return context.DeadlineExceeded
	}
	c.version = c.s.version
	return nil
}

func (c *client) Create(ctx context.Context, r rl.LeaderElectionRecord) error {
	return c.write(ctx, r, func() error {
		if c.s.lease != nil {
			return apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), "l")
		}
		return nil
	})
}

func (c *client) Update(ctx context.Context, r rl.LeaderElectionRecord) error {
	return c.write(ctx, r, func() error {
		switch {
		case c.s.lease == nil:
			return apierrors.NewNotFound(coordinationv1.Resource("leases"), "l")
		case c.version != c.s.version:
			return apierrors.NewConflict(coordinationv1.Resource("leases"), "l", fmt.Errorf("it is another version"))
		}
		return nil
	})
}

func (c *client) RecordEvent(string) {}
func (c *client) Identity() string   { return c.id }
func (c *client) Describe() string   { return "n/l" }

// elector is what both packages have.
type elector interface {
	Run(context.Context)
	IsLeader() bool
}

// candidate is an elector and what its work did.
type candidate struct {
	*client
	elector elector
	ours    *LeaderElector
	cancel  context.CancelFunc
	gone    chan struct{} // closed when Run has returned
	ahead   atomic.Int64  // by which the boot clock has gone on while the process stood still

	state  sync.Mutex
	acts   [][2]time.Time // when its work could act: from the call of OnStartedLeading to the end of its context
	tokens []uint64
}

// world is an election in a bubble of synctest.
type world struct {
	t      *testing.T
	server *apiServer
	began  time.Time
	all    []*candidate
}

func inBubble(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, server: &apiServer{}, began: time.Now()}
		f(w)
		for _, c := range w.all {
			c.set(func() { c.cut = false })
			c.end()
		}
	})
}

type times struct{ lease, deadline, retry time.Duration }

var usual = times{15 * time.Second, 10 * time.Second, 2 * time.Second}

// stand starts a candidate of kind "client-go" or "ours". What work is nil waits for its context.
func (w *world) stand(kind, id string, at times, work func(ctx context.Context)) *candidate {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	c := &candidate{client: &client{s: w.server, id: id}, cancel: cancel, gone: make(chan struct{})}
	callbacks := LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) {
			from := time.Now()
			c.state.Lock()
			if c.ours != nil {
				c.tokens = append(c.tokens, c.ours.Token())
			}
			c.state.Unlock()
			if work != nil {
				work(ctx)
			}
			<-ctx.Done()
			c.state.Lock()
			defer c.state.Unlock()
			c.acts = append(c.acts, [2]time.Time{from, time.Now()})
		},
		OnStoppedLeading: func() {},
	}
	var err error
	if kind == "client-go" {
		c.elector, err = orig.NewLeaderElector(orig.LeaderElectionConfig{Lock: c, LeaseDuration: at.lease,
			RenewDeadline: at.deadline, RetryPeriod: at.retry, ReleaseOnCancel: true, Callbacks: callbacks})
	} else {
		c.ours, err = NewLeaderElector(LeaderElectionConfig{Lock: c, LeaseDuration: at.lease,
			RenewDeadline: at.deadline, RetryPeriod: at.retry, ReleaseOnCancel: true, Callbacks: callbacks})
		if err == nil {
			c.ours.boot = func() core.Time { return time.Since(w.began) + time.Hour + time.Duration(c.ahead.Load()) }
		}
		c.elector = c.ours
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.all = append(w.all, c)
	go func() {
		defer close(c.gone)
		for ctx.Err() == nil {
			c.elector.Run(ctx)
		}
	}()
	return c
}

// terms returns how many terms are over, and the tokens of all.
func (c *candidate) terms() (over int, tokens []uint64) {
	c.state.Lock()
	defer c.state.Unlock()
	return len(c.acts), slices.Clone(c.tokens)
}

// end ends a candidate in order.
func (c *candidate) end() {
	c.cancel()
	<-c.gone
	synctest.Wait()
}

// leads waits until one of the candidates leads, by its own word.
func (w *world) leads(cs ...*candidate) *candidate {
	w.t.Helper()
	for range 60_000 {
		for _, c := range cs {
			if c.elector.IsLeader() {
				return c
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatal("nobody leads")
	return nil
}

// overlap returns for how long at most two could act at once.
func (w *world) overlap() (most time.Duration) {
	var all [][2]time.Time
	for _, c := range w.all {
		c.state.Lock()
		all = append(all, c.acts...)
		c.state.Unlock()
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			from, to := a[0], a[1]
			if b[0].After(from) {
				from = b[0]
			}
			if b[1].Before(to) {
				to = b[1]
			}
			most = max(most, to.Sub(from))
		}
	}
	return most
}

// faults are those of client-go that peers met. Each returns for how long two acted at once.
func TestFaultsOfClientGo(t *testing.T) {
	for name, fault := range map[string]func(w *world, kind string){
		// Only the leader is cut off, for longer than its lease. Its time goes on to count.
		"partition": func(w *world, kind string) {
			at := times{12 * time.Second, 10 * time.Second, 4 * time.Second}
			a := w.stand(kind, "a", at, nil)
			w.leads(a)
			b, c := w.stand(kind, "b", at, nil), w.stand(kind, "c", at, nil)
			time.Sleep(time.Duration(rand.Int64N(int64(10 * time.Second))))
			a.set(func() { a.cut = true })
			w.leads(b, c)
			time.Sleep(20 * time.Second)
		},
		// The link comes back when another leads: the release that waited for it is too late.
		"late release": func(w *world, kind string) {
			a := w.stand(kind, "a", usual, nil)
			w.leads(a)
			b := w.stand(kind, "b", usual, nil)
			time.Sleep(10 * time.Second)
			a.set(func() { a.cut = true })
			w.leads(b)
			a.cancel() // it does not stand again
			a.set(func() { a.cut = false })
			w.stand(kind, "c", usual, nil)
			time.Sleep(30 * time.Second)
		},
		// Nothing fails at all.
		"fractions of a second": func(w *world, kind string) {
			at := times{1900 * time.Millisecond, 1800 * time.Millisecond, 300 * time.Millisecond}
			a := w.stand(kind, "a", at, nil)
			w.leads(a)
			w.stand(kind, "b", at, nil)
			w.stand(kind, "c", at, nil)
			time.Sleep(time.Minute)
		},
		// Two processes were given one name.
		"one identity": func(w *world, kind string) {
			a := w.stand(kind, "a", usual, nil)
			w.leads(a)
			w.stand(kind, "a", usual, nil)
			time.Sleep(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worst := map[string]time.Duration{}
			for _, kind := range []string{"client-go", "ours"} {
				for range 40 {
					inBubble(t, func(w *world) {
						fault(w, kind)
						for _, c := range w.all {
							c.set(func() { c.cut = false })
							c.end()
						}
						worst[kind] = max(worst[kind], w.overlap())
					})
				}
			}
			t.Logf("two leaders for at most: %v", worst)
			if worst["client-go"] <= 0 {
				t.Error("the fault does client-go no harm: it proves nothing")
			}
			if worst["ours"] > 0 {
				t.Errorf("two leaders for %v", worst["ours"])
			}
		})
	}
}

// Another writes itself in, and lets go before the leader has given up. client-go's leader wins the
// Lease back, and its work is never told that another led.
func TestAReignOfAnotherEndsTheTerm(t *testing.T) {
	for _, kind := range []string{"client-go", "ours"} {
		inBubble(t, func(w *world) {
			a := w.stand(kind, "a", usual, nil)
			w.leads(a)
			time.Sleep(5 * time.Second)
			r := w.server.record()
			now := metav1.NewTime(time.Now())
			w.server.put(rl.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 15, RenewTime: now,
				AcquireTime: now, LeaderTransitions: r.LeaderTransitions + 1})
			time.Sleep(3 * time.Second)
			w.server.put(rl.LeaderElectionRecord{LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
				LeaderTransitions: r.LeaderTransitions + 1})
			time.Sleep(30 * time.Second)
			over, tokens := a.terms()
			want := map[string]int{"client-go": 0, "ours": 1}[kind]
			if !a.elector.IsLeader() || over != want {
				t.Errorf("%s: %d terms are over, want %d", kind, over, want)
			}
			if kind == "ours" && !slices.Equal(tokens, []uint64{1, 3}) {
				t.Errorf("tokens %v", tokens)
			}
		})
	}
}

// Old and new electors stand in one election while each is replaced in turn. Nobody loses the Lease
// but by ending, and of ours each takes it at once.
func TestARollingUpgrade(t *testing.T) {
	inBubble(t, func(w *world) {
		kinds := []string{"client-go", "ours"}
		var live []*candidate
		for i := range 3 {
			live = append(live, w.stand(kinds[i%2], fmt.Sprint("first-", i), usual, nil))
		}
		w.leads(live...)
		for n := range 120 {
			time.Sleep(time.Duration(rand.Int64N(int64(10 * time.Second))))
			i := n % len(live)
			live[i].end()
			live[i] = w.stand(kinds[rand.IntN(2)], fmt.Sprint("next-", n), usual, nil)
			if leader := w.leads(live...); w.server.record().HolderIdentity != leader.id {
				t.Errorf("%s leads, the Lease says %s", leader.id, w.server.record().HolderIdentity)
			}
		}
		for _, c := range w.all {
			c.end()
			if over, _ := c.terms(); over > 1 {
				t.Errorf("%s led %d times: it was robbed", c.id, over)
			}
		}
		if o := w.overlap(); o > 0 {
			t.Errorf("two leaders for %v", o)
		}
	})
}

// An answer that was lost must not leave the Lease to nobody: what was written is taken up, and the
// term is counted from the call that was answered.
func TestAWriteWhoseAnswerWasLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.server.put(rl.LeaderElectionRecord{LeaderTransitions: 6})
		a := w.stand("ours", "a", usual, nil)
		a.set(func() { a.loseNext = true })
		began := time.Now()
		w.leads(a)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Second)
		a.set(func() { a.loseNext = true })
		time.Sleep(time.Minute)
		if over, tokens := a.terms(); over > 0 || !slices.Equal(tokens, []uint64{8}) {
			t.Errorf("%d terms are over, tokens %v", over, tokens)
		}
	})
}

// The context ends RenewDeadline after the last call that succeeded began, and OnStoppedLeading
// comes before nine tenths of LeaseDuration are over, whatever the work does.
func TestATermThatIsCutOffEndsInTime(t *testing.T) {
	inBubble(t, func(w *world) {
		var stopped time.Time
		ended := make(chan time.Time, 2)
		lock := &client{s: w.server, id: "a"}
		le, err := NewLeaderElector(LeaderElectionConfig{Lock: lock, LeaseDuration: usual.lease,
			RenewDeadline: usual.deadline, RetryPeriod: usual.retry, ReleaseOnCancel: true,
			Callbacks: LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					<-ctx.Done()
					ended <- time.Now()
					time.Sleep(time.Hour) // it does not hear
				},
				OnStoppedLeading: func() { stopped = time.Now() }}})
		if err != nil {
			t.Fatal(err)
		}
		le.boot = func() core.Time { return time.Since(w.began) }
		go func() {
			time.Sleep(6100 * time.Millisecond)
			lock.set(func() { lock.cut = true })
		}()
		le.Run(w.t.Context())
		// The last renewal began at 6 s.
		got := []time.Duration{(<-ended).Sub(w.began), stopped.Sub(w.began), time.Since(w.began)}
		want := []time.Duration{16 * time.Second, 19500 * time.Millisecond, 19500 * time.Millisecond}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("the context, the callback and Run ended at (-want +got):\n%s", d)
		}
		if w.server.record().HolderIdentity != "a" {
			t.Error("the Lease was released beside work that runs")
		}
		again := make(chan struct{})
		lock.set(func() { lock.cut = false })
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		go func() { le.Run(ctx); close(again) }()
		time.Sleep(50 * time.Second)
		if le.IsLeader() {
			t.Error("it leads again beside the work of its last term")
		}
		<-again
		time.Sleep(2 * time.Hour)
	})
}

// The work has the Lease as long as it runs, and is over before it is released.
func TestTheWorkEndsBeforeTheRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.stand("ours", "a", usual, func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(14 * time.Second)
			if r := w.server.record(); r.HolderIdentity != "a" || time.Since(r.RenewTime.Time) > 3*time.Second {
				t.Errorf("while the work runs the Lease is %+v", r)
			}
		})
		w.leads(a)
		time.Sleep(5 * time.Second)
		a.cancel()
		time.Sleep(time.Second)
		if a.elector.IsLeader() {
			t.Error("it says that it leads though its context has ended")
		}
		<-a.gone
		if r := w.server.record(); r.HolderIdentity != "" || r.LeaderTransitions != 0 {
			t.Errorf("afterwards the Lease is %+v", r)
		}
	})
}

// What OnStartedLeading started and left running only OnStoppedLeading can end.
func TestTheReleaseWaitsForOnStoppedLeading(t *testing.T) {
	for early, want := range map[bool]string{true: "a", false: ""} {
		inBubble(t, func(w *world) {
			seen := "?"
			le, err := NewLeaderElector(LeaderElectionConfig{Lock: &client{s: w.server, id: "a"},
				LeaseDuration: usual.lease, RenewDeadline: usual.deadline, RetryPeriod: usual.retry,
				ReleaseOnCancel: true, Callbacks: LeaderCallbacks{
					OnStartedLeading: func(ctx context.Context) {
						if !early {
							<-ctx.Done()
						}
					},
					OnStoppedLeading: func() { seen = w.server.record().HolderIdentity }}})
			if err != nil {
				t.Fatal(err)
			}
			le.boot = func() core.Time { return time.Since(w.began) }
			ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
			defer cancel()
			le.Run(ctx)
			if seen != want || w.server.record().HolderIdentity != "" {
				t.Errorf("early %v: OnStoppedLeading saw the holder %q, want %q; afterwards it is %q", early, seen,
					want, w.server.record().HolderIdentity)
			}
		})
	}
}

// A Lease that somebody deletes is anybody's at once.
func TestADeletedLeaseEndsTheTerm(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.stand("ours", "a", usual, nil)
		w.leads(a)
		time.Sleep(time.Second)
		w.server.mu.Lock()
		w.server.lease = nil
		w.server.mu.Unlock()
		time.Sleep(3 * time.Second)
		if over, _ := a.terms(); over != 1 {
			t.Errorf("%d terms are over", over)
		}
	})
}

// A clock that stands still in a suspended machine, or a process that did not run, must not let the
// leader say yes.
func TestIsLeaderAsksTheClock(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.stand("ours", "a", usual, nil)
		w.leads(a)
		for _, c := range []struct {
			by   time.Duration
			want bool
		}{{7 * time.Second, true}, {10 * time.Second, false}} {
			if a.ahead.Store(int64(c.by)); a.elector.IsLeader() != c.want {
				t.Errorf("%v later IsLeader says %v", c.by, !c.want)
			}
		}
	})
}

// Who crashed and comes back under its name waits until its own lease has run out: it cannot know
// that the one before it is dead.
func TestANamesakeWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		now := metav1.NewTime(time.Now())
		w.server.put(rl.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15, RenewTime: now,
			AcquireTime: now, LeaderTransitions: 4})
		a := w.stand("ours", "a", usual, nil)
		w.leads(a)
		if d := time.Since(w.began); d < 15*time.Second || d > 20*time.Second {
			t.Errorf("it leads after %v", d)
		}
		time.Sleep(time.Second)
		if _, tokens := a.terms(); !slices.Equal(tokens, []uint64{6}) {
			t.Errorf("tokens %v", tokens)
		}
	})
}

func TestTimings(t *testing.T) {
	for at, want := range map[times]core.Timing{
		usual: {TTL: 15 * time.Second, Drift: 0.1, Grace: 3500 * time.Millisecond, Every: 2 * time.Second,
			Attempt: 4 * time.Second},
		{11100 * time.Millisecond, 11 * time.Second, 8 * time.Second}: {TTL: 12 * time.Second, Drift: 0.1,
			Grace: 540 * time.Millisecond, Every: 3420 * time.Millisecond, Attempt: 3420 * time.Millisecond},
		// A second less is left than of the lease, and a hundredth.
		{4 * time.Second, 3 * time.Second, time.Second}: {TTL: 4 * time.Second, Drift: 0.26,
			Grace: 148 * time.Millisecond, Every: 937333333, Attempt: 937333333},
	} {
		got := LeaderElectionConfig{LeaseDuration: at.lease, RenewDeadline: at.deadline, RetryPeriod: at.retry}.timing()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%v (-want +got):\n%s", at, d)
		}
		if err := got.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestCoordinatedElectionIsRefused(t *testing.T) {
	_, err := NewLeaderElector(LeaderElectionConfig{Lock: &client{id: "a"}, LeaseDuration: usual.lease,
		RenewDeadline: usual.deadline, RetryPeriod: usual.retry, Coordinated: true, Callbacks: LeaderCallbacks{
			OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}}})
	if err == nil {
		t.Error("it is taken")
	}
}

// The time that the winning call took is not the leader's: others count from when they see the
// record, which may be before the answer comes.
func TestATermThatIsWonSlowlyIsShort(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &client{s: w.server, id: "a", slow: 4 * time.Second, cutNext: true}
		var ended time.Time
		le, err := NewLeaderElector(LeaderElectionConfig{Lock: lock, LeaseDuration: usual.lease,
			RenewDeadline: usual.deadline, RetryPeriod: usual.retry, Callbacks: LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { <-ctx.Done(); ended = time.Now() },
				OnStoppedLeading: func() {}}})
		if err != nil {
			t.Fatal(err)
		}
		le.boot = func() core.Time { return time.Since(w.began) }
		le.Run(w.t.Context())
		if d := ended.Sub(w.began); d != usual.deadline {
			t.Errorf("the term ended %v after the call that won it began, want %v", d, usual.deadline)
		}
	})
}

// client-go compares records as text, where a time has whole seconds.
func TestARenewalWithinTheSameSecondIsSeen(t *testing.T) {
	inBubble(t, func(w *world) {
		le, err := NewLeaderElector(LeaderElectionConfig{Lock: &client{s: w.server, id: "a"},
			LeaseDuration: time.Second,
			RenewDeadline: 800 * time.Millisecond, RetryPeriod: 100 * time.Millisecond, Callbacks: LeaderCallbacks{
				OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}}})
		if err != nil {
			t.Fatal(err)
		}
		held := rl.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 1}
		for n := range 30 {
			held.RenewTime = metav1.NewTime(time.Now())
			w.server.put(held)
			for range 2 {
				if le.tryAcquireOrRenew(w.t.Context()) {
					t.Fatalf("after renewal %d the Lease of a living holder is taken", n)
				}
				time.Sleep(200 * time.Millisecond)
			}
		}
		time.Sleep(time.Second)
		if !le.tryAcquireOrRenew(w.t.Context()) {
			t.Error("it is not taken when it has run out")
		}
	})
}

// A release that gets no answer must not hold up OnStoppedLeading past the deadline: it may have
// something to stop, whatever OnStartedLeading did.
func TestAReleaseThatHangsHoldsUpNoCallback(t *testing.T) {
	inBubble(t, func(w *world) {
		lock := &client{s: w.server, id: "a", cutNext: true}
		var stopped time.Time
		le, err := NewLeaderElector(LeaderElectionConfig{Lock: lock, LeaseDuration: usual.lease,
			RenewDeadline: usual.deadline, RetryPeriod: usual.retry, ReleaseOnCancel: true,
			Callbacks: LeaderCallbacks{OnStartedLeading: func(ctx context.Context) { <-ctx.Done() },
				OnStoppedLeading: func() { stopped = time.Now() }}})
		if err != nil {
			t.Fatal(err)
		}
		le.boot = func() core.Time { return time.Since(w.began) }
		le.Run(w.t.Context())
		if d := stopped.Sub(w.began); d != 13500*time.Millisecond {
			t.Errorf("OnStoppedLeading was called after %v, want 13.5s", d)
		}
	})
}

// Another's Lease is not released, also where nobody told us yet that it is another's.
func TestOnlyWhatWasWrittenIsReleased(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.stand("ours", "a", usual, nil)
		w.leads(a)
		now := metav1.NewTime(time.Now())
		w.server.put(rl.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 15, RenewTime: now,
			AcquireTime: now, LeaderTransitions: 1})
		a.end()
		if r := w.server.record(); r.HolderIdentity != "b" {
			t.Errorf("the Lease of b is %+v", r)
		}
	})
}
