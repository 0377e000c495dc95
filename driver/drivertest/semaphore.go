package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var semaphoreClauses = []Clause{
	{Name: "a semaphore lets in as many as it has slots", Check: slotsFill},
	{Name: "a slot that is given up wakes the first waiter and not the others", Check: slotWakesOne},
	{Name: "slots come free in any order", Check: slotsAnyOrder},
	{Name: "a waiter for a slot that gives up is passed over", Check: slotWaiterLeaves},
	{Name: "behind an exclusive claim a semaphore fills up when it goes", Check: slotsBehind},
	{Name: "an exclusive claim waits until every slot before it is free", Check: exclusiveBehindSlots},
	{Name: "a try for a slot holds at once or leaves nothing in the line", Check: slotTries},
	{Name: "of many tries for slots at once as many hold as there are", Check: slotTriesAtOnce},
	{Name: "a slot comes free when its holder's lease ends", Check: slotOutlives, slow: true},
	{Name: "never more hold than there are slots, and nobody beside a writer", Check: sharedFight},
}

// slotsOf lets n claims enter a semaphore, one after another.
func slotsOf(t *testing.T, h Harness, name string, slots, n int) (all []stand) {
	t.Helper()
	for range n {
		all = append(all, share(t, h, name, slots))
	}
	return all
}

func slotsFill(t *testing.T, h Harness) {
	needShared(t, h)
	for _, slots := range []int{1, 3} {
		all := slotsOf(t, h, unique(), slots, slots+2)
		holds(t, "claim", true, all[:slots]...)
		holds(t, "claim beyond the slots", false, all[slots:]...)
		if got := hold(t, all[slots-1].l, all[slots-1].p); got != all[slots-1].p {
			t.Errorf("Wait of one that holds = %+v, want %+v", got, all[slots-1].p)
		}
	}
}

// slotTurns runs Wait for those that do not hold yet and tells on one channel which of them has
// come to hold.
func slotTurns(t *testing.T, all []stand, from int) <-chan int {
	done := make(chan int, len(all))
	for i := from; i < len(all); i++ {
		turn := waiting(t, all[i].l, all[i].p)
		go func() {
			if got := <-turn; got.err == nil && got.place.Held {
				done <- i
			}
		}()
	}
	return done
}

// expects waits for the turn of one claim and of no other.
func expects(t *testing.T, done <-chan int, want int) {
	t.Helper()
	select {
	case got := <-done:
		if got != want {
			t.Fatalf("claim %d has come to hold, want %d", got, want)
		}
	case <-soon(t).Done():
		t.Fatalf("claim %d has not come to hold within %v", want, patience)
	}
	silent(t, "another claim has come to hold as well", done)
}

func slotWakesOne(t *testing.T, h Harness) {
	s := needShared(t, h)
	need(t, s.Caps().FIFO, "a store with a line")
	all := slotsOf(t, h, unique(), 2, 6)
	done := slotTurns(t, all, 2)
	silent(t, "a claim holds beyond the slots", done)
	for i := range 4 {
		release(t, all[i].l, all[i].p)
		expects(t, done, i+2)
	}
}

func slotsAnyOrder(t *testing.T, h Harness) {
	s := needShared(t, h)
	need(t, s.Caps().FIFO, "a store with a line")
	all := slotsOf(t, h, unique(), 3, 8)
	done := slotTurns(t, all, 3)
	for i, leaves := range []int{2, 0, 3, 4, 1} { // two of them had waited themselves
		release(t, all[leaves].l, all[leaves].p)
		expects(t, done, i+3)
	}
}

func slotWaiterLeaves(t *testing.T, h Harness) {
	s := needShared(t, h)
	need(t, s.Caps().FIFO, "a store with a line")
	all := slotsOf(t, h, unique(), 2, 7)
	done := slotTurns(t, all, 2)
	silent(t, "a claim holds beyond the slots", done)
	release(t, all[4].l, all[4].p) // in the middle
	release(t, all[2].l, all[2].p) // the first of those who wait
	silent(t, "a claim holds though no slot came free", done)
	release(t, all[1].l, all[1].p)
	expects(t, done, 3)
	release(t, all[3].l, all[3].p)
	expects(t, done, 5)
	release(t, all[0].l, all[0].p)
	expects(t, done, 6)
}

func slotsBehind(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	need(t, s.Caps().FIFO, "a store with a line")
	w := share(t, h, name, 0)
	all := slotsOf(t, h, name, 2, 4)
	holds(t, "claim behind an exclusive one", false, all...)
	done := slotTurns(t, all, 0)
	silent(t, "a claim holds beside the exclusive one", done)
	release(t, w.l, w.p)
	if a, b := <-done, <-done; a+b != 1 {
		t.Fatalf("claims %d and %d hold, want the first two", a, b)
	}
	silent(t, "a claim holds beyond the slots", done)
	release(t, all[1].l, all[1].p)
	expects(t, done, 2)
	release(t, all[0].l, all[0].p)
	expects(t, done, 3)
}

func exclusiveBehindSlots(t *testing.T, h Harness) {
	needShared(t, h)
	name := unique()
	all := slotsOf(t, h, name, 3, 2)
	w := share(t, h, name, 0)
	late := share(t, h, name, 3)
	holds(t, "claim behind an exclusive one, though a slot is free,", false, w, late)
	turn, behind := waiting(t, w.l, w.p), waiting(t, late.l, late.p)
	release(t, all[1].l, all[1].p)
	silent(t, "the exclusive claim holds beside a shared one", turn)
	release(t, all[0].l, all[0].p)
	(<-turn).must(t)
	silent(t, "a claim holds beside the exclusive one", behind)
	release(t, w.l, w.p)
	(<-behind).must(t)
}

