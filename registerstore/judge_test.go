package registerstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/registerstore"
)

// far is a register behind a network and inside a process that can be paused: then nothing is sent,
// and no answer is read. A strike that was about to be sent is sent after the pause, with all that
// came meanwhile unread.
type far struct {
	*bad
	mu    sync.Mutex
	awake chan struct{} // closed while it runs
}

func newFar(t testing.TB, r *memstore.Register, seed uint64) *far {
	f := &far{bad: newBad(t, r, seed), awake: make(chan struct{})}
	f.drop, f.lose, f.late, f.twice, f.delay = 0.03, 0.03, 0.03, 0.03, 5*time.Millisecond
	if seed/1000%3 == 0 {
		f.delay = 150 * time.Millisecond // which hides what a little too short a silence does
	}
	close(f.awake)
	return f
}

func (f *far) pause(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.awake:
		if on {
			f.awake = make(chan struct{})
		}
	default:
		if !on {
			close(f.awake)
		}
	}
}

// runs waits until the process runs. A context that ends meanwhile is not seen before.
func (f *far) runs() {
	f.mu.Lock()
	awake := f.awake
	f.mu.Unlock()
	<-awake
}

func (f *far) Get(ctx context.Context, key string) ([]byte, string, error) {
	f.runs()
	defer f.runs()
	value, version, err := f.bad.Get(ctx, key)
	f.answer()
	return value, version, err
}

func (f *far) Put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	f.runs()
	defer f.runs()
	next, ok, err := f.bad.Put(ctx, key, value, version)
	f.answer()
	return next, ok, err
}

func (f *far) Delete(ctx context.Context, key, version string) error {
	f.runs()
	return f.bad.Delete(ctx, key, version)
}

func (f *far) Watch(ctx context.Context, key, version string) ([]byte, string, error) {
	f.runs()
	defer f.runs()
	value, next, err := f.bad.Watch(ctx, key, version)
	f.answer()
	return value, next, err
}

// answer is the way back of an answer.
func (f *far) answer() {
	f.bad.mu.Lock()
	d := time.Duration(f.rnd.Float64() * float64(f.delay))
	f.bad.mu.Unlock()
	time.Sleep(d)
}

// trial is one run of the judge.
type trial struct {
	t     *testing.T
	seed  uint64
	over  float64
	reg   *memstore.Register
	begun time.Time
	end   context.Context
	names []string
	polls bool

	mu    sync.Mutex
	rnd   *rand.Rand
	terms []drivertest.Interval
	told  map[string]int
	early error // a lease that was ended too early
}

func (tr *trial) draw(n int) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.rnd.IntN(n)
}

func (tr *trial) count(what string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.told[what]++
}

