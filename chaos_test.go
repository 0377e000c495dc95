package primacy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// TestChaos has three processes use two names by all means at once: locks kept and not, readers, tries, elections one by one and many, while
// claims are removed, leaders asked to go, processes cut off, and on odd seeds calls are lost, late or repeated. CHAOS_SEEDS is how many
// seeds, CHAOS_FROM the first. Every second pair of seeds lets the store forget leases and remove holders, where two may hold for a
// moment: these look for what is left behind only.
func TestChaos(t *testing.T) {
	number := func(key string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(key)); err == nil {
			return n
		}
		return otherwise
	}
	from := number("CHAOS_FROM", 0)
	for seed := from; seed < from+number("CHAOS_SEEDS", 16) && !t.Failed(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) { newChaos(t, b, uint64(seed)).run() })
		})
	}
}

var chaosNames = []string{"n0", "n1"}

type chaos struct {
	t    *testing.T
	b    *world
	seed uint64
	lax  bool // two may hold for a moment
	ctx  context.Context
	all  sync.WaitGroup
	who  []*Session
	nets []drivertest.FaultyStore

	mu    sync.Mutex
	terms map[string][]chaosTerm // that may be held
	last  map[string]Token       // claims, as they were won
}

type chaosTerm struct {
	*Term
	read bool
}

func newChaos(t *testing.T, b *world, seed uint64) *chaos {
	c := &chaos{t: t, b: b, seed: seed, lax: seed%4 >= 2, terms: map[string][]chaosTerm{}, last: map[string]Token{}}
	for i := range 3 {
		faults := drivertest.Faults{Seed: seed + uint64(i)}
		if seed%2 == 1 {
			faults = drivertest.Faults{Seed: seed + uint64(i), Delay: 30 * time.Millisecond, Drop: .03, Lose: .05, Late: .05, Twice: .05, Lag: 3 * time.Second}
		}
		net := drivertest.Faulty(b.store, faults)
		c.nets = append(c.nets, net)
		c.who = append(c.who, b.session(fmt.Sprintf("s%d", i), net, Options{Overrun: OverrunWait}))
	}
	return c
}

func (c *chaos) random(stream int) *rand.Rand { return rand.New(rand.NewPCG(c.seed, uint64(stream))) }

func millis(r *rand.Rand, ms int) time.Duration { return time.Duration(r.IntN(ms)) * time.Millisecond }

func (c *chaos) run() {
	ctx, stop := context.WithTimeout(c.t.Context(), 20*time.Second+millis(c.random(1), 60_000))
	defer stop()
	c.ctx = ctx
	for i, s := range c.who {
		for g := range 5 {
			c.all.Go(func() { c.lock(s, c.random(100+10*i+g)) })
		}
		c.all.Go(func() { c.elect(s, c.random(200+i)) })
	}
	c.all.Go(func() { c.disturb(c.random(300)) })
	c.all.Wait()
	for i, net := range c.nets {
		net.Set(drivertest.Faults{Seed: 1})
		c.b.store.Partition(fmt.Sprintf("s%d", i), false)
	}
	time.Sleep(2 * time.Second)
	c.allIsFree()
	time.Sleep(2 * time.Minute)
	for i, s := range c.who {
		c.isClean(s)
		c.nets[i].Settle()
	}
	synctest.Wait()
}

// expect wants no error but those that a caller has to expect.
func (c *chaos) expect(what string, err error) {
	for _, known := range []error{ErrHeld, ErrUnreachable, ErrClosed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, known) {
			return
		}
	}
	if err != nil {
		c.t.Errorf("%s: %v", what, err)
	}
}

// won judges a term that was just won.
func (c *chaos) won(t *Term, read bool) {
	c.mu.Lock()
	if t.Check() == nil && !read {
		if t.ClaimToken() < c.last[t.Name()] && !c.lax {
			c.t.Errorf("%s: the claim %v after %v", t.Name(), t.ClaimToken(), c.last[t.Name()])
		}
		c.last[t.Name()] = t.ClaimToken()
	}
	c.terms[t.Name()] = append(c.terms[t.Name()], chaosTerm{t, read})
	c.mu.Unlock()
	c.judge(t.Name())
}

// judge looks who holds a name.
func (c *chaos) judge(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var held []chaosTerm
	var writers, readers []string
	for _, o := range c.terms[name] {
		if o.Check() != nil {
			continue
		}
		held = append(held, o)
		by := fmt.Sprintf("%s under %v/%v", o.l.s.ID(), o.ClaimToken(), o.Token())
		if o.read {
			readers = append(readers, by)
		} else {
			writers = append(writers, by)
		}
	}
	c.terms[name] = held
	if !c.lax && (len(writers) > 1 || len(writers) == 1 && len(readers) > 0) {
		c.t.Errorf("%s is held by %v and read by %v", name, writers, readers)
	}
}

// use holds a term for a while and resigns it.
func (c *chaos) use(r *rand.Rand, t *Term, read bool) {
	c.won(t, read)
	if r.IntN(3) == 0 {
		_ = t.Context() // made early
	}
	for range r.IntN(4) {
		time.Sleep(millis(r, 30))
		c.judge(t.Name())
	}
	if r.IntN(30) == 0 {
		time.Sleep(millis(r, 3000))
	}
	ctx, cancel := context.WithTimeout(context.Background(), millis(r, 2000))
	defer cancel()
	c.expect("resign", t.Resign(ctx))
	if t.Check() == nil || context.Cause(t.Context()) == nil {
		c.t.Errorf("after Resign: Check says %v, the context %v", t.Check(), context.Cause(t.Context()))
	}
}

