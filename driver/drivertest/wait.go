package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var waitClauses = []Clause{
	{Name: "a release wakes one waiter and not the others", Check: wakesOne},
	{Name: "the oldest claim leads", Check: oldestLeads},
	{Name: "a wait for a place that is held returns at once", Check: waitHeld},
	{Name: "the token is final already while the claim waits", Check: tokenFinal},
	{Name: "a wait comes to hold when the holder's lease ends", Check: waitOutlives, slow: true},
	{Name: "a waiter whose lease ended is passed over", Check: deadWaiterPassed, slow: true},
	{Name: "a wait whose place was released is told nothing", Check: waitReleased},
	{Name: "a wait ends as soon as its lease was closed", Check: waitClosed},
	{Name: "a wait ends when its own lease ends", Check: waitExpired, slow: true},
	{Name: "a wait ends as soon as its place was removed by hand", Check: waitRemoved},
	{Name: "a wait comes to hold when the holder was removed by hand", Check: holderRemoved},
	{Name: "a wait never says held of a claim that went while it waited", Check: waitNotHeld},
	{Name: "a wait that was given up leaves its claim in the line", Check: waitGivenUp},
	{Name: "a wait that was cut off during the release still comes to hold", Check: waitCutOff},
}

// queue makes n leases of different clients that stand in the line of name one behind the other,
// the first holding.
func queue(t *testing.T, h Harness, name string, n int) ([]driver.Lease, []driver.Place) {
	t.Helper()
	var leases []driver.Lease
	var places []driver.Place
	for range n {
		l := grant(t, open(t, h), "q")
		leases, places = append(leases, l), append(places, enter(t, l, name))
	}
	return leases, places
}

func wakesOne(t *testing.T, h Harness) {
	leases, places := queue(t, h, unique(), 4)
	done := make(chan int, len(leases))
	turns := make([]waited, len(leases))
	for i := 1; i < len(leases); i++ {
		turn := waiting(t, leases[i], places[i])
		go func() {
			turns[i] = <-turn
			done <- i
		}()
	}
	silent(t, "a waiter returned while another holds", done)
	release(t, leases[0], places[0])
	for range len(leases) - 1 {
		i := <-done
		p := turns[i].must(t)
		silent(t, "a second waiter returned after one release", done)
		release(t, leases[i], p)
	}
}

func oldestLeads(t *testing.T, h Harness) {
	s := open(t, h)
	need(t, s.Caps().FIFO, "a store with a line")
	name := unique()
	leases, places := queue(t, h, name, 4)
	turns := make([]<-chan waited, 4)
	for i := 3; i > 0; i-- { // who waits first does not matter
		turns[i] = waiting(t, leases[i], places[i])
	}
	for i := range leases {
		if i > 0 {
			(<-turns[i]).must(t)
		}
		ln := line(t, s, name)
		if ln.Holder == nil || ln.Holder.Lease != leases[i].ID() || len(ln.Waiters) != 3-i {
			t.Fatalf("line at turn %d = %+v, want lease %s and %d waiters", i, ln, leases[i].ID(), 3-i)
		}
		for j, w := range ln.Waiters {
			if w.Lease != leases[i+1+j].ID() || w.Token != places[i+1+j].Token {
				t.Errorf("waiter %d at turn %d = %+v, want lease %s, token %d", j, i, w, leases[i+1+j].ID(), places[i+1+j].Token)
			}
		}
		release(t, leases[i], places[i])
	}
}

func waitHeld(t *testing.T, h Harness) {
	l := grant(t, open(t, h), "a")
	p := enter(t, l, unique())
	if got := hold(t, l, p); got != p {
		t.Errorf("news of a place that is held = %+v, want %+v", got, p)
	}
}

func tokenFinal(t *testing.T, h Harness) {
	s := open(t, h)
	need(t, s.Caps().FIFO && s.Caps().Token != driver.TokenNone, "a store with a line and tokens")
	leases, places := queue(t, h, unique(), 2)
	if places[1].Token <= places[0].Token || places[0].Token == 0 {
		t.Errorf("tokens of the holder and the one behind = %d and %d, want them to grow", places[0].Token, places[1].Token)
	}
	release(t, leases[0], places[0])
	if p := hold(t, leases[1], places[1]); p.Token != places[1].Token {
		t.Errorf("token when the turn came = %d, want %d as while waiting", p.Token, places[1].Token)
	}
}