// life is one life of a process: a store of its own, one lease, terms on all names until it crashes
// or the trial ends.
func (tr *trial) life(who string, rate float64, seed uint64) {
	f := newFar(tr.t, tr.reg, seed)
	var reg registerstore.Register = f
	if tr.polls {
		reg = plain{f}
	}
	s, err := registerstore.FromRegister(reg, registerstore.Options{Poll: time.Second})
	if err != nil {
		tr.t.Error(err)
		return
	}
	registerstore.SetRate(s, rate)
	if tr.over != 0 {
		registerstore.SetOver(s, tr.over)
	}
	ctx, crash := context.WithTimeout(tr.end, time.Duration(5+tr.draw(60))*time.Second)
	defer crash()
	var all sync.WaitGroup
	all.Go(func() { // pauses of the whole process
		for ctx.Err() == nil {
			sleep(ctx, time.Duration(tr.draw(8000))*time.Millisecond)
			f.pause(true)
			time.Sleep(time.Duration(tr.draw(4000)) * time.Millisecond)
			f.pause(false)
		}
	})
	asked := time.Now()
	l, err := s.Grant(ctx, who, 2*time.Second)
	if err == nil {
		p := &candidate{tr: tr, l: l, who: who, rate: rate}
		p.accepted(asked)
		lctx, over := context.WithCancel(ctx)
		all.Go(func() { p.renew(lctx); over() })
		for _, name := range tr.names {
			all.Go(func() { p.stand(lctx, name) })
		}
	}
	all.Wait()
	if err := s.Close(); err != nil {
		tr.t.Error(err)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// judge runs one seed, and returns the first contradiction that it finds.
func judge(t *testing.T, seed uint64, over float64) (told map[string]int, err error) {
	tr := &trial{t: t, seed: seed, over: over, reg: memstore.NewRegister(), begun: time.Now(), names: []string{"a", "b/ü"}, polls: seed%2 == 0,
		rnd: rand.New(rand.NewPCG(seed, 7)), told: map[string]int{}}
	var cancel context.CancelFunc
	tr.end, cancel = context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range 6 {
		rate := 0.92 + 0.16*float64(tr.draw(1001))/1000
		if i < 2 {
			rate = []float64{0.92, 1.08}[i]
		}
		all.Go(func() {
			for n := uint64(0); tr.end.Err() == nil; n++ {
				tr.life(fmt.Sprint("m", i), rate, seed*1000+uint64(i)*100+n)
				tr.count("lives")
				sleep(tr.end, time.Duration(tr.draw(3000))*time.Millisecond)
			}
		})
	}
	all.Wait()
	tr.told["terms"] = len(tr.terms)
	if err := drivertest.Check(tr.terms); err != nil {
		return tr.told, err
	}
	if tr.early != nil {
		return tr.told, tr.early
	}
	return tr.told, tr.empty()
}

// empty says what is left when everybody is dead: one who comes must have each name after he has
// watched the others for a while, and nothing may be left of them.
func (tr *trial) empty() error {
	s, err := registerstore.FromRegister(tr.reg, registerstore.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(tr.t.Context(), time.Minute)
	defer cancel()
	l, err := s.Grant(ctx, "heir of all", time.Hour)
	if err != nil {
		return err
	}
	for _, name := range tr.names {
		p, err := l.Claim(ctx, driver.Claim{Name: name, ID: name})
		if err == nil {
			_, err = drivertest.Await(ctx, l, p[0])
		}
		if err != nil {
			return fmt.Errorf("in the end %s is not to be had: %w", name, err)
		}
		if ln, err := s.Line(ctx, name); err != nil || ln.Holder == nil || ln.Holder.Lease != l.ID() || len(ln.Waiters) != 0 {
			return fmt.Errorf("in the end the line of %s is %+v, %v, want one claim", name, ln, err)
		}
	}
	if err := l.Close(ctx); err != nil {
		return err
	}
	if _, err := s.Sweep(ctx); err != nil {
		return err
	}
	if left, err := tr.reg.List(ctx, "lease."); err != nil || len(left) != 0 {
		return fmt.Errorf("leases are left: %q, %v", left, err)
	}
	if lines, err := s.Lines(ctx, ""); err != nil || len(lines) != 0 {
		return fmt.Errorf("claims are left: %+v, %v", lines, err)
	}
	return nil
}

func seeds(t *testing.T, n int) (all []uint64) {
	if s := os.Getenv("REGISTER_SEEDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("REGISTER_SEEDS: %v", err)
		}
	} else if os.Getenv("MUTATION") != "" {
		n = 60
	}
	for i := range n {
		all = append(all, uint64(i+1))
	}
	return all
}

// TestNeverTwo lets six candidates, whose clocks' rates differ by up to 8 % from the true one,
// fight for two names over a bad network, with pauses, crashes and transfers. REGISTER_SEEDS is how
// many seeds to run (default 6).
func TestNeverTwo(t *testing.T) {
	sum := map[string]int{}
	for _, seed := range seeds(t, 6) {
		synctest.Test(t, func(t *testing.T) {
			told, err := judge(t, seed, 0)
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			for what, n := range told {
				sum[what] += n
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%v", sum)
	for _, must := range []string{"terms", "terms that were lost", "transfers", "releases", "gone"} {
		if sum[must] == 0 {
			t.Errorf("%s: none in all seeds: the faults are too weak to prove anything", must)
		}
	}
}

// TestTooShortASilenceIsSeen: a watch that is shorter than the clocks allow must be found by the
// same judge, or it would find nothing.
func TestTooShortASilenceIsSeen(t *testing.T) {
	found := slices.ContainsFunc(seeds(t, 40), func(seed uint64) (bad bool) {
		synctest.Test(t, func(t *testing.T) {
			_, err := judge(t, seed, 0.9)
			bad = err != nil
		})
		return bad
	})
	if !found {
		t.Error("no seed found two leaders with a silence of 0.9 of the ttl: the judge sees nothing, or the faults are too weak")
	}
}