// lock has names one after the other, by all means.
func (c *chaos) lock(s *Session, r *rand.Rand) {
	for c.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(c.ctx, time.Millisecond+millis(r, 4000))
		t, read, err := c.lockOnce(ctx, s, r)
		cancel()
		c.expect("lock", err)
		if t != nil {
			c.use(r, t, read)
		}
		if r.IntN(4) == 0 {
			time.Sleep(millis(r, 500))
		}
	}
}

func (c *chaos) lockOnce(ctx context.Context, s *Session, r *rand.Rand) (t *Term, read bool, err error) {
	name := chaosNames[r.IntN(2)]
	m := s.Mutex(name, &MutexOptions{Turns: r.IntN(4)})
	switch r.IntN(12) {
	case 0:
		t, err = s.RWMutex(name).RLock(ctx)
		return t, true, err
	case 1:
		t, err = s.Election(name).Campaign(ctx, nil)
	case 2:
		t, err = m.TryLock(ctx)
	case 3:
		var both []*Term
		if both, err = s.LockAll(ctx, chaosNames...); err == nil {
			c.won(both[1], false)
			_ = both[1].Resign(context.Background())
			t = both[0]
		}
	case 4:
		err = m.Do(ctx, func(_ context.Context, t *Term) error {
			c.won(t, false)
			time.Sleep(millis(r, 50))
			c.judge(name)
			return nil
		})
		if ended := (*EndedError)(nil); errors.As(err, &ended) {
			err = nil
		}
	default:
		t, err = m.Lock(ctx)
	}
	return t, false, err
}

// elect has Elections after Elections stand for the names.
func (c *chaos) elect(s *Session, r *rand.Rand) {
	for c.ctx.Err() == nil {
		es := s.Elections(nil)
		ctx, cancel := context.WithTimeout(c.ctx, millis(r, 10_000))
		var some sync.WaitGroup
		stream := int(r.Uint32())
		some.Go(func() { c.stand(ctx, es, c.random(stream)) })
		for i := range 2 {
			some.Go(func() { c.reign(ctx, es, c.random(stream+i+1)) })
		}
		some.Wait()
		cancel()
		brief, cancel := context.WithTimeout(context.Background(), millis(r, 1000))
		c.expect("close", es.Close(brief))
		cancel()
		c.all.Go(func() { // all that was yielded was resigned
			long, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			if err := es.Close(long); err != nil {
				c.t.Errorf("close: %v", err)
			}
		})
	}
}

func (c *chaos) stand(ctx context.Context, es *Elections, r *rand.Rand) {
	for ctx.Err() == nil {
		c.expect("stand", es.Stand(chaosNames[r.IntN(2)]))
		time.Sleep(millis(r, 800))
		if r.IntN(2) == 0 {
			es.Withdraw(chaosNames[r.IntN(2)])
		}
		if r.IntN(4) == 0 {
			time.Sleep(millis(r, 3000))
		}
	}
}

func (c *chaos) reign(ctx context.Context, es *Elections, r *rand.Rand) {
	for t, err := range es.Terms(ctx) {
		switch {
		case t == nil:
			c.t.Errorf("elections: %v", err)
		case err != nil:
			_ = t.Resign(ctx)
		default:
			c.use(r, t, false)
			if r.IntN(2) == 0 {
				_ = es.Stand(t.Name())
			}
		}
	}
}

// disturb does what others do to the processes.
func (c *chaos) disturb(r *rand.Rand) {
	for c.ctx.Err() == nil {
		time.Sleep(millis(r, 4000))
		name := chaosNames[r.IntN(2)]
		switch r.IntN(6) {
		case 0:
			if c.lax && r.IntN(2) == 0 {
				c.b.store.Expire(name)
			}
		case 1:
			c.remove(r, name)
		case 2:
			ctx, cancel := context.WithTimeout(c.ctx, time.Second)
			_, _ = c.who[r.IntN(3)].Election(name).Ask(ctx, Request{Reason: "chaos"})
			cancel()
		case 3:
			id := fmt.Sprintf("s%d", r.IntN(3))
			c.b.store.Partition(id, true)
			time.Sleep(millis(r, 14_000))
			c.b.store.Partition(id, false)
		}
	}
}

// remove removes one who waits, or where that is allowed who holds.
func (c *chaos) remove(r *rand.Rand, name string) {
	line, err := c.b.store.Line(context.Background(), name)
	switch {
	case err != nil:
	case len(line.Waiters) > 0 && r.IntN(2) == 0:
		c.b.store.Remove(name, line.Waiters[r.IntN(len(line.Waiters))].Token)
	case line.Holder != nil && c.lax:
		c.b.store.Remove(name, line.Holder.Token)
	}
}

// allIsFree wants that another process gets each name.
func (c *chaos) allIsFree() {
	out := c.b.session("out", c.b.store, Options{})
	for _, name := range chaosNames {
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
		t, err := out.Mutex(name, nil).Lock(ctx)
		cancel()
		if err != nil {
			line, _ := c.b.store.Line(context.Background(), name)
			c.t.Errorf("%s stays held: %v: %+v", name, err, line.Holder)
			continue
		}
		_ = t.Resign(context.Background())
	}
}

// isClean wants a session that keeps nothing.
func (c *chaos) isClean(s *Session) {
	nothingLeft(c.t, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases) > 1 {
		c.t.Errorf("%s keeps %d leases", s.ID(), len(s.leases))
	}
	for l := range s.leases {
		l.mu.Lock()
		if n := len(l.claims) + len(l.busy); n > 0 {
			c.t.Errorf("%s keeps %d claims", s.ID(), n)
		}
		l.mu.Unlock()
	}
}