func slotTries(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	first := share(t, h, name, 2)
	l, late := grant(t, s, "a"), grant(t, s, "b")
	c := driver.Claim{Name: name, Slots: 2, ID: unique(), Try: true}
	p := claim(t, l, c)
	if !p.Held {
		t.Errorf("try for a slot that is free = %+v, want it held", p)
	}
	if again := claim(t, l, c); again != p {
		t.Errorf("the same try again = %+v, want %+v", again, p)
	}
	tries := func(why string) {
		t.Helper()
		if _, err := late.Claim(soon(t), driver.Claim{Name: name, Slots: 2, ID: unique(), Try: true}); !errors.Is(err, driver.ErrTaken) {
			t.Errorf("try for a slot %s = %v, want ErrTaken", why, err)
		}
		if ln := line(t, s, name); standing(ln, late.ID()) != 0 {
			t.Errorf("line = %+v, want nothing of the try", ln)
		}
	}
	tries("where none is free")
	release(t, l, p)
	w := share(t, h, name, 0)
	tries("behind an exclusive claim that waits")
	release(t, first.l, first.p)
	hold(t, w.l, w.p)
	tries("behind an exclusive claim that holds")
	release(t, w.l, w.p)
	if got := claim(t, late, driver.Claim{Name: name, Slots: 2, ID: unique(), Try: true}); !got.Held {
		t.Errorf("try for a slot after all left = %+v, want it held", got)
	}
}

func slotTriesAtOnce(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	const n, slots = 7, 3
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		l := grant(t, s, fmt.Sprint(i))
		all.Go(func() { _, errs[i] = l.Claim(soon(t), driver.Claim{Name: name, Slots: slots, ID: unique(), Try: true}) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, driver.ErrTaken) {
			t.Errorf("try = %v, want nil or ErrTaken", err)
		}
	}
	got := ranks(line(t, s, name))
	// Without a line, tries may get in each other's way.
	if won > slots || won < slots && s.Caps().FIFO || len(got) != won && s.Caps().FIFO {
		t.Errorf("%d tries hold and the line is %+v, want %d and nobody behind them", won, got, slots)
	}
}

func slotOutlives(t *testing.T, h Harness) {
	s, name := needShared(t, h), unique()
	dies := grantFor(t, s, "mortal", h.ttl(s))
	claim(t, dies, driver.Claim{Name: name, Slots: 2, ID: unique()})
	all := slotsOf(t, h, name, 2, 3)
	turns := waitingAll(t, all)
	for i, turn := range turns[:2] {
		if got := (<-turn).must(t); got.Token != all[i].p.Token {
			t.Errorf("claim %d = %+v, want token %d", i, got, all[i].p.Token)
		}
	}
	wantGone(t, "Renew of the lease that ended", dies.Renew(soon(t)))
	silent(t, "a claim holds beyond the slots", turns[2])
	release(t, all[1].l, all[1].p)
	(<-turns[2]).must(t)
}

// crowd counts who holds what at once.
type crowd struct {
	mu      sync.Mutex
	holds   map[int]int // by slots
	trouble error
}

const crowdSlots = 2

func (c *crowd) enter(slots int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds[slots]++
	shared := c.holds[crowdSlots] + c.holds[driver.Unlimited]
	if c.holds[0] > 1 || c.holds[0] == 1 && shared > 0 || c.holds[crowdSlots] > crowdSlots {
		c.trouble = fmt.Errorf("hold at once, by slots: %v", c.holds)
	}
}

func (c *crowd) leave(slots int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds[slots]--
}

func sharedFight(t *testing.T, h Harness) {
	needShared(t, h)
	for _, slots := range []int{driver.Unlimited, crowdSlots} {
		c, name := &crowd{holds: map[int]int{}}, unique()
		var all sync.WaitGroup
		for i := range 6 {
			l := grant(t, open(t, h), fmt.Sprint(i))
			all.Go(func() {
				for j := range 4 {
					mine := slots
					if (i+j)%4 == 3 {
						mine = 0
					}
					want := driver.Claim{Name: name, Slots: mine, ID: unique(), Try: (i+j)%5 == 4}
					if err := c.turn(soon(t), l, want); err != nil {
						t.Errorf("worker %d, turn %d: %v", i, j, err)
					}
				}
			})
		}
		all.Wait()
		if c.trouble != nil {
			t.Error(c.trouble)
		}
		if got := ranks(line(t, open(t, h), name)); len(got) != 0 {
			t.Errorf("line in the end = %+v, want it empty", got)
		}
	}
}

// turn claims, holds for a moment and releases.
func (c *crowd) turn(ctx context.Context, l driver.Lease, want driver.Claim) error {
	places, err := l.Claim(ctx, want)
	if errors.Is(err, driver.ErrTaken) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	p, err := Await(ctx, l, places[0])
	if err != nil {
		return err
	}
	c.enter(want.Slots)
	time.Sleep(2 * time.Millisecond)
	c.leave(want.Slots)
	return l.Release(ctx, p)
}