func waitOutlives(t *testing.T, h Harness) {
	name := unique()
	dies, places := mortal(t, h, open(t, h), name)
	successor := grant(t, open(t, h), "b")
	begun := time.Now()
	p := hold(t, successor, enter(t, successor, name))
	// One who is not told, and does not look when the holder's lease may end, finds it out when he
	// looks at his own lease, or never.
	if took := time.Since(begun); took > 3*dies.TTL()+10*time.Second {
		t.Errorf("the wait came to hold after %v, with a ttl of %v", took, dies.TTL())
	}
	if p.Token <= places[0].Token && p.Token != 0 {
		t.Errorf("token after the holder's lease ended = %d, want more than %d", p.Token, places[0].Token)
	}
	wantGone(t, "Renew of the lease that ended", dies.Renew(soon(t)))
}

func deadWaiterPassed(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	first := grant(t, s, "a")
	p := enter(t, first, name)
	dies, _ := mortal(t, h, open(t, h), name)
	last := grant(t, s, "c")
	turn := waiting(t, last, enter(t, last, name))
	// Released while the one between lives still: it gets the turn or not, but must not keep it for
	// more than its ttl.
	release(t, first, p)
	begun := time.Now()
	(<-turn).must(t)
	if took := time.Since(begun); took > 3*dies.TTL()+2*time.Second {
		t.Errorf("the turn passed over a dead waiter after %v, with a ttl of %v", took, dies.TTL())
	}
}

func waitReleased(t *testing.T, h Harness) {
	leases, places := queue(t, h, unique(), 2)
	ch := listening(t, leases[1])
	leases[1].Follow(places[1])
	silent(t, "told while another holds", ch)
	release(t, leases[1], places[1])
	release(t, leases[0], places[0])
	silent(t, "told of a place that its owner released", ch)
	wantOver(t, "the place that was released", leases[1], places[1])
}

func waitClosed(t *testing.T, h Harness) {
	leases, places := queue(t, h, unique(), 2)
	turn := waiting(t, leases[1], places[1])
	silent(t, "told while another holds", turn)
	if err := leases[1].Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	wantGone(t, "waiting under a lease that was closed meanwhile", (<-turn).err)
}

func waitExpired(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	enter(t, grant(t, s, "a"), name)
	dies, places := mortal(t, h, open(t, h), name)
	wantGone(t, "waiting under a lease that ended", (<-waiting(t, dies, places[0])).err)
}

func waitRemoved(t *testing.T, h Harness) {
	need(t, h.Remove != nil, "Harness.Remove")
	need(t, open(t, h).Caps().FIFO, "a store with a line")
	name := unique()
	leases, places := queue(t, h, name, 3)
	turn, behind := waiting(t, leases[1], places[1]), waiting(t, leases[2], places[2])
	silent(t, "told while another holds", turn)
	h.Remove(t, name, places[1].Token)
	wantGone(t, "waiting for a place that was removed by hand", (<-turn).err)
	silent(t, "the one behind was told while the first still holds", behind)
	release(t, leases[0], places[0])
	(<-behind).must(t)
}

func holderRemoved(t *testing.T, h Harness) {
	need(t, h.Remove != nil, "Harness.Remove")
	name := unique()
	leases, places := queue(t, h, name, 2)
	turn := waiting(t, leases[1], places[1])
	h.Remove(t, name, places[0].Token)
	(<-turn).must(t)
	wantGone(t, "Update of a place that was removed by hand", leases[0].Update(soon(t), places[0], []byte("x")))
	hear(t, "that the holder was removed", listening(t, leases[0]), gone(places[0]))
}

func waitNotHeld(t *testing.T, h Harness) {
	told := make(chan heard, 10)
	for range cap(told) {
		leases, places := queue(t, h, unique(), 2)
		ch := listening(t, leases[1])
		go func() {
			select {
			case n := <-ch:
				told <- n
			case <-t.Context().Done():
			}
		}()
		leases[1].Follow(places[1])
		// The claim goes first, then the one before it: the signal that wakes the waiter may be
		// either.
		release(t, leases[1], places[1])
		release(t, leases[0], places[0])
	}
	silent(t, "told of a place that went before its turn came", told)
}

func waitGivenUp(t *testing.T, h Harness) {
	leases, places := queue(t, h, unique(), 2)
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	if _, err := Await(ctx, leases[1], places[1]); err == nil || driver.IsFinal(err) {
		t.Errorf("a wait that was given up = %v, want the context's error", err)
	}
	release(t, leases[0], places[0])
	if p := hold(t, leases[1], places[1]); places[1].Token != 0 && p.Token != places[1].Token {
		t.Errorf("token after waiting again = %d, want %d: the claim stayed in the line", p.Token, places[1].Token)
	}
}

func waitCutOff(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	s, name := open(t, h), unique()
	far, cut := openCut(t, h)
	holds, waits := grant(t, s, "a"), grant(t, far, "b")
	p := enter(t, holds, name)
	turn := waiting(t, waits, enter(t, waits, name))
	silent(t, "told while another holds", turn)
	cut(true)
	release(t, holds, p)
	silent(t, "told though cut off", turn)
	cut(false)
	(<-turn).must(t)
}
